"""Files that reproduce a study, uploaded with its run: code versions, packages, the journal as compressed lines."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.security.masking import without_credentials, without_private_settings
from hpo_core.security.private_files import private_folder, write_private
from hpo_core.security.untrusted_text import json_text
from hpo_core.spec import StudySpec
from hpo_core.spec.module_source import CodeFile, code_files
from hpo_core.spec.sent_functions import FOLDER as CODE
from hpo_core.spec.sent_functions import digest_of, names_in, read
from hpo_core.spec.study_yaml import as_yaml
from hpo_core.tracking.mlflow_client import KnownRun, RunStore

_GIT_SECONDS = 10.0


class GitState(msgspec.Struct, frozen=True):
    """The commit that is checked out where the code lies."""

    commit: str
    dirty: bool
    """Tracked files have changed since, or a file of the code is not tracked."""


class CodeVersion(msgspec.Struct, frozen=True):
    """Code and packages."""

    functions: tuple[str, ...]
    digest: str
    """Digest of all files' paths and digests."""
    files: dict[str, str]
    """SHA-256 by path, which is relative to the folder that the file is imported from."""
    python: str
    platform: str
    requirements: str
    """Name of the file with the packages, in the form of ``pip freeze``."""
    git: GitState | None = None


def find_code_version(
    functions: Sequence[str], folders: Sequence[str], sent: Mapping[str, bytes] | None = None
) -> tuple[CodeVersion, str]:
    """The code version of now, and the text of its ``requirements`` file.

    Args:
        sent: pickles of functions that were sent by value, by file name.
    """
    sent = sent or {}
    files = code_files(functions, folders, modules=[name for one in sent.values() for name in names_in(one)])
    digests = code_digests(files) | {name: hashlib.sha256(one).hexdigest() for name, one in sent.items()}
    packages = installed_packages()
    version = CodeVersion(
        functions=tuple(functions),
        digest=hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
        files=digests,
        python=platform.python_version(),
        platform=platform.platform(),
        requirements=f"requirements-{hashlib.sha256(packages.encode()).hexdigest()[:8]}.txt",
        git=git_state(files),
    )
    return version, packages


def code_digests(files: Sequence[CodeFile]) -> dict[str, str]:
    found = {}
    for file in files:
        try:
            found[file.name] = hashlib.sha256(file.path.read_bytes()).hexdigest()
        except OSError:
            found[file.name] = ""
    return found


def installed_packages() -> str:
    """Installed packages of this environment, in the form of ``pip freeze``.

    A package that was not installed from a registry has its place, without credentials.
    """
    lines: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if not name:  # left by an uninstall that was cut short
            continue
        line = f"{name}=={package.version}"
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            place = json.loads(package.read_text("direct_url.json") or "null")
            if place is not None:
                commit = place.get("vcs_info", {}).get("commit_id", "")
                url = without_credentials(place["url"])
                line = f"# editable, {line}: {url}" if place.get("dir_info", {}).get("editable") else line
                line = f"{name} @ git+{url}@{commit}" if commit else line
        lines.setdefault(name.lower(), line)
    return "".join(f"{lines[name]}\n" for name in sorted(lines))


def git_state(files: Sequence[CodeFile]) -> GitState | None:
    if not files:
        return None
    folder = files[0].path.parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    untracked = _git(folder, "ls-files", "--others", "--", *(str(file.path) for file in files))
    return GitState(commit.strip(), dirty=changed != "" or untracked != "")


def _git(folder: Path, *arguments: str) -> str | None:
    # Output of git; None where it fails. What a repository's own settings would start is switched off.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=without_private_settings(os.environ) | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout


FOLDER = "provenance"
"""In the study's folder, and in the files of its run."""
VERSIONS = "versions.json"


class Noted(msgspec.Struct, frozen=True):
    """A code version, and when it was noted: soon after its controller started."""

    entry: int
    """Journal entries there were."""
    version: CodeVersion


def note_version(study_folder: Path, spec: StudySpec, entry: int) -> None:
    """Add what is there now, unless it is what the latest controller found.

    Args:
        entry: number of journal entries there are.

    Raises:
        OSError: the folder cannot be written.
    """
    if spec.objective is None:
        return
    sent = {
        f"{CODE}/{digest}.pkl": read(function, study_folder)
        for function in functions_of(spec)
        if (digest := digest_of(function)) is not None
    }
    version, packages = find_code_version(functions_of(spec), spec.pythonpath, sent)
    known = read_versions(study_folder)
    if known and known[-1].version == version:
        return
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / version.requirements, packages.encode())
    noted = [*known, Noted(entry, version)]
    write_private(folder / VERSIONS, msgspec.json.format(msgspec.json.encode(noted), indent=1))


def functions_of(spec: StudySpec) -> tuple[str, ...]:
    return tuple(spec.functions.values())


def read_versions(study_folder: Path) -> list[Noted]:
    try:
        return msgspec.json.decode((study_folder / FOLDER / VERSIONS).read_bytes(), type=list[Noted])
    except (OSError, msgspec.MsgspecError):
        return []


