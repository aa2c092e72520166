"""The process that feeds MLflow: gone soon after its controller was killed, and never two of them for long."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from hpo_core.journal.sql import SqlJournal
from hpo_core.tracking.follower import REQUEST, FollowRequest
from hpo_core.tracking.mlflow_client import open_client
from tests.conftest import World, fresh, make_spec
from tests.flows.conftest import LIMIT
from tests.waiting import eventually, gone

ROOT = Path(__file__).parents[2]
SOON = 200.0
"""Seconds: several times the 20 of patience and the 20 of a call that is not answered."""

CONTROLLER = """
import os, subprocess, sys, time
command, stay = sys.argv[2:], sys.argv[1]
follower = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
if stay == "heir" and os.fork() == 0:  # a process that outlives the controller and holds the pipe
    os.write(1, b"heir %d\\n" % os.getpid())  # one write each: both speak at once
    time.sleep(600)
    os._exit(0)
os.write(1, b"follower %d\\n" % follower.pid)
time.sleep(600)
"""


class Controller:
    """A process that starts a follower and does nothing else, so that it can be killed."""

    def __init__(self, folder: Path, uri: str, stay: str = "alone") -> None:
        journal = SqlJournal(f"sqlite:///{folder / 'journal.db'}")
        if not journal.studies():
            world = World(1)
            world.play(fresh(make_spec(), journal, world))
        place = str(folder / "study")
        request = FollowRequest(journal=journal.url, study="world", folder=place, uri=uri, experiment="--help")
        command = [sys.executable, "-m", "hpo_core.tracking.follower", place]
        journal.close()
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CONTROLLER, stay, *command], stdout=subprocess.PIPE, stderr=log, text=True,
                cwd=ROOT, env=os.environ | {REQUEST: msgspec.json.encode(request).decode()},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.pids: dict[str, int] = {}
        for _ in range(2 if stay == "heir" else 1):
            word, pid = self.process.stdout.readline().split()
            self.pids[word] = int(pid)
        self.follower = psutil.Process(self.pids["follower"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        for pid in self.pids.values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def hanging_server() -> Iterator[tuple[str, threading.Event]]:
    """An MLflow that takes every connection and never answers; its URL, and an event once somebody asked."""
    asked = threading.Event()
    kept: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            kept.append(connection)
            asked.set()

    threading.Thread(target=take, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    listening.close()
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("stay", ["alone", pytest.param("heir", marks=pytest.mark.slow)])
def test_a_follower_ends_soon_after_its_controller_was_killed(
    tmp_path: Path, hanging_server: tuple[str, threading.Event], stay: str
) -> None:
    """Where MLflow answers no call; and where something else holds its standard input."""
    uri, asked = hanging_server
    controller = Controller(tmp_path, uri, stay)
    try:
        assert asked.wait(LIMIT), controller.log.read_text()
        assert controller.follower.is_running()
        controller.kill()
        eventually(lambda: gone(controller.follower.pid), SOON, said=controller.log.read_text)
    finally:
        controller.end()


@pytest.mark.slow
def test_a_new_follower_ends_the_previous_one(
    tmp_path: Path, hanging_server: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")
    uri, asked = hanging_server
    older = Controller(tmp_path, uri)
    try:
        assert asked.wait(LIMIT), older.log.read_text()
        asked.clear()
        newer = Controller(tmp_path, uri)
        try:
            eventually(lambda: gone(older.follower.pid), SOON, said=older.log.read_text)
            assert asked.wait(LIMIT), newer.log.read_text()
            assert newer.follower.is_running()
        finally:
            newer.end()
    finally:
        older.end()


@pytest.mark.slow
@pytest.mark.parametrize("grown", [1, 100_000, 300_000])
def test_an_interrupted_creation_of_the_store_is_repaired(tmp_path: Path, grown: int) -> None:
    """MLflow's migrations are no transaction; cut short, they left a store that no MLflow could open again."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = f"from hpo_core.tracking.mlflow_client import open_client; open_client({uri!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)

    def size() -> int:
        files = [path for path in tmp_path.glob("*mlflow.db*") if not path.name.endswith((".lock", "-journal"))]
        return max((path.stat().st_size for path in files if path.exists()), default=0)

    eventually(lambda: size() >= grown or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert open_client(uri).search_experiments()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mlflow.db.first-use.lock", "mlflow.db"]
