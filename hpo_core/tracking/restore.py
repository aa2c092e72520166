"""``hpo import --from-mlflow``: a study put back from its run in MLflow into a home that does not have it.

What is downloaded is not trusted. Sizes are limited, names of files are ours, the journal must have the digest that the
run notes and must replay. Settings that lead elsewhere are replaced: code comes from folders that the caller names,
trainings run on local workers, checkpoints lie in the home, and MLflow is the home's own. Nothing is imported or run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.home import Home, checked_name
from hpo_core.model.errors import HpoError, StudyExistsError, StudyNotFoundError
from hpo_core.model.events import Entry, StudyCreated, StudyRequested
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.security.masking import without_credentials
from hpo_core.security.tracking_servers import is_same
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import errors_without_credentials, open_client, prepare_environment
from hpo_core.tracking.provenance_files import (
    DIGEST_TAG,
    ENTRIES_TAG,
    FOLDER,
    JOURNAL,
    MAX_BYTES,
    read_copy,
)

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class RunFiles:
    """A study's run, and its journal there."""

    def __init__(self, tracking_uri: str, run_id: str) -> None:
        if not _RUN.fullmatch(run_id):
            raise HpoError(f"{run_id[:100]!r} is no ID of an MLflow run. The page of the study's run shows it.")
        self.run_id = run_id
        self._client = open_client(tracking_uri)
        run = self._client.get_run(run_id)
        self.tags: dict[str, str] = dict(run.data.tags)
        self._where = without_credentials(tracking_uri)
        if self.tags.get("hpo.kind") != "study":
            raise HpoError(
                f"MLflow run {run_id} at {self._where} is not that of a study (tag hpo.kind = "
                f"{self.tags.get('hpo.kind')!r}). Give the run that holds the trials' runs, not one of a trial."
            )

    def fetch_journal(self, into: Path) -> Path:
        """Download the journal.

        Raises:
            HpoError: the run has none, or one that is larger than any that this package writes.
        """
        name, limit = f"{FOLDER}/{JOURNAL}", MAX_BYTES + 1024
        said = {str(item.path): int(item.file_size or 0) for item in self._client.list_artifacts(self.run_id, FOLDER)}
        if name not in said:
            raise HpoError(f"MLflow run {self.run_id} at {self._where} has no file {name}.")
        if said[name] <= limit:
            path = Path(self._client.download_artifacts(self.run_id, name, str(into)))
            inside = path.resolve().is_relative_to(into.resolve()) and not path.is_symlink()
            if inside and path.is_file():
                return path
        raise HpoError(
            f"{name} of MLflow run {self.run_id} has {said[name]:,} bytes or is no file; at most {limit:,} are "
            "fetched. It was not written by this package."
        )


_DIGEST = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Restored(msgspec.Struct, frozen=True):
    """Result of a restore, and how this place differs from where the study ran."""

    study: str
    entries: int
    run: str
    code: tuple[str, ...]
    """Folders that its training function is imported from now."""
    commit: str
    """Git commit that the run notes; empty where it notes none."""
    replaced: tuple[str, ...]
    """Settings that were replaced, in words."""
    checkpoints_missing: int
    """Checkpoints that the journal counts as kept and that are not here."""

    def lines(self) -> list[str]:
        """Lines for people."""
        found = [f"{self.study}: {self.entries} entries imported from MLflow run {self.run}; their digest is right"]
        commit = f"; the run notes commit {self.commit[:12]}" if self.commit else ""
        found.append(f"code: imported from {', '.join(self.code)}{commit}")
        found += [f"replaced: {words}" for words in self.replaced]
        if self.checkpoints_missing:
            found.append(
                f"checkpoints: {self.checkpoints_missing} that the study kept are not here; a resume would train those "
                "trials from their start"
            )
        found.append(f"next: hpo audit {self.study}; hpo show {self.study}; hpo rerun {self.study} --as NEW")
        return found


