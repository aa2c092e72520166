"""The tutorials, followed to the letter: their commands in their order, on a server and a worker of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployed.test_profiles import sourced
from tests.docs.test_pages import blocks, typed
from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask
from tests.slurm.one_node import free_ports
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
PROFILE = "set -a; . deployments/local/environment; set +a"


def commands() -> list[str]:
    """Every line that a reader of the tutorial about retraining types, without its comment."""
    page = TUTORIALS / "retrain-on-a-schedule.md"
    return [line for _, language, text in blocks(page) if language == "console" for line in typed(text)]


class Reader:
    """A shell in a folder that holds what the repository holds, with the tutorial's environment but free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("examples", "deployments"):
            shutil.copytree(ROOT / name, folder / name)
        (port,) = free_ports(1)
        self.api = f"http://127.0.0.1:{port}/api"
        self.environment = (
            {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HPO_", "MLFLOW_"))}
            | sourced(folder)
            | {"PREFECT_API_URL": self.api, "PREFECT_SERVER_API_PORT": str(port), "HOME": str(folder)}
            | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}", "COLUMNS": "200"}
        )
        self.without_profile = {
            name: value for name, value in self.environment.items() if not name.startswith(("PREFECT_", "HPO_"))
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> str:
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str) -> None:
        log = (self.folder / f"{shlex.split(command)[0]}.log").open("ab")
        self.started.append(
            subprocess.Popen(shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        )

    def interrupt(self, command: str) -> str:
        """Press Ctrl-C once it has said a result, or that Ctrl-C ends it."""
        with (self.folder / "interrupted.log").open("w+") as log:
            process = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
            said = Path(log.name).read_text
            ready = re.compile(r"rung \d+\): val_loss|Ctrl-C ends it")
            eventually(lambda: ready.search(said()), process=process, said=said)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) in (0, 130), said()
            return said()

    def wait_for_server(self) -> None:
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                urllib.request.urlopen(f"{self.api}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline, (self.folder / "prefect.log").read_text()
                time.sleep(0.5)

    def artifact(self, key: str) -> str:
        wanted = {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC", "limit": 1}
        return str(ask(self.environment, "artifacts/filter", wanted)[0]["data"])


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    for process in reversed(made.started):
        process.terminate()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.slow
def test_the_first_search_followed_to_the_letter(reader: Reader) -> None:
    page, profile, said = TUTORIALS / "first-search.md", reader.environment, ""
    reader.environment = reader.without_profile
    for comment, language, text in blocks(page):
        if comment.startswith("file: "):
            (reader.folder / comment.removeprefix("file: ")).write_text(text)
        for command in typed(text) if language == "console" else ():
            if command.endswith(PROFILE):
                reader.environment = profile
            elif command == "make setup" or command.startswith(". "):
                continue  # which is done: this runs in what it made
            elif command == "prefect server start":
                reader.start(command)
                reader.wait_for_server()
            elif command == "hpo worker":
                reader.start(command)
            elif comment == "interrupted":
                said = reader.interrupt(command)
            else:
                said = reader.run(command)
                if command == "hpo resume sine":
                    assert "sine finished: 330 trials" in said
        if comment == "interrupted" and "hpo ui" in text:
            assert re.search(r"Prefect: http\S+ \(password \S+\)\nMLflow:  http\S+ \(user hpo, password", said)
    assert "status: finished" in said or "finished" in said, said


@pytest.mark.slow
def test_retraining_followed_to_the_letter(reader: Reader) -> None:
    typed = commands()
    assert typed[0] == "make setup", "which is done: this runs in what it made"
    server = typed.index("prefect server start")
    worker = typed.index("hpo worker")
    deploy = typed.index("hpo deploy")
    look = next(n for n, line in enumerate(typed) if line.startswith("hpo list"))
    reader.start(typed[server])
    reader.wait_for_server()
    said: dict[str, str] = {}
    for n, line in enumerate(typed[deploy - 1 :], deploy - 1):
        if line == typed[worker] or (n >= look and line.startswith("mlflow ui")):
            continue
        said[line] = reader.run(line)
        if n == deploy:
            reader.start(typed[worker])
        if line.startswith("prefect deployment run retrain/retrain"):
            words = reader.artifact("digits-decision")
            assert "version 1 stays champion" in words and "challenger, tuned" not in words
        if line.startswith("prefect deployment run retrain/digits-nightly"):
            assert "the challenger became champion" in reader.artifact("digits-decision")
    assert "digits-first" in said["hpo list"]
    again = next(line for line in typed if line.startswith("prefect deployment run retrain/digits-nightly"))
    reader.run(again)
    wanted = {"flow_runs": {"name": {"like_": "retrain-digits"}}, "sort": "START_TIME_DESC", "limit": 1}
    assert "the data have not changed" in ask(reader.environment, "flow_runs/filter", wanted)[0]["state"]["message"]
    schedules = ask(reader.environment, "deployments/name/retrain/digits-nightly")["schedules"]
    assert [item["schedule"]["cron"] for item in schedules] == ["0 3 * * *"]
