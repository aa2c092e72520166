"""Exactly one Prefect server while studies of a home are driven, none afterwards; and studies without any."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpo_flows.prefect_api.shared_server import SharedServer
from tests.flows.conftest import LIMIT, Runner, wait_for_entries
from tests.flows.prefect_api import ask
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1200)
LONG = {"method": "random", "configs": 60, "max_resource": 2}
LONGER = {"method": "random", "configs": 600, "max_resource": 2}
"""A server that starts on a busy machine is up before it ends."""


def servers(home: Path) -> list[psutil.Process]:
    """Living Prefect servers, Prefect's ephemeral ones included, whose command line or environment names the home."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if "prefect" not in words or not any(
                word in words for word in ("shared_server", "uvicorn", "server start")
            ):
                continue
            if str(home) in words or any(str(home) in value for value in process.environ().values()):
                found.append(process)
        except psutil.Error:  # it ended just now, or is not ours
            continue
    return found


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Runner]:
    """``hpo`` without a Prefect API configured."""
    hpo, started = Runner(tmp_path, {}, prefect="auto"), []
    start = hpo.start

    def recorded(*arguments: str | Path) -> subprocess.Popen[str]:
        started.append(start(*arguments))
        return started[-1]

    hpo.start = recorded  # type: ignore[method-assign]
    yield hpo
    for process in started:
        if process.poll() is None:  # a test that failed
            process.kill()
            process.communicate()
    eventually(lambda: not servers(hpo.home))  # none outlives its studies


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(process.communicate()) from None


def api_of(hpo: Runner) -> dict[str, str]:
    (file,) = (hpo.home / "prefect").glob("server-*.json")
    known = json.loads(file.read_text())
    return {"PREFECT_API_URL": f"{known['url']}/api", "PREFECT_API_AUTH_STRING": known["auth"]}


def runs_of(hpo: Runner) -> list[tuple[str, str]]:
    """Name and state of the flow runs; none while the server does not answer yet."""
    try:
        return [(run["name"], run["state_type"]) for run in ask(api_of(hpo), "flow_runs/filter", {})]
    except OSError:
        return []


@pytest.mark.slow
def test_one_server_while_a_study_is_driven_and_none_after(alone: Runner) -> None:
    process = alone.start("tune", alone.study("slow", search=LONGER, prefect="rungs"))
    wait_for_entries(alone, "toy", 8, process)
    (server,) = servers(alone.home)
    assert server.nice() == psutil.Process(process.pid).nice(), "the study waits for it"
    eventually(lambda: runs_of(alone) == [("tune-toy", "RUNNING")] or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = end(process)
    assert process.returncode == 130 and "hpo resume toy" in err, out + err
    assert "Traceback" not in out + err
    eventually(lambda: not servers(alone.home))
    (told,) = [n for n, line in enumerate(err.splitlines()) if line.startswith("Prefect UI while it runs: http://")]
    (starting,) = [n for n, line in enumerate(err.splitlines()) if line.startswith("starting: ")]
    assert starting < told, "once the server answers"


@pytest.mark.slow
def test_two_studies_of_a_home_share_a_server(alone: Runner) -> None:
    gate = alone.folder / "gate"
    gate.write_text("8")
    file = alone.study("held", search=LONG, constants={"gate": str(gate)}, cluster={"kind": "local", "workers": 1})
    first, second = (alone.start("tune", file, "--name", name) for name in ("first", "second"))
    wait_for_entries(alone, "first", 4, first)
    wait_for_entries(alone, "second", 4, second)
    (server,) = servers(alone.home)
    parent = server.ppid()
    starter, other, name = (first, second, "second") if parent == first.pid else (second, first, "first")
    assert parent == starter.pid
    eventually(lambda: {run for run, _ in runs_of(alone)} == {"tune-first", "tune-second"})
    starter.kill()  # the other one's pages go on
    starter.communicate()
    gate.unlink()
    wait_for_entries(alone, name, 30, other)
    assert [process.pid for process in servers(alone.home)] == [server.pid]
    out, err = end(other)
    assert other.returncode == 0 and f"{name} finished" in out, out + err
    assert "The Prefect server does not answer" not in err and "Traceback" not in out + err


@pytest.mark.parametrize("taken", [True, False])
def test_the_database_of_another_hosts_server_is_left_alone(tmp_path: Path, taken: bool) -> None:
    """On shared storage; SQLite is no database of two hosts."""
    server = SharedServer(tmp_path / "prefect")
    server.folder.mkdir(mode=0o700)
    with (server.folder / "database.lock").open("w") as other:
        if taken:
            fcntl.flock(other, fcntl.LOCK_EX)
        server.start()
        try:
            assert server.pid is not None
            variables: dict[str, str] = {}
            while not variables:  # the kernel shows none for a moment after a program began
                variables = psutil.Process(server.pid).environ()
            url = variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
        finally:
            server.close()
    name = f"prefect-{socket.gethostname()}.db" if taken else "prefect.db"
    assert url == f"sqlite+aiosqlite:///{server.folder / name}"


LISTS_MODULES = """
import json, pathlib, sys
from hpo_flows.command import app, run
from hpo_flows.__main__ import main
if __name__ == "__main__":
    try:
        run(app)
    finally:
        found = sorted(name for name in sys.modules if name.partition(".")[0] == "prefect")
        pathlib.Path("modules.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
def test_without_prefect(alone: Runner) -> None:
    option = ["--no-prefect"]
    script = alone.folder / "lists_modules.py"
    script.write_text(LISTS_MODULES)
    process = subprocess.Popen(
        [sys.executable, script, "tune", alone.study("slow", tracking={}), *option],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone.environment, cwd=alone.folder,
    )  # fmt: skip
    wait_for_entries(alone, "toy", 8, process)
    assert servers(alone.home) == [] and not (alone.home / "prefect").exists()
    out, err = end(process)
    assert process.returncode == 0 and "toy finished: 12 trials" in out, out + err
    assert json.loads((alone.folder / "modules.json").read_text()) == []
    assert (alone.home / "studies/toy/report.html").is_file()
    assert alone.json("extend", "toy", "--configs", "2", *option)["trials"] == 14
    assert alone.json("rerun", "toy", "--as", "again", *option)["trials"] == 14
    assert "0 new entries" in alone("project", "again"), "MLflow has everything"
    assert not (alone.home / "prefect").exists()


SOURCES = {
    "environment": ({"PREFECT_API_URL": "{url}"}, {}),
    "profile": ({}, {"home/.prefect/profiles.toml": 'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{url}"\n'}),
    "nowhere": ({}, {}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_users_api_is_found(source: str, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/api"
    variables, files = SOURCES[source]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("{url}", url))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    environment |= {
        "HOME": str(tmp_path / "home"),
        **{key: value.replace("{url}", url) for key, value in variables.items()},
    }
    code = "from hpo_flows.prefect_api.connection import configured_api; print(configured_api())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout.split() == ["None" if source == "nowhere" else url], done.stderr


@pytest.mark.slow
def test_a_study_goes_on_without_a_server_that_cannot_start(alone: Runner) -> None:
    (alone.home / "prefect").mkdir(parents=True)
    (alone.home / "prefect" / "prefect.db").write_bytes(b"no database " * 4096)
    out, err = end(alone.start("tune", alone.study("slow", search=LONG)))
    assert "toy finished: 60 trials" in out
    assert "ended with exit code" in err and "not a database" in err and "--no-prefect" in err
    assert "Prefect does not run this study, which goes on" in err and "Traceback" not in err
