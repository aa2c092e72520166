"""Worker processes on this machine: they are found below this process, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import multiprocessing.spawn
from typing import Any

import psutil

from hpo_core.model.errors import HpoError
from hpo_flows.dask.clusters.kind import ClusterKind, Settings


class ProcessKind(ClusterKind[Settings]):
    """A cluster whose worker processes are found below this one, and ended for certain."""

    def __init__(self, settings: Settings, study: str, folder: str) -> None:
        super().__init__(settings, study, folder)
        self._processes: LocalProcesses | None = None

    def connect(self) -> Any:
        """Start the cluster; see :meth:`ClusterKind.connect`."""
        self._processes = LocalProcesses()
        return super().connect()

    def abandon_start(self) -> None:
        """Kill the workers: one that does not come up keeps Dask's constructor waiting."""
        if self._processes is not None:
            self._processes.kill()

    async def replace_worker(self, client: Any, address: str) -> None:
        """Kill the worker's process with all that it started; its nanny starts another one."""
        nannies = list(self.cluster.workers.values())
        for pid in [nanny.pid for nanny in nannies if nanny.worker_address == address and nanny.pid is not None]:
            await asyncio.to_thread(kill_tree, pid)

    def remember_processes(self) -> None:
        """Note which processes there are, before they are asked to end."""
        if self._processes is not None:
            self._processes.remember()

    def close(self) -> None:
        """End the cluster, then kill what is left of its processes."""
        super().close()
        if self._processes is not None:
            self._processes.kill()
            self._processes = None


@functools.cache
def keep_main_from_workers() -> None:
    """Let worker processes that a nanny starts not import the script that runs now.

    Python's ``multiprocessing`` imports ``__main__`` anew in each process that it spawns. A script without
    ``if __name__ == "__main__":`` would begin its study again in every worker. Workers need nothing of it: functions
    of a script are sent by value.
    """
    prepare = multiprocessing.spawn.get_preparation_data

    def without_main(name: str) -> dict[str, Any]:
        found = prepare(name)
        if name.startswith("Dask Worker process"):
            found.pop("init_main_from_name", None)
            found.pop("init_main_from_path", None)
        return found

    multiprocessing.spawn.get_preparation_data = without_main


def refuse_child_import(call: str) -> None:
    """Refuse a call from a script that a process which it started imports again.

    Raises:
        HpoError: this process does that at the moment.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise HpoError(
            f"{call} is called while a process that the script started imports it again, and would start the study "
            'anew in each. Put what starts processes, and this call, below `if __name__ == "__main__":`.'
        )


_WORKERS = ("multiprocessing.spawn", "multiprocessing.forkserver")
_KILLED_SECONDS = 5.0


class LocalProcesses:
    """Worker processes that this process starts from now on, with all their descendants."""

    def __init__(self) -> None:
        self._before = set(_workers())
        self._seen: set[psutil.Process] = set()

    def remember(self) -> None:
        """Remember who is there: a descendant whose parent has ended is not found below us any more."""
        for worker in set(_workers()) - self._before:
            self._seen |= _tree(worker)

    def kill(self) -> None:
        """SIGKILL to all that were seen and still live."""
        self.remember()
        kill(self._seen)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all its descendants."""
    with contextlib.suppress(psutil.Error):
        kill(_tree(psutil.Process(pid)))


def kill(processes: set[psutil.Process]) -> None:
    """SIGKILL to these, if they are still the same processes, and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([process for process in processes if process.is_running()], timeout=_KILLED_SECONDS)


def _tree(process: psutil.Process) -> set[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return {process, *process.children(recursive=True)}
    return {process}


def _workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(word in part for part in child.cmdline() for word in _WORKERS):
                found.append(child)
    return found
