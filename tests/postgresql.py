"""A PostgreSQL server of our own: on a free port of 127.0.0.1, stopped and started at will."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


def binaries() -> Path:
    """The folder of the server's programs; skips the test where they, or a user to run them as, are missing."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders or not (folders[-1] / "initdb").exists():
        pytest.skip("PostgreSQL server binaries (initdb, postgres) are not installed")
    if os.geteuid() == 0 and (  # the server refuses to run as root
        shutil.which("setpriv") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode
    ):
        pytest.skip("running as root without the user 'postgres' to start PostgreSQL as")
    return folders[-1]


class PostgreSQL:
    """Skips the test where its binaries, or a user it would run as, are missing. Remove it at the end.

    Its folder is no ``tmp_path``: every pytest of a user that starts makes their common parent private again, which
    shuts out a server that runs as another user.
    """

    def __init__(self) -> None:
        programs = binaries()
        pytest.importorskip("psycopg")
        folder = Path(tempfile.mkdtemp(prefix="hpo-postgresql-"))
        self._bin, self._folder, self._data = programs, folder, folder / "data"
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(folder, "postgres", "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "-D", self._data, "-U", "hpo", "-A", "trust", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://hpo@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self._folder}"
        self._run("pg_ctl", "start", "-D", self._data, "-l", self._folder / "log", "-o", options, "-w", "-t", "120")
        deadline = time.monotonic() + 600
        while self._call("pg_isready", "-h", "127.0.0.1", "-p", str(self.port)).returncode:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)

    def stop(self, how: str = "fast") -> None:
        """``fast`` lets go of all clients; ``immediate`` is as good as a crash. Harmless where it does not run."""
        self._call("pg_ctl", "stop", "-D", self._data, "-m", how, "-w", "-t", "120")

    def remove(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*self._as_user, str(self._bin / program), *map(str, arguments)]
        with (self._folder / "said").open("ab") as said:  # a pipe would be held open by the server
            done = subprocess.run(command, stdout=said, stderr=said, cwd=self._folder, timeout=600)
        return subprocess.CompletedProcess(command, done.returncode, "", (self._folder / "said").read_text()[-2000:])

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = self._call(program, *arguments)
        assert done.returncode == 0, (program, done.stderr)