def restore_study(
    home: Home,
    run_id: str,
    *,
    tracking_uri: str,
    name: str | None = None,
    code: Sequence[str] = (),
) -> Restored:
    """Put a study back from its run.

    Args:
        name: another name than it had.
        code: folders to import its training function from.

    Raises:
        StudyExistsError: the home has a study of that name.
        JournalError: the journal is damaged, or is not what the run vouches for.
        HpoError: the run is not a study's, has no journal, or MLflow cannot be reached.
    """
    prepare_environment()
    with errors_without_credentials(), tempfile.TemporaryDirectory() as side:
        source = RunFiles(tracking_uri, run_id)
        name = checked_name(name or source.tags.get("hpo.study", ""))
        refuse_taken(home, name)
        length, digest = _vouched(source)
        packed = source.fetch_journal(Path(side))
        study = Study.from_entries(read_copy(packed, length, digest), sampler=RecordedSampler([]))
        changes, replaced = _replacements(study, name, code, tracking_uri=tracking_uri, home=home)
        journal = home.open_journal()
        try:
            journal.restore(name, (_adapted(entry, changes) for entry in read_copy(packed, length, digest)))
            folder = home.study_folder(name, create=True)
            study = Study.open(name, journal, reading=True)
        finally:
            journal.close()
    commit = source.tags.get("mlflow.source.git.commit", "")
    return Restored(
        study=name,
        entries=length,
        run=run_id,
        code=tuple(code),
        commit=commit if _COMMIT.fullmatch(commit) else "",
        replaced=replaced,
        checkpoints_missing=sum(not (folder / uri).is_file() for uri in study.checkpoints.uris),
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


def _vouched(source: RunFiles) -> tuple[int, str]:
    length, digest = source.tags.get(ENTRIES_TAG, ""), source.tags.get(DIGEST_TAG, "")
    if not length.isdecimal() or len(length) > 12 or int(length) < 1 or not _DIGEST.fullmatch(digest):
        raise HpoError(
            f"MLflow run {source.run_id} holds no journal (tags {ENTRIES_TAG} and {DIGEST_TAG}): an older version "
            "wrote it, or its first upload is still to come. Where the study's home is, `hpo project NAME` uploads it."
        )
    return int(length), digest


def _replacements(
    study: Study, name: str, code: Sequence[str], *, tracking_uri: str, home: Home
) -> tuple[dict[str, Any], tuple[str, ...]]:
    spec, words = study.spec, []
    plain = spec.plain()
    changes: dict[str, Any] = {"study": name, "pythonpath": [str(Path(folder).resolve()) for folder in code]}
    if spec.cluster.kind != "local":
        words.append(f"cluster.kind = {spec.cluster.kind}: now two local workers")
    changes["cluster"] = plain["cluster"] if spec.cluster.kind == "local" else {"kind": "local"}
    if (place := spec.checkpoints.folder) is not None:
        words.append(f"checkpoints.folder = {place}: now in the home; those that are there are not used")
    changes["checkpoints"] = plain["checkpoints"] | {"folder": None}
    same_run = name == spec.study and is_same(home.default_tracking_uri, tracking_uri)
    if same_run:
        words.append("tracking.mlflow: off, for the run that it came from is its run in this MLflow")
    elif spec.tracking.mlflow is not None:
        words.append(f"tracking.mlflow = {spec.tracking.mlflow}: now the home's own")
    changes["tracking"] = plain["tracking"] | {"mlflow": "off" if same_run else None}
    if spec.tracking.parent_run is not None and not is_same(home.default_tracking_uri, tracking_uri):
        words.append(f"tracking.parent_run = {spec.tracking.parent_run}: now none, for that run is in another MLflow")
        changes["tracking"] |= {"parent_run": None}
    return changes, tuple(words)


def _adapted(entry: Entry, changes: dict[str, Any]) -> Entry:
    asked = entry.stimulus
    if entry.seq or type(asked) is not StudyRequested:
        return entry
    events = tuple(
        StudyCreated(event.spec | changes) if type(event) is StudyCreated else event for event in entry.events
    )
    return msgspec.structs.replace(entry, stimulus=StudyRequested(asked.spec | changes), events=events)
