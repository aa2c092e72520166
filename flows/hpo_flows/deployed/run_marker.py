"""Run marker: a file in a study's folder that says what a flow run did there.

Prefect starts a flow run again from the top after a crash or a pause; the marker tells it what it did before. The
journal knows studies and controllers, and no flow runs.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec

from hpo_core.journal.protocol import Owner
from hpo_core.security.private_files import private_folder, write_private

_FOLDER = "flow-runs"


class RunMarker(msgspec.Struct, frozen=True, kw_only=True):
    """What one flow run did to one study."""

    began: bool = False
    """It began the study, and did not find it."""
    owner: Owner | None = None
    """Its last process."""
    train: tuple[int, int] | None = None
    """The trial to train further, and to what: "the best" may be another one when the run is started again."""
    configs: int | None = None
    """As many configurations as will have been asked for, beyond the study's own, once its wish is fulfilled."""


def read_marker(folder: Path, run: UUID) -> RunMarker | None:
    """None if the run was not here before."""
    try:
        return msgspec.json.decode((folder / _FOLDER / f"{run}.json").read_bytes(), type=RunMarker)
    except (OSError, msgspec.MsgspecError):
        return None


def write_marker(folder: Path, run: UUID, marker: RunMarker) -> None:
    """Replace it in one step, durably: the journal's next entry must not outlive it."""
    path = folder / _FOLDER / f"{run}.json"
    private_folder(path.parent, below=folder)
    write_private(path, msgspec.json.encode(marker), durable=True)


def run_of(folder: Path, owner: Owner) -> UUID | None:
    """The flow run whose last process this owner is."""
    for path in (folder / _FOLDER).glob("*.json"):
        run = UUID(path.stem)
        if (marker := read_marker(folder, run)) is not None and marker.owner == owner:
            return run
    return None
