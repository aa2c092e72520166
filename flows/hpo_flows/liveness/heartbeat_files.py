"""Heartbeats of flow runs: a file per run in the home folder, touched by its worker and by its own process.

Facts of our own: no server receives or delays them, so they are as true under load, and while the Prefect server
is away, as at any other time. Workers that share a home see each other's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from hpo_core.security.private_files import private_folder, write_private

BEAT_SECONDS = 5.0
LIMIT_SECONDS = 120.0
"""Longer than a flow process lives on without heartbeats after its worker (``parent_watch.GRACE_SECONDS``)."""
LONGEST_LOOK = 30.0
"""Seconds between two looks of a monitor that counts what it sees."""
_FOLDER = "heartbeats"


def heartbeat_file(home: Path, run: UUID) -> Path:
    """The file that is touched for a flow run."""
    return home / _FOLDER / str(run)


def begin_heartbeats(home: Path, run: UUID, attempt: int) -> None:
    """Make the file of a flow run that a worker of this home starts.

    Args:
        attempt: the run's ``run_count`` while that process runs. A later one belongs to whoever started it: workers
            of one pool may have homes of their own.
    """
    path = heartbeat_file(home, run)
    private_folder(path.parent, below=home)
    with contextlib.suppress(OSError):
        write_private(path, str(attempt).encode())


def attempt_of(home: Path, run: UUID) -> int | None:
    """The attempt that the file is of; None where it does not say (earlier versions)."""
    try:
        return int(heartbeat_file(home, run).read_text())
    except (OSError, ValueError):
        return None


def beat(home: Path, run: UUID) -> None:
    """Touch the file of a flow run that has one; the absence of the file or its folder is no error."""
    with contextlib.suppress(OSError):
        heartbeat_file(home, run).touch(mode=0o600)


def forget(home: Path, run: UUID) -> None:
    """Remove the file of a flow run that has ended."""
    with contextlib.suppress(OSError):
        heartbeat_file(home, run).unlink(missing_ok=True)


class HeartbeatMonitor:
    """Finds flow runs whose file was not touched for ``LIMIT_SECONDS``.

    No clock but its own counts: times of other machines and of the file system are compared for equality only. If it
    did not look for a while (stopped, a machine that slept), the others may have been stopped as well, and it begins
    to count anew.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = home / _FOLDER
        self._clock = clock
        self._looked = clock()
        self._seen: dict[UUID, tuple[int, float]] = {}

    def silent_runs(self) -> list[UUID]:
        """Look at every file; returns the runs without a heartbeat for the limit, and then again after each limit."""
        now = self._clock()
        known = self._seen if now - self._looked <= LONGEST_LOOK else {}
        self._looked = now
        self._seen = {}
        for run, touched in self._files().items():
            before = known.get(run)
            self._seen[run] = before if before is not None and before[0] == touched else (touched, now)
        silent = [run for run, (_, since) in self._seen.items() if now - since >= LIMIT_SECONDS]
        self._seen |= {run: (self._seen[run][0], now) for run in silent}
        return silent

    def _files(self) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        with contextlib.suppress(OSError):  # no folder: no run was started yet
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError, ValueError):  # it ended meanwhile; a file of somebody else
                    found[UUID(path.name)] = path.stat().st_mtime_ns
        return found
