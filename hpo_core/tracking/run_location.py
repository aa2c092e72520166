"""Small files that say where a study's MLflow run is, for reports and the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from hpo_core.security.private_files import write_private

_NAME = "mlflow.json"


class ProjectionPlace(msgspec.Struct, frozen=True):
    tracking_uri: str
    """Without its password."""
    experiment_id: str
    run_id: str
    url: str
    """A web page, or the command that serves one."""
    compare: str = ""
    """The same for the comparison of the best trials; noted when the study ends."""


def write_place(folder: Path, place: ProjectionPlace) -> None:
    """Replace the file in one step."""
    write_private(folder / _NAME, msgspec.json.encode(place))


def read_place(folder: Path) -> ProjectionPlace | None:
    """What was left there; None if nothing (or nothing readable) was."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=ProjectionPlace)
    except (OSError, msgspec.MsgspecError):
        return None


def note_trouble(folder: Path, reason: str, tracker: str = "MLflow") -> None:
    """Leave word that a tracker cannot be reached now (empty: it can), for whoever would wait for it."""
    with contextlib.suppress(OSError):
        if reason:
            write_private(_trouble(folder, tracker), reason.encode())
        else:
            _trouble(folder, tracker).unlink(missing_ok=True)


def in_trouble(folder: Path, tracker: str = "MLflow") -> bool:
    """Whether the last attempt to reach a tracker failed."""
    return _trouble(folder, tracker).exists()


def _trouble(folder: Path, tracker: str) -> Path:
    return folder / f"{tracker.lower()}.trouble"
