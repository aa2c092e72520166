"""Files that reproduce a study, uploaded with its run: code version, packages, the journal as compressed lines.

``hpo import --from-mlflow`` puts a study back from them into a home that does not have it. What is downloaded is not
trusted. Sizes are limited, names of files are ours, and the journal must replay. Settings that lead elsewhere are
replaced: code comes from folders that the caller names, trainings run on local workers, checkpoints lie in the home,
and under its own name the study is not copied to MLflow again. No code is run.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.home import Home, checked_name
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import HpoError, JournalError, StudyExistsError, StudyNotFoundError
from hpo_core.model.events import Entry, StudyCreated, StudyRequested
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.security.masking import without_credentials, without_private_settings
from hpo_core.security.private_files import private_folder, write_private
from hpo_core.security.untrusted_text import json_text
from hpo_core.spec import StudySpec
from hpo_core.spec.module_source import code_files
from hpo_core.spec.study_yaml import as_yaml
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import (
    KnownRun,
    RunStore,
    errors_without_credentials,
    open_client,
    prepare_environment,
)

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


_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Restored(msgspec.Struct, frozen=True):
    """Result of a restore, and how this place differs from where the study ran."""

    study: str
    entries: int
    run: str
    code: tuple[str, ...]
    """Folders that its training function is imported from now."""
    checkpoints_missing: int
    """Checkpoints that the journal counts as kept and that are not here."""

    def lines(self) -> list[str]:
        """Lines for people."""
        found = [
            f"{self.study}: {self.entries} entries imported from MLflow run {self.run}",
            f"code: imported from {', '.join(self.code)}",
            "it trains on local workers, with checkpoints in this home; under its old name it is not copied to MLflow",
        ]
        if self.checkpoints_missing:
            found.append(
                f"checkpoints: {self.checkpoints_missing} that the study kept are not here; a resume would train those "
                "trials from their start"
            )
        found.append(f"next: hpo audit {self.study}; hpo show {self.study}; hpo rerun {self.study} --as NEW")
        return found


def restore_study(
    home: Home, run_id: str, *, tracking_uri: str, name: str | None = None, code: Sequence[str] = ()
) -> Restored:
    """Put a study back from its run.

    Args:
        name: another name than it had.
        code: folders to import its training function from.

    Raises:
        StudyExistsError: the home has a study of that name.
        JournalError: the journal is damaged.
        HpoError: the run is not a study's, has no journal, or MLflow cannot be reached.
    """
    if not _RUN.fullmatch(run_id):
        raise HpoError(f"{run_id[:100]!r} is no ID of an MLflow run. The page of the study's run shows it.")
    prepare_environment()
    with errors_without_credentials(), tempfile.TemporaryDirectory() as side:
        client = open_client(tracking_uri)
        tags = client.get_run(run_id).data.tags
        if tags.get("hpo.kind") != "study":
            raise HpoError(
                f"MLflow run {run_id} at {without_credentials(tracking_uri)} is not that of a study (tag hpo.kind = "
                f"{tags.get('hpo.kind')!r}). Give the run that holds the trials' runs, not one of a trial."
            )
        name = checked_name(name or tags.get("hpo.study", ""))
        refuse_taken(home, name)
        packed = _fetch_journal(client, run_id, Path(side))
        study = Study.from_entries(read_copy(packed), sampler=RecordedSampler([]))
        changes = _changes(study, name, code)
        journal = home.open_journal()
        try:
            journal.restore(name, (_adapted(entry, changes) for entry in read_copy(packed)))
            folder = home.study_folder(name, create=True)
            study = Study.open(name, journal, reading=True)
        finally:
            journal.close()
    return Restored(
        study=name,
        entries=study.seq,
        run=run_id,
        code=tuple(code),
        checkpoints_missing=sum(not (folder / uri).is_file() for uri in study.checkpoints.uris),
    )


def _fetch_journal(client: Any, run_id: str, into: Path) -> Path:
    name = f"{FOLDER}/{JOURNAL}"
    said = {str(item.path): int(item.file_size or 0) for item in client.list_artifacts(run_id, FOLDER)}
    if name not in said:
        raise HpoError(
            f"MLflow run {run_id} has no file {name}: its first upload is still to come. Where the study's home is, "
            "`hpo project NAME` uploads it."
        )
    if said[name] <= MAX_BYTES:
        path = Path(client.download_artifacts(run_id, name, str(into)))
        if path.resolve().is_relative_to(into.resolve()) and not path.is_symlink() and path.is_file():
            return path
    raise HpoError(
        f"{name} of MLflow run {run_id} has {said[name]:,} bytes or is no file; at most {MAX_BYTES:,} are fetched."
    )


def refuse_taken(home: Home, name: str) -> None:
    source = home.read_journal()
    try:
        source.info(name)
    except StudyNotFoundError:
        return
    finally:
        source.close()
    raise StudyExistsError(
        f"Study {name!r} exists already in this home; nothing was imported. Import it under another name with --name, "
        "or into another home with --home."
    )


def _changes(study: Study, name: str, code: Sequence[str]) -> dict[str, Any]:
    plain = study.spec.plain()
    return {
        "study": name,
        "pythonpath": [str(Path(folder).resolve()) for folder in code],
        "cluster": plain["cluster"] if study.spec.cluster.kind == "local" else {"kind": "local"},
        "checkpoints": plain["checkpoints"] | {"folder": None},
        "tracking": {"mlflow": "off" if name == study.spec.study else None},
    }


def _adapted(entry: Entry, changes: Mapping[str, Any]) -> Entry:
    asked = entry.stimulus
    if entry.seq or type(asked) is not StudyRequested:
        return entry
    events = tuple(
        StudyCreated({**event.spec, **changes}) if type(event) is StudyCreated else event for event in entry.events
    )
    return msgspec.structs.replace(entry, stimulus=StudyRequested({**asked.spec, **changes}), events=events)
