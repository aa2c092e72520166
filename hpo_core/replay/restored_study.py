"""Puts a study back from a copy of its journal: ``hpo import FILE``.

A file is not trusted. Sizes are limited, names of files are ours, and the journal must replay. Settings that lead
elsewhere are replaced: code comes from folders that the caller names, trainings run on local workers, checkpoints lie
in the home, and under its own name the study is not copied to MLflow again. No code is run.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.home import Home, checked_name
from hpo_core.journal.codec import decode_entry
from hpo_core.model.errors import JournalError, StudyExistsError
from hpo_core.model.events import Entry, StudyCreated, StudyRequested
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.study import Study

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest entry that is read."""
MAX_BYTES = 256 * 1024 * 1024
"""Largest compressed copy that is read: some millions of entries."""


def read_copy(path: Path) -> Iterator[Entry]:
    """The entries of a copy, each decoded; it may be compressed by gzip.

    Raises:
        JournalError: it holds no entries, ends early, or is too large.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise JournalError(f"{path} has {size:,} bytes; at most {MAX_BYTES:,} are read.")
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise JournalError(
                        f"{path.name} has an entry of more than {MAX_LINE_BYTES:,} bytes; this package writes none."
                    )
                yield decode_entry(line)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(
            f"{path} cannot be read ({error}). Where it is a damaged upload and the study's home still is, "
            "`hpo project NAME --rebuild` uploads it again."
        ) from error


class Restored(msgspec.Struct, frozen=True):
    """Result of a restore, and how this place differs from where the study ran."""

    study: str
    entries: int
    code: tuple[str, ...]
    """Folders that its training function is imported from now."""
    checkpoints_missing: int
    """Checkpoints that the journal counts as kept and that are not here."""

    def lines(self) -> list[str]:
        found = [
            f"{self.study}: {self.entries} entries imported",
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


def restore_study(home: Home, copy: Path, *, name: str | None = None, code: Sequence[str] = ()) -> Restored:
    """Put a study back from a copy of its journal.

    Args:
        copy: ``provenance/journal.jsonl.gz`` of its run in MLflow, or what ``hpo export`` wrote.
        name: another name than it had.
        code: folders to import its training function from.

    Raises:
        StudyExistsError: the home has a study of that name.
        JournalError: the copy is damaged.
        HpoError: the name is no study's.
    """
    study = Study.from_entries(read_copy(copy), sampler=RecordedSampler([]))
    name = checked_name(name or study.name)
    with closing(home.read_journal()) as source:
        if any(info.name == name for info in source.studies()):
            raise StudyExistsError(
                f"Study {name!r} exists already in this home; nothing was imported. Import it under another name with "
                "--name, or into another home with --home."
            )
    changes = _changes(study, name, code)
    journal = home.open_journal()
    try:
        journal.restore(name, (_adapted(entry, changes) for entry in read_copy(copy)))
        folder = home.study_folder(name, create=True)
        study = Study.open(name, journal, reading=True)
    finally:
        journal.close()
    return Restored(
        study=name,
        entries=study.seq,
        code=tuple(code),
        checkpoints_missing=sum(not (folder / uri).is_file() for uri in study.checkpoints.uris),
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
