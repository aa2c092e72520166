"""The processes of a Dask cluster on this machine: found below this one, and ended for certain.

A stopped process (SIGSTOP, a debugger) reads no message and no SIGTERM; SIGKILL ends it as any other.
"""

from __future__ import annotations

import contextlib

import psutil

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
