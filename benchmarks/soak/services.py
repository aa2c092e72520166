"""Servers that the soak starts, breaks and starts again: PostgreSQL for the journal, a Prefect API."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

START_SECONDS = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgreSQL:
    """A server of our own on 127.0.0.1; every start after an immediate stop goes through its crash recovery."""

    def __init__(self, folder: Path) -> None:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not versions:
            raise SystemExit("PostgreSQL's server binaries are not installed; use --journal sqlite.")
        self._binaries = versions[-1].parent
        self._folder = folder
        folder.mkdir(parents=True)
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(folder, "postgres", "postgres")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(folder / "data"), "-U", "hpo", "-A", "trust")
        self.url = f"postgresql+psycopg://hpo@127.0.0.1:{self._port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._binaries / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=START_SECONDS)

    def start(self) -> None:
        command = [*self._as_user, str(self._binaries / "postgres"), "-D", str(self._folder / "data")]
        command += ["-p", str(self._port), "-h", "127.0.0.1", "-k", str(self._folder)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ready = [str(self._binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self._port)]
            if subprocess.run(ready, capture_output=True).returncode == 0:
                return
            time.sleep(0.2)
        raise RuntimeError(f"PostgreSQL does not answer; see {self._folder / 'server.log'}")

    def crash(self) -> None:
        """Immediate shutdown: no connection is told, nothing is written."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP to all its processes: it accepts connections and answers nothing."""
        if self._process is not None:
            family = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
            pause(family, seconds)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None


class PrefectApi:
    """``prefect server start`` on a port of our own, which the studies of a lane are configured for."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/api"
        self._environment = environment | {"PREFECT_HOME": str(folder), "PREFECT_API_URL": self.url}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self._port)]
        with (self._folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--no-ui"], stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError(f"The Prefect server does not answer; see {self._folder / 'server.log'}")

    def stop_for(self, seconds: float) -> None:
        if self.process is not None:
            pause([psutil.Process(self.process.pid)], seconds)

    def kill(self) -> None:
        if self.process is not None:
            with_group(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None


def pause(processes: list[psutil.Process], seconds: float) -> None:
    """SIGSTOP, and after so long SIGCONT."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)


def with_group(pid: int, number: int) -> None:
    """A signal to a process that leads a group of its own, and to the group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