MAX_BYTES = 256 * 1024 * 1024
"""Largest compressed copy that is written or read: some millions of entries."""
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest entry that is read."""
MAX_TEXT_BYTES = 32 * MAX_BYTES
"""Most text that a copy is unpacked to: JSON lines shrink to a tenth, and a bomb to a thousandth."""
_GZIP = 31
"""Window bits with a gzip header, in which zlib leaves the time at 0: the same entries are the same bytes."""


def read_copy(path: Path, entries: int, digest: str) -> Iterator[Entry]:
    """The first ``entries`` entries of a copy, each decoded; the digest of their lines is compared at their end.

    A copy may be ahead of the digest that was noted with the run: it is uploaded first.

    Raises:
        JournalError: it is no gzip file, ends early, is too large, or is not what the digest was taken of.
    """
    found, total = hashlib.sha256(), 0
    try:
        with gzip.open(path, "rb") as file:
            for seq in range(entries):
                line = file.readline(MAX_LINE_BYTES + 1)
                total += len(line)
                if len(line) > MAX_LINE_BYTES or total > MAX_TEXT_BYTES:
                    raise JournalError(
                        f"{path.name}: entry {seq} passes the limit of {MAX_LINE_BYTES:,} bytes for one entry and "
                        f"{MAX_TEXT_BYTES:,} for all; this was not written by this package."
                    )
                if not line.endswith(b"\n"):
                    raise JournalError(
                        f"{path.name} ends within entry {seq} of {entries}: the upload is damaged. Where the study's "
                        "home still is, `hpo project NAME --rebuild` uploads it again."
                    )
                found.update(line)
                yield decode_entry(line)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(
            f"{path.name} cannot be unpacked ({error}): the upload is damaged. Where the study's home still is, "
            "`hpo project NAME --rebuild` uploads it again."
        ) from error
    if found.hexdigest() != digest:
        raise JournalError(
            f"{path.name} is not what was uploaded: its first {entries} entries have the SHA-256 "
            f"{found.hexdigest()[:12]}..., the run notes {digest[:12]}... Nothing was imported. Where the study's home "
            "still is, `hpo project NAME --rebuild` uploads it again."
        )


JOURNAL = "journal.jsonl.gz"
STUDY_FILE = "study.yaml"
ENTRIES_TAG = "hpo.journal_entries"
DIGEST_TAG = "hpo.journal_digest"
log = logging.getLogger(__name__)


def study_file(spec: StudySpec) -> str:
    """The study as a YAML file. It names no folders of code: by default they are the file's and the current one."""
    plain = {key: value for key, value in spec.plain().items() if key != "pythonpath" and value not in (None, [], {})}
    return as_yaml(plain)


class ProvenanceUpload:
    """Collects the entries of one study, as ``hpo export`` writes them, and keeps its run's folder up to date."""

    def __init__(self) -> None:
        self.entries = 0
        self._packed = bytearray()
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._hash = hashlib.sha256()
        self._versions = 0
        self._warned = False

    def add(self, entry: Entry) -> None:
        """Add the next entry; beyond :data:`MAX_BYTES` only digest and count go on."""
        line = json_text(encode_entry(entry)).encode() + b"\n"
        self._hash.update(line)
        if len(self._packed) <= MAX_BYTES:
            self._packed += self._packer.compress(line)
        self.entries += 1

    @property
    def digest(self) -> str:
        """SHA-256 of the lines."""
        return self._hash.hexdigest()

    def packed(self) -> bytes:
        """A gzip file of the lines."""
        return bytes(self._packed) + self._packer.copy().flush()

    def write(self, store: RunStore, run: KnownRun, spec: StudySpec, study_folder: Path) -> None:
        """Upload what is not there yet: files first, then the tags that vouch for them."""
        versions = read_versions(study_folder)
        tags: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="hpo-provenance-") as side:
            folder = Path(side)
            if len(versions) != self._versions:
                tags |= _version_files(versions[-1] if versions else None, study_folder, folder)
            if run.tags.get(DIGEST_TAG) != self.digest and self._is_whole(spec.study):
                (folder / JOURNAL).write_bytes(self.packed())
                (folder / STUDY_FILE).write_text(study_file(spec))
                tags |= {ENTRIES_TAG: str(self.entries), DIGEST_TAG: self.digest}
            if not any(folder.iterdir()):
                return
            store.upload(run, folder, FOLDER)
        self._versions = len(versions)
        store.log(run, tags=tags)

    def _is_whole(self, study: str) -> bool:
        whole = len(self._packed) <= MAX_BYTES
        if not whole and not self._warned:
            self._warned = True
            log.warning(
                "study %r: its journal is larger than %d bytes packed and is not copied to MLflow; keep the journal.",
                study,
                MAX_BYTES,
            )
        return whole


def _version_files(latest: Noted | None, study_folder: Path, folder: Path) -> dict[str, str]:
    if latest is None:
        return {}
    source = study_folder / FOLDER
    for file in [source / VERSIONS, *source.glob("requirements-*.txt")]:
        (folder / file.name).write_bytes(file.read_bytes())
    tags, git = {"hpo.code_digest": latest.version.digest}, latest.version.git
    if git is not None:
        tags |= {"mlflow.source.git.commit": git.commit, "hpo.code_dirty": str(git.dirty).lower()}
    return tags
