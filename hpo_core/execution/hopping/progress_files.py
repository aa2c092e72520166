"""How far the jobs under way have come, in the study's folder: what a crash of the controller does not undo."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints.paths import HOPS
from hpo_core.checkpoints.storage import local_path, remove
from hpo_core.model.errors import HpoError, StorageError
from hpo_core.model.hops import Visit
from hpo_core.model.trial import Checkpoint, Job, Point
from hpo_core.security.private_files import check_folder, open_private, private_folder


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A job at the end of an epoch before its last one."""

    origin: str | None
    """URI of the checkpoint that the job started from."""
    params: dict[str, Any]
    epoch: int
    """Epochs that the trial has behind it."""
    state: Checkpoint
    visits: tuple[Visit, ...]
    together: tuple[int, ...] = ()
    """Ranks of the units that these are of; empty where all have one."""
    points: tuple[Point, ...]
    elapsed: float
    """Seconds that its units took."""
    unrestored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_MOST_BYTES = 1 << 30
_progress = msgspec.msgpack.Decoder(Progress)


class ProgressFiles:
    """Reads and writes them below one study's folder.

    Args:
        folder: of the study.
    """

    def __init__(self, folder: str | Path) -> None:
        self._root = Path(folder)

    def save(self, trial: int, progress: Progress) -> None:
        """Write it; it survives the end of this process, and need not survive a crash of the computer.

        After that an older one, or none, is found, and more is repeated: no wait for the disk here, for the caller may
        be the thread that hears of all other units.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._path(trial)
        partial = path.with_suffix(".part")
        try:
            private_folder(path.parent, below=self._root)
            with open_private(partial, "wb") as file:
                file.write(msgspec.msgpack.encode(progress))
            partial.replace(path)
        except OSError as error:
            raise StorageError(
                f"Progress of trial {trial} ({path}) cannot be written: {error.strerror or error}. Free space on that "
                "disk or make the folder writable, then resume the study."
            ) from error

    def find(self, job: Job) -> Progress | None:
        """What an earlier attempt at the job left; None where there is nothing that it can go on from."""
        found = self.read(job.trial)
        if found is None:
            return None
        try:
            state = local_path(self._root, found.state.uri, HOPS)
        except HpoError:
            return None
        start = job.checkpoint.resource if job.checkpoint else 0
        origin = job.checkpoint.uri if job.checkpoint else None
        fits = found.origin == origin and found.params == job.params and start < found.epoch < job.target
        return found if fits and state is not None and state.is_file() else None

    def read(self, trial: int) -> Progress | None:
        """What was saved last; None where nothing is there, or nothing that can be read."""
        path = self._path(trial)
        try:
            check_folder(path.parent, below=self._root)
            with open_private(path, "rb") as file:
                return _progress.decode(file.read(_MOST_BYTES))
        except (OSError, msgspec.MsgspecError, HpoError):
            return None

    def remove_state(self, state: Checkpoint) -> None:
        """Remove the state that a unit left, once nothing can need it."""
        if state.uri.startswith(f"{HOPS}/"):
            remove(self._root, state.uri, HOPS)

    def remove(self, trial: int) -> None:
        """Remove all that a job left that has ended."""
        self._remove_folder(self._path(trial).parent)

    def keep_only(self, trials: Iterable[int]) -> None:
        """Remove what jobs left that are not under way any more."""
        kept = {self._path(trial).parent.name for trial in trials}
        top = self._root / HOPS
        for folder in [] if top.is_symlink() or not top.is_dir() else list(top.iterdir()):
            if folder.name not in kept:
                self._remove_folder(folder)

    def _remove_folder(self, folder: Path) -> None:
        if not folder.is_symlink() and not folder.parent.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, trial: int) -> Path:
        return self._root / HOPS / f"trial-{trial:05d}" / "progress.msgpack"
