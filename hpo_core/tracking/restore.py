"""``hpo import --from-mlflow``: a study put back from its run in MLflow into a home that does not have it.

What is downloaded is not trusted. Sizes are limited, names of files are ours, and the journal must replay. Settings
that lead elsewhere are replaced: code comes from folders that the caller names, trainings run on local workers,
checkpoints lie in the home, and under its own name the study is not copied to MLflow again. No code is run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.home import Home, checked_name
from hpo_core.model.errors import HpoError, StudyExistsError, StudyNotFoundError
from hpo_core.model.events import Entry, StudyCreated, StudyRequested
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.security.masking import without_credentials
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import errors_without_credentials, open_client, prepare_environment
from hpo_core.tracking.provenance_files import FOLDER, JOURNAL, MAX_BYTES, read_copy

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
