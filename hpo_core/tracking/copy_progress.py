"""Progress of the copy of a study in MLflow: a file in the study's folder, which others read and wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hpo_core.security.private_files import write_private

NOT_SAID_SECONDS = 2.0
"""A wait that is shorter needs no words."""
SAID_EVERY_SECONDS = 5.0


_NAME = "mlflow.copy"


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a study that MLflow holds."""

    trials: int = 0
    """Trials whose runs hold everything that was read of the journal."""
    entries: int = 0
    """Entries of the journal that it holds."""
    complete: bool = False
    """It holds the whole journal, last statuses and files included, of a study that nobody drives."""
    trouble: str = ""
    """Why the last attempt to reach it failed; empty where it did not."""
    process: int = 0
    """The process that says so; 0: one that is about to begin."""

    def words(self, of: int) -> str:
        """Such as ``copying to MLflow: 31 of 60 trials``."""
        if self.trouble:
            return f"copying to MLflow: not now ({self.trouble}); it is tried again"
        files = ", files are left" if 0 < of <= self.trials else ""
        return f"copying to MLflow: {min(self.trials, of):,} of {of:,} trials{files}"


def note_progress(folder: Path, progress: CopyProgress) -> None:
    with contextlib.suppress(OSError):
        write_private(folder / _NAME, msgspec.json.encode(progress))


def read_progress(folder: Path) -> CopyProgress | None:
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=CopyProgress)
    except (OSError, msgspec.MsgspecError):
        return None


def in_trouble(folder: Path) -> bool:
    found = read_progress(folder)
    return found is not None and bool(found.trouble)


def incomplete_copies(studies: Path) -> list[str]:
    """Studies of a home whose copy somebody began and nobody completed.

    Args:
        studies: the home's folder of all studies.
    """
    return [
        file.parent.name
        for file in sorted(studies.glob(f"*/{_NAME}"))
        if (progress := read_progress(file.parent)) is not None and not progress.complete
    ]


def wait_for_copy(
    folder: Path,
    *,
    by: int | None,
    trials: int,
    seconds: float,
    say: Callable[[str], None],
    goes_on: Callable[[], bool],
    one_attempt: bool = False,
) -> str:
    """Wait until MLflow holds everything of a study; returns why it does not, empty where it does.

    Args:
        by: the process that has to say so; None: whichever.
        trials: trials of the study.
        seconds: longest wait.
        say: told how far it is, every few seconds.
        goes_on: whether the process that copies is alive.
        one_attempt: wait no longer once MLflow could not be reached.
    """
    began = time.monotonic()
    said, words = began + NOT_SAID_SECONDS - SAID_EVERY_SECONDS, ""
    while True:
        alive = goes_on()  # before its last words are read
        found = read_progress(folder) or CopyProgress()
        if found.complete and by in (None, found.process):
            return ""
        holds = f"it holds {min(found.trials, trials):,} of {trials:,} trials"
        now = time.monotonic()
        if not alive or (one_attempt and found.trouble):
            return f"{holds}; {found.trouble or f'its process ended, see {folder}/mlflow.log'}"
        if now - began >= seconds:
            return f"{holds}; {found.trouble or f'that took longer than {seconds:.3g} s, and goes on'}"
        if now - said >= SAID_EVERY_SECONDS and (now_said := found.words(trials)) != words:
            said, words = now, now_said
            say(words)
        time.sleep(min(0.1, max(0.0, began + seconds - now)))
