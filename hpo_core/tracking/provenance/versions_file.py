"""The code versions of a study, kept in its folder: one for each time that its controller found other code."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpo_core.security.private_files import private_folder, write_private
from hpo_core.spec import StudySpec
from hpo_core.tracking.provenance.code_version import CodeVersion, find_code_version

FOLDER = "provenance"
"""In the study's folder, and in the files of its run."""
VERSIONS = "versions.json"
MAX_VERSIONS = 100
"""Of more, the first and the latest are kept."""


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
    version, packages = find_code_version(functions_of(spec), spec.pythonpath)
    known = read_versions(study_folder)
    if known and known[-1].version == version:
        return
    folder = private_folder(study_folder / FOLDER, below=study_folder)
    write_private(folder / version.requirements, packages.encode())
    known = [
        *known[: MAX_VERSIONS // 2],
        *known[MAX_VERSIONS // 2 :][-(MAX_VERSIONS // 2 - 1) :],
        Noted(entry, version),
    ]
    write_private(folder / VERSIONS, msgspec.json.format(msgspec.json.encode(known), indent=1))
    kept = {noted.version.requirements for noted in known}
    for file in folder.glob("requirements-*.txt"):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def functions_of(spec: StudySpec) -> tuple[str, ...]:
    """The functions that a study names, the training function first."""
    load = None if spec.data is None else spec.data.load
    return tuple(name for name in (spec.objective, spec.build, load) if name)


def read_versions(study_folder: Path) -> list[Noted]:
    """What was noted; empty where nothing (or nothing readable) was."""
    try:
        return msgspec.json.decode((study_folder / FOLDER / VERSIONS).read_bytes(), type=list[Noted])
    except (OSError, msgspec.MsgspecError):
        return []
