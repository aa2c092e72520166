"""What ``hpo worker`` hands on to the runs it starts, each in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from hpo_core.home import DATABASES
from hpo_flows.deployed import register
from hpo_flows.deployed.permissions import NotAllowedError, home_here
from hpo_flows.deployed.register import WORKER as WORKER_PID
from hpo_flows.deployed.register import deploy, listing_of, settled_environment, start_worker
from hpo_flows.prefect_api.connection import PrefectServerError


@pytest.mark.parametrize(
    ("value", "settled"),
    [
        ("sqlite:///journal.db", "sqlite:///{here}/journal.db"),
        ("sqlite+pysqlite:///deep/../journal.db?timeout=3", "sqlite+pysqlite:///{here}/journal.db?timeout=3"),
        ("sqlite:///file:journal.db?uri=true", "sqlite:///file:{here}/journal.db?uri=true"),
        ("journal.db", "{here}/journal.db"),
        ("./mlruns", "{here}/mlruns"),
    ],
)
def test_a_file_named_from_here_is_named_in_full(
    value: str, settled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in DATABASES:
        monkeypatch.setenv(name, value)
    found = settled_environment()
    assert {found[name] for name in DATABASES} == {settled.format(here=tmp_path.resolve())}
    assert found["HPO_HOME"] == str(tmp_path.resolve() / ".hpo")


def test_a_run_of_a_worker_without_a_home_would_lose_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid4()))
    monkeypatch.setenv("HPO_HOME", "here")
    with pytest.raises(NotAllowedError, match="HPO_HOME is not set to an absolute path where this runs"):
        home_here()


def test_a_working_folder_whose_name_would_be_two_import_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path / "a:b")
    monkeypatch.delenv("HPO_IMPORT_FOLDERS", raising=False)
    with pytest.raises(NotAllowedError, match="has a ':' in its path"):
        settled_environment()
    monkeypatch.setenv("HPO_IMPORT_FOLDERS", str(tmp_path))
    assert settled_environment()["HPO_IMPORT_FOLDERS"] == str(tmp_path)


def test_a_deployment_is_listed_with_its_schedules() -> None:
    schedules = [{"cron": "0 3 * * *", "timezone": "UTC"}, {"interval": 3600, "active": False}]
    found = listing_of({"name": "nightly", "description": "Tune.\nMore.", "schedules": schedules})
    assert found == "Tune.  schedule: {cron: 0 3 * * *, timezone: UTC}  schedule: {interval: 3600, active: false}"
    assert listing_of({"name": "plain"}) == ""


@pytest.mark.parametrize("call", [deploy, start_worker])
def test_without_an_api_nothing_is_advised_that_deploy_and_worker_do_not_have(
    call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register, "settled_environment", dict)
    monkeypatch.setenv(WORKER_PID, "")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(PrefectServerError, match=r"No Prefect API answers at .* mend PREFECT_API_URL\.$"):
        call()


FLOW = """
import time
from hpo_flows.deployed import register
from hpo_flows.deployed.register import end_with_parent
end_with_parent()
print("begun", flush=True)
time.sleep(600)
"""
WORKER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(600)"


def test_a_flow_ends_with_a_worker_that_is_killed() -> None:
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", WORKER, FLOW], stdout=subprocess.PIPE) as worker:
        assert worker.stdout and worker.stdout.readline() == b"begun\n"
        worker.kill()
        assert worker.stdout.read() == b"" and time.monotonic() - began < 600


def test_a_flow_that_begins_after_its_worker_ended_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as worker:
        worker.wait()
    environment = os.environ | {WORKER_PID: str(worker.pid)}
    assert subprocess.run([sys.executable, "-c", FLOW], env=environment).returncode == -signal.SIGKILL
