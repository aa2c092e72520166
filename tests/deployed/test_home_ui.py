"""``hpo ui``: the list of reports, and with real servers who reaches them and how they end."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpo_core.home import Home
from hpo_core.report.study_page import ReportFiles
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.prefect_pages.read_back import KILLED, TAG
from tests.cli.test_console import played
from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask
from tests.methods import spec_of

PATIENCE = 600


def test_the_list_names_studies_and_follows_those_that_run(tmp_path: Path) -> None:
    """Also where a study is called like a method, which stands in each row."""
    played(tmp_path, spec_of("random", study="later"))
    home = Home(tmp_path)
    files = ReportFiles(home)
    files.write()
    page = files.path.read_text()
    assert "later" in page and "finished" in page and "<a " not in page, "it has no report"
    assert len(page) < 100_000, "without Plotly"
    played(tmp_path, spec_of("random", study="random"), steps=2)
    files.write()
    page = files.path.read_text()
    assert page.count("<a ") == 1 and 'data-label="study"><a href="studies/random/report.html">random</a>' in page
    report = home.report_path("random").read_text()
    assert "random – report" in report and "../../studies.html" in report


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str], Path]]:
    played(tmp_path, spec_of("random"))
    process = started(tmp_path)
    yield process, until_ready(process), tmp_path
    process.kill()
    process.wait(timeout=LIMIT)


def started(home: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "hpo_flows", "ui", "--home", str(home)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONUNBUFFERED": "1", "PREFECT_HOME": str(home / "none")},
    )


def until_ready(process: subprocess.Popen[str]) -> list[str]:
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if "Ctrl-C" in line:
            return lines
    raise AssertionError(f"it ended: {lines}")


def status_of(url: str, **headers: str) -> int:
    return answer_of(url, **headers)[0]


def answer_of(url: str, **headers: str) -> tuple[int, str]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
                return int(answer.status), answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_is_private_and_ends_with_the_command(
    how: signal.Signals, served: tuple[subprocess.Popen[str], list[str], Path]
) -> None:
    process, lines, home = served
    said = "\n".join(lines)
    prefect, mlflow = (re.findall(rf"{name}: +(http://127\.0\.0\.1:\d+)", said)[0] for name in ("Prefect", "MLflow"))
    assert f"Reports: {home / 'studies.html'}" in said and "world" in (home / "studies.html").read_text()
    assert (home / "studies.html").stat().st_mode & 0o077 == 0
    ((user, password),) = re.findall(r"MLflow: .*\(user (\S+), password (\S+)\)", said)
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    (auth,) = re.findall(r"Prefect: .*\(password (\S+)\)", said)
    admitted = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    assert status_of(mlflow) == 401 and status_of(mlflow, Authorization=f"Basic {word}") == 200
    status, refusal = answer_of(mlflow, Authorization=f"Basic {word}", Host="evil.example")
    assert status == 403 and refusal.startswith(f"This MLflow server answers as {mlflow.removeprefix('http://')} and")
    assert status_of(mlflow, Authorization=f"Basic {word}", Origin="http://evil.example") == 403
    assert status_of(f"{prefect}/api/version") == 401 and status_of(f"{prefect}/api/version", **admitted) == 200
    assert answer_of(prefect, Host="evil.example")[1].startswith("This Prefect server answers as 127.0.0.1:")
    for path in (home / "ui").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    second = started(home)
    assert second.stdout is not None
    assert "Another `hpo ui` serves this home" in (again := second.stdout.read()) and password in again
    assert second.wait(timeout=PATIENCE) == 0
    servers = psutil.Process(process.pid).children(recursive=True)
    assert len(servers) >= 2
    process.send_signal(how)
    process.wait(timeout=PATIENCE)
    _, alive = psutil.wait_procs(servers, timeout=PATIENCE)
    assert alive == []


@pytest.mark.slow
def test_runs_whose_process_was_killed_are_crashed_when_it_starts(tmp_path: Path) -> None:
    server = SharedServer(tmp_path / "prefect")
    server.start()
    server.wait()
    wanted = {"flow_id": made_flow(server), "state": {"type": "RUNNING"}, "tags": [TAG]}
    run = ask(server.client_settings(), "flow_runs/", wanted)
    gone = {"infrastructure_pid": f"{socket.gethostname()}:{os.getpid()}:1.0:{tmp_path}"}
    ask(server.client_settings(), f"flow_runs/{run['id']}", gone, method="PATCH")
    server.close()
    process = started(tmp_path)
    try:
        said = until_ready(process)
        assert any("process was killed, Crashed in Prefect now: 1." in line for line in said), said
        server.start()
        server.wait()
        state = ask(server.client_settings(), f"flow_runs/{run['id']}")["state"]
        assert state["type"] == "CRASHED" and state["message"] == KILLED
    finally:
        server.close()
        process.terminate()
        process.wait(timeout=PATIENCE)


def made_flow(server: SharedServer) -> str:
    return str(ask(server.client_settings(), "flows/", {"name": "tune"})["id"])
