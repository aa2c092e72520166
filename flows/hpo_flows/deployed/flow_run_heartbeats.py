"""Heartbeats of flow runs: a file per run in the home folder, touched by its worker and by its own process.

Facts of our own: no server receives or delays them, so they are as true under load, and while the Prefect server
is away, as at any other time. Workers that share a home see each other's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hpo_core.model.process_start import lives
from hpo_core.security.private_files import private_folder, write_private

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas import OrchestrationResult


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


def attempt_of(home: Path, run: UUID) -> int:
    """The attempt that the file is of."""
    return int(heartbeat_file(home, run).read_text())


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


NO_HEARTBEAT = (
    f"No heartbeat for {LIMIT_SECONDS:.0f} s: its process and its worker are gone. Retry it, or run `resume`."
)
log = logging.getLogger("hpo.heartbeats")


async def report_silent_run(client: PrefectClient, home: Path, run: UUID) -> str:
    """Propose Crashed for a run without heartbeats that has not ended; returns what came of it.

    A run that waits (scheduled, paused) needs no process; whoever takes it up again begins with a heartbeat.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    try:
        found = await client.read_flow_run(run)
    except ObjectNotFound:
        return "unknown"  # deleted, or of another server with the same home
    try:
        attempt = attempt_of(home, run)
    except (OSError, ValueError):
        return "ended meanwhile"
    state = found.state
    if found.run_count > attempt:
        forget(home, run)
        return "started again elsewhere"
    if state is None or state.is_scheduled() or state.is_paused() or state.is_final():
        forget(home, run)
        return "has no process"
    answer: OrchestrationResult[Any] = await client.set_flow_run_state(run, Crashed(message=NO_HEARTBEAT), force=False)
    if answer.state is None or not answer.state.is_crashed():
        return "refused"
    log.warning("flow run %s was %s and sends no heartbeat: Crashed", run, state.name)
    return "crashed"


GRACE_SECONDS = 45.0
"""How long a study may take to halt. The profiles give their worker 60 seconds and more."""
CHECK_SECONDS = 0.2
WATCHED = "HPO_WORKER"
"""Environment of a flow process: pid and start time of its worker."""


def end_with_worker() -> None:
    """Watch the worker that started this flow process; once it has ended, halt as an interrupt does.

    Without a worker of ours (the command line, another work pool) nothing is watched.
    """
    if WATCHED not in os.environ:
        return
    pid, born = os.environ.pop(WATCHED).split()  # once; and nothing that is started from here is the worker's child
    threading.Thread(target=_watch, args=(int(pid), float(born)), name="worker-watch", daemon=True).start()


def _watch(pid: int, born: float) -> None:
    home, run = Path(os.environ["HPO_HOME"]), UUID(os.environ["PREFECT__FLOW_RUN_ID"])
    due = time.monotonic()
    while lives(pid, born):
        if time.monotonic() >= due:
            beat(home, run)
            due = time.monotonic() + BEAT_SECONDS
        time.sleep(CHECK_SECONDS)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # pipes that the worker read: a line written now would raise where nobody expects it
        os.dup2(nowhere, stream)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
