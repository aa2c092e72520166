"""A Dask scheduler and workers that somebody else started: processes on this machine, which tests stop and kill."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
_END_SECONDS = 600
"""Longest wait for processes that were killed, on a busy machine."""


def trainings_of(zygote: psutil.Process) -> list[psutil.Process]:
    """Its children but for one that was forked ahead and waits for its request."""
    return [
        child for child in zygote.children() if "pipe_read" not in Path(f"/proc/{child.pid}/wchan").read_text("latin-1")
    ]


class DaskProcesses:
    """A scheduler and workers; each process has a folder of its own, as on another machine.

    Args:
        folder: for these folders, each with a ``log``.
        workers: names of those that start at once.
    """

    def __init__(self, folder: Path, *workers: str) -> None:
        self._folder = folder
        self.workers: dict[str, psutil.Popen] = {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start("scheduler", "scheduler", "--port", str(port))
        for name in workers:
            self.add_worker(name)

    @property
    def cluster(self) -> dict[str, Any]:
        return {"kind": "address", "address": self.address}

    def add_worker(
        self,
        name: str,
        *,
        threads: int = 1,
        nanny: bool = False,
        environment: Mapping[str, str] = {},
        hidden: Path | None = None,
    ) -> psutil.Popen:
        """Start a worker.

        Args:
            nanny: whether it is a child of a process that starts another one when it ends, as it is by default in Dask.
            environment: variables of it.
            hidden: a folder that is empty for it.
        """
        words = [self.address, "--name", name, "--nthreads", str(threads), "--local-directory", f"{name}-scratch"]
        words += [] if nanny else ["--no-nanny"]
        self.workers[name] = self._start(name, "worker", *words, environment=environment, hidden=hidden)
        return self.workers[name]

    def training(self) -> list[psutil.Process]:
        """The workers a zygote of which runs a child."""
        found = []
        for worker in self.workers.values():
            try:
                if any(map(trainings_of, worker.children())):
                    found.append(worker)
            except (psutil.NoSuchProcess, OSError):  # it ended while it was looked at
                continue
        return found

    def name_of(self, child: psutil.Process) -> str:
        above = {process.pid for process in child.parents()}
        (name,) = (name for name, worker in self.workers.items() if worker.pid in above)
        return name

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        left = []
        for process in (*self.workers.values(), self.scheduler):
            if process.is_running():
                left += [process, *process.children(recursive=True)]
        for process in left:
            if process.is_running():
                process.kill()
        psutil.wait_procs(left, timeout=_END_SECONDS)

    def _start(
        self, name: str, kind: str, *words: str, environment: Mapping[str, str] = {}, hidden: Path | None = None
    ) -> psutil.Popen:
        folder = self._folder / name
        folder.mkdir(parents=True)
        where = ("--host", "127.0.0.1", "--no-dashboard")
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *where, *words]
        if hidden is not None:
            script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, "sh", str(hidden), *command]
        with (folder / "log").open("wb") as log:
            return psutil.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)} | environment,
            )  # fmt: skip
