"""``kill -9`` of the process that shows a study in Prefect: its run does not stay Running."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import psutil
import pytest

from tests.flows.conftest import LIMIT, Runner
from tests.flows.prefect_api import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG: dict[str, Any] = {"method": "random", "configs": 60, "max_resource": 2}


def runs(hpo: Runner) -> list[dict[str, Any]]:
    """Of the study, the first one first."""
    wanted = {"flow_runs": {"tags": {"all_": ["toy"]}}, "sort": "START_TIME_ASC"}
    found: list[dict[str, Any]] = ask(hpo.environment, "flow_runs/filter", wanted)
    return [run for run in found if run["parameters"].get("name") == "toy"]


def follower_of(controller: int) -> psutil.Process:
    """The process that shows the study, once its flow run is there with a task run."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for child in psutil.Process(controller).children():
            with contextlib.suppress(psutil.Error):  # one that has ended
                if "hpo_flows.prefect_pages.prefect_follower" in child.cmdline():
                    return child
        time.sleep(0.2)
    raise AssertionError("no process shows the study")


def until_another(controller: int, first: int) -> None:
    deadline = time.monotonic() + LIMIT
    while follower_of(controller).pid == first:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def shown(hpo: Runner, count: int) -> None:
    deadline = time.monotonic() + LIMIT
    while len(found := [run for run in runs(hpo) if run["state_type"] == "RUNNING"]) < count or not any(
        ask(hpo.environment, "task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}}) for run in found
    ):
        assert time.monotonic() < deadline, runs(hpo)
        time.sleep(0.5)


@pytest.fixture
def named(hpo: Runner, prefect_api: dict[str, str]) -> Runner:
    """Runs of other tests on the same server are of other studies."""
    for run in runs(hpo):
        ask(hpo.environment, f"flow_runs/{run['id']}", method="DELETE")
    hpo.prefect = "auto"
    return hpo


def test_another_process_takes_its_place(named: Runner) -> None:
    hpo = named
    gate = hpo.folder / "gate"
    gate.write_text("40")
    process = hpo.start("tune", hpo.study("held", search=LONG, constants={"gate": str(gate)}))
    shown(hpo, 1)
    first = follower_of(process.pid)
    first.kill()
    until_another(process.pid, first.pid)
    gate.unlink()  # else a study on a busy machine has ended before anybody misses the process
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and "was killed; another one begins" in err, out + err
    assert [run["state_type"] for run in runs(hpo)] == ["CRASHED", "COMPLETED"]
    crashed, complete = runs(hpo)
    wanted = {"flow_runs": {"id": {"any_": [complete["id"]]}}, "limit": 200}
    assert len(ask(hpo.environment, "task_runs/filter", wanted)) == 60, "it shows the study from its start"
    left = {"flow_runs": {"id": {"any_": [crashed["id"]]}}, "limit": 200}
    states = {task["state_type"] for task in ask(hpo.environment, "task_runs/filter", left)}
    assert "RUNNING" not in states and "CRASHED" in states
    assert not list((hpo.home / "shown-runs").iterdir())


def test_the_next_command_reports_a_run_whose_processes_are_all_gone(named: Runner) -> None:
    hpo = named
    process = hpo.start("tune", hpo.study("slow", search=LONG))
    shown(hpo, 1)
    follower = follower_of(process.pid)
    follower.send_signal(signal.SIGSTOP)  # so that it cannot report the end of its controller
    os.kill(process.pid, signal.SIGKILL)
    follower.kill()
    process.communicate()
    assert [run["state_type"] for run in runs(hpo)] == ["RUNNING"]
    hpo("resume", "toy")
    assert [run["state_type"] for run in runs(hpo)] == ["CRASHED", "COMPLETED"]
