"""Flow runs of commands whose process was killed: nothing reports their end, so the next such process does.

A process that shows a study holds the lock of a file in ``HOME/shown-runs`` while it lives; the kernel gives it back
whatever ends the process. The next one of the same home, machine and Prefect server finds files that nobody locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import LockFile

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas import OrchestrationResult
    from prefect.client.schemas.objects import TaskRun


SHOWN_RUNS = "shown-runs"
"""Folder of a home."""
OWN_SERVER = "of this home"
"""The Prefect server of the home, which has another address each time."""
KILLED = "The process that showed this study was killed; whether the study went on, `hpo status` says."
_NEEDED_BY = "the process that shows a study in Prefect"
_PAGE = 200
log = logging.getLogger("hpo.prefect")


class ShownRun:
    """The file of a flow run that this process shows.

    Args:
        folder: of all such files.
        server: which Prefect; others have runs of their own.
    """

    def __init__(self, folder: Path, run: UUID, server: str) -> None:
        self._path = folder / f"{run}.{socket.gethostname()}"
        self._lock: LockFile | None = None
        with contextlib.suppress(StorageError):  # it is shown all the same
            self._lock = LockFile(self._path, _NEEDED_BY)
            if self._lock.take(fcntl.LOCK_EX):
                self._lock.write(server)

    def ended(self) -> None:
        """The flow run has its final state, or this process cannot give it one."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()


def report_killed_runs(client: SyncPrefectClient, folder: Path, server: str) -> list[UUID]:
    """Propose Crashed for runs, and their task runs, whose process is gone; returns those that took it.

    It is proposed, not forced: a run that has ended keeps its state. Prefect's server records a task run some time
    after it was told of it: a process that was killed just now may leave some that ``end_task_runs`` finds only later.
    """
    crashed = []
    for path, run in _killed(folder, server):
        if _report(client, run):
            crashed.append(run)
        path.unlink(missing_ok=True)
    return crashed


def end_task_runs(client: SyncPrefectClient, run: UUID) -> set[UUID]:
    """End the open task runs of a flow run whose process is gone: Crashed; returns all that it has.

    They give back their concurrency slots at once.
    """
    from prefect.states import Crashed

    found = read_task_runs(client, run)
    for task_run in found:
        if task_run.state is None or not task_run.state.is_final():
            client.set_task_run_state(task_run.id, Crashed(message=KILLED), force=True)
    return {task_run.id for task_run in found}


def read_task_runs(client: SyncPrefectClient, run: UUID) -> list[TaskRun]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    found: list[TaskRun] = []
    while page := client.read_task_runs(flow_run_filter=of_run, limit=_PAGE, offset=len(found)):
        found += page
    return found


def any_killed(folder: Path, server: str) -> bool:
    return next(_killed(folder, server), None) is not None


def _killed(folder: Path, server: str) -> Iterator[tuple[Path, UUID]]:
    for path in sorted(folder.glob(f"*.{socket.gethostname()}")):
        with contextlib.suppress(StorageError, ValueError, OSError):
            run = UUID(path.name.partition(".")[0])
            with contextlib.closing(LockFile(path, _NEEDED_BY)) as lock:
                if lock.take(fcntl.LOCK_EX) and lock.read() == server:  # an empty one is being made
                    yield path, run


def _report(client: SyncPrefectClient, run: UUID) -> bool:
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:  # deleted
        return False
    if state is None or state.is_final():
        return False
    end_task_runs(client, run)
    answer: OrchestrationResult[Any] = client.set_flow_run_state(run, Crashed(message=KILLED), force=False)
    log.warning("flow run %s was %s and its process is gone: Crashed", run, state.name)
    return answer.state is not None and answer.state.is_crashed()
