"""Files that reproduce a study, uploaded with its run: code version, packages, the journal as compressed lines."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.security.masking import without_private_settings
from hpo_core.security.private_files import private_folder, write_private
from hpo_core.security.untrusted_text import json_text
from hpo_core.spec import StudySpec
from hpo_core.spec.module_source import code_files
from hpo_core.spec.study_yaml import as_yaml
from hpo_core.tracking.mlflow_client import KnownRun, RunStore

_GIT_SECONDS = 10.0


class CodeVersion(msgspec.Struct, frozen=True):
    """Code and packages."""

    python: str
    platform: str
    requirements: str
    """Name of the file with the packages, in the form of ``pip freeze``."""
    commit: str = ""
    """Git commit that is checked out where the code lies."""
    dirty: bool = False
    """Tracked files have changed since."""


class Noted(msgspec.Struct, frozen=True):
    """A code version, and when it was noted: soon after its controller started."""

    entry: int
    """Journal entries there were."""
    version: CodeVersion


def _git_state(spec: StudySpec) -> tuple[str, bool]:
    files = code_files(list(spec.functions.values()), spec.pythonpath)
    if not files:
        return "", False
    # Nothing that the repository's own settings name is started.
    git = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        done = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=files[0].path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=without_private_settings(os.environ) | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", False
    commit, _, dirty = done.stdout.strip().partition("-")
    return commit, bool(dirty)


FOLDER = "provenance"
"""In the study's folder, and in the files of its run."""
VERSIONS = "versions.json"


def note_version(study_folder: Path, spec: StudySpec, entry: int) -> None:
    """Add what is there now, unless it is what the latest controller found.

    Args:
        entry: number of journal entries there are.

    Raises:
        OSError: the folder cannot be written.
    """
    if spec.objective is None:
        return
    names = {f"{found.metadata['Name']}=={found.version}\n" for found in importlib.metadata.distributions()}
    packages = "".join(sorted(names, key=str.lower)).encode()
    commit, dirty = _git_state(spec)
    version = CodeVersion(
        python=platform.python_version(),
        platform=platform.platform(),
        requirements=f"requirements-{hashlib.sha256(packages).hexdigest()[:8]}.txt",
        commit=commit,
        dirty=dirty,
    )
    known = read_versions(study_folder)
    if known and known[-1].version == version:
        return
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / version.requirements, packages)
    noted = [*known, Noted(entry, version)]
    write_private(folder / VERSIONS, msgspec.json.format(msgspec.json.encode(noted), indent=1))


def read_versions(study_folder: Path) -> list[Noted]:
    try:
        return msgspec.json.decode((study_folder / FOLDER / VERSIONS).read_bytes(), type=list[Noted])
    except (OSError, msgspec.MsgspecError):
        return []


MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest entry that is read."""
MAX_BYTES = 256 * 1024 * 1024
"""Largest compressed copy that is read: some millions of entries."""


def read_copy(path: Path) -> Iterator[Entry]:
    """The entries of a copy, each decoded.

    Raises:
        JournalError: it is no gzip file, ends early, or is too large.
    """
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise JournalError(
                        f"{path.name} has an entry of more than {MAX_LINE_BYTES:,} bytes; this package writes none."
                    )
                yield decode_entry(line)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(
            f"{path.name} cannot be unpacked ({error}): the upload is damaged. Where the study's home still is, "
            "`hpo project NAME --rebuild` uploads it again."
        ) from error


JOURNAL = "journal.jsonl.gz"
STUDY_FILE = "study.yaml"
ENTRIES_TAG = "hpo.journal_entries"
_GZIP = 31
"""Window bits with a gzip header, in which zlib leaves the time at 0: the same entries are the same bytes."""


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
        self._versions = 0

    def add(self, entry: Entry) -> None:
        self._packed += self._packer.compress(json_text(encode_entry(entry)).encode() + b"\n")
        self.entries += 1

    def packed(self) -> bytes:
        """A gzip file of the lines."""
        return bytes(self._packed) + self._packer.copy().flush()

    def write(self, store: RunStore, run: KnownRun, spec: StudySpec, study_folder: Path) -> None:
        """Upload what is not there yet: files first, then the tags that say so."""
        versions = read_versions(study_folder)
        tags: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="hpo-provenance-") as side:
            folder = Path(side)
            if versions and len(versions) != self._versions:
                source = study_folder / FOLDER
                for file in [source / VERSIONS, *source.glob("requirements-*.txt")]:
                    (folder / file.name).write_bytes(file.read_bytes())
                if (latest := versions[-1].version).commit:
                    tags |= {"mlflow.source.git.commit": latest.commit, "hpo.code_dirty": str(latest.dirty).lower()}
            if run.tags.get(ENTRIES_TAG) != str(self.entries):
                (folder / JOURNAL).write_bytes(self.packed())
                (folder / STUDY_FILE).write_text(study_file(spec))
                tags[ENTRIES_TAG] = str(self.entries)
            if not any(folder.iterdir()):
                return
            store.upload(run, folder, FOLDER)
        self._versions = len(versions)
        store.log(run, tags=tags)
