"""``hpo.tune`` in a user's own flow, on a real Prefect server: a subflow of it, with its tasks, cancel and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask
from tests.waiting import eventually

PROGRAM = Path(__file__).with_name("own_flows.py")


class Seen:
    def __init__(self, facts: dict[str, Any], environment: dict[str, str]) -> None:
        self.facts = facts
        self.environment = environment

    def run(self, flow: str) -> Any:
        return ask(self.environment, f"flow_runs/{self.facts[flow]}")

    def subflows(self, flow: str) -> dict[str, Any]:
        found = {"flow_runs": {"parent_flow_run_id": {"any_": [self.facts[flow]]}}}
        return {run["name"]: run for run in ask(self.environment, "flow_runs/filter", found)}

    def task_runs(self, run: Any) -> list[Any]:
        answer: list[Any] = ask(
            self.environment, "task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}, "limit": 200}
        )
        return answer


def run_flows(folder: Path, api: dict[str, str], *which: str) -> Seen:
    environment = os.environ | api | {"HOME": str(folder)}
    command = [sys.executable, str(PROGRAM), *which]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / ".hpo" / "prefect").exists(), "a second Prefect server"
    return Seen(json.loads((folder / "facts.json").read_text()), api)


@pytest.fixture(scope="module")
def seen(prefect_api: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run_flows(tmp_path_factory.mktemp("own"), prefect_api)


@pytest.fixture(scope="module")
def ended(prefect_api: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Flows whose study has no result, is cancelled, and is gone on with."""
    return run_flows(tmp_path_factory.mktemp("ended"), prefect_api, "ends")


def test_a_call_in_a_flow_is_a_subflow_of_it(seen: Seen) -> None:
    assert seen.run("in_a_flow")["state_name"] == "Completed"
    subflows = seen.subflows("in_a_flow")
    assert set(subflows) == {"tune-plain", "tune-in-task"}
    plain = subflows["tune-plain"]
    assert plain["state_name"] == "Completed" and plain["state"]["message"].startswith("best loss ")
    assert {"hpo", "plain", "asha"} <= set(plain["tags"])
    shown = plain["parameters"]
    assert shown["name"] == "plain" and shown["space"]["x"]["high"] == 1.0 and shown["search"]["configs"] == 6
    assert shown["objective"].startswith("train (by value, ")


def test_its_jobs_and_artifacts_belong_to_that_run(seen: Seen) -> None:
    plain = seen.subflows("in_a_flow")["tune-plain"]
    jobs = seen.task_runs(plain)
    assert len(jobs) >= 8 and {job["state_name"] for job in jobs} == {"Completed"}
    assert any(job["name"] == "trial 0 -> 1" for job in jobs)
    found = ask(seen.environment, "artifacts/filter", {"flow_runs": {"id": {"any_": [plain["id"]]}}})
    assert {artifact["key"] for artifact in found} == {"plain-study"}


def test_results_of_calls_and_tasks_are_passed_on_and_cached(seen: Seen) -> None:
    assert seen.facts["promoted"] == pytest.approx(seen.facts["best"])
    assert seen.facts["task"] == "finished" and set(seen.facts["cached"]) == {"x"}

    def states() -> list[str]:  # Prefect's server records them after the flow has ended
        runs = seen.task_runs(seen.run("in_a_flow"))
        return sorted(run["state_name"] for run in runs if run["name"].startswith("tuned"))

    eventually(lambda: states() == ["Cached", "Completed"])


@pytest.mark.slow
def test_in_an_async_flow_calls_side_by_side_share_a_cluster(prefect_api: dict[str, str], tmp_path: Path) -> None:
    seen = run_flows(tmp_path, prefect_api, "async")
    assert seen.facts["async"] == ["finished", "finished"] and seen.facts["workers"] == 2
    assert set(seen.subflows("in_an_async_flow")) == {"tune-in-thread", "tune-blocking"}


@pytest.mark.slow
def test_a_search_without_a_result_fails_the_flow_with_the_sentence(ended: Seen) -> None:
    assert ended.facts["without-a-result raised"].startswith(
        "HpoError: Study 'nothing' ended without a single result: no trial has a finite value of loss: of 6 trials"
    )
    sub = ended.subflows("without_a_result")["tune-nothing"]
    assert sub["state_name"] == "Failed" and sub["state"]["message"].startswith("Study 'nothing' ended without")
    above = ended.run("without_a_result")["state"]
    assert above["name"] == "Failed" and "Study 'nothing' ended without a single result" in above["message"]


@pytest.mark.slow
def test_a_cancel_of_the_flow_halts_the_study_which_can_go_on(ended: Seen) -> None:
    assert ended.facts["cancelled raised"].startswith("Abort: Study 'halted' was halted with its flow run")
    status, jobs = ended.facts["halted"]
    assert status == "halted" and jobs < 12
    assert ended.run("cancelled")["state_name"] == "Cancelled"
    sub = ended.subflows("cancelled")["tune-halted"]
    assert sub["state_name"] == "Cancelled" and "hpo.resume('halted')" in sub["state"]["message"]
    assert {job["state_name"] for job in ended.task_runs(sub)} <= {"Completed", "Crashed", "Cancelled"}, (
        "none looks as if it ran"
    )


@pytest.mark.slow
def test_a_flow_that_is_tried_again_goes_on_with_its_study_and_then_finds_it(ended: Seen) -> None:
    assert ended.facts["jobs"] == [12, 12]
    assert ended.run("tried_again")["state_name"] == "Completed"
    assert set(ended.subflows("tried_again")) == {"resume-halted"}


@pytest.mark.slow
def test_outside_a_flow_prefect_shows_the_call_and_a_cancel_there_interrupts_it(
    prefect_api: dict[str, str], tmp_path: Path
) -> None:
    environment = os.environ | prefect_api | {"HOME": str(tmp_path)}
    command = [sys.executable, str(PROGRAM), "outside"]
    with (tmp_path / "log").open("w") as log:
        called = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        query = {"flow_runs": {"name": {"any_": ["tune-shown", "tune-unseen"]}}}
        found = eventually(
            lambda: (tmp_path / ".hpo/journal.db").exists() and ask(prefect_api, "flow_runs/filter", query),
            process=called,
            said=(tmp_path / "log").read_text,
        )
        run = found[0]
        assert [one["name"] for one in found] == ["tune-shown"] and run["parameters"]["name"] == "shown"
        body = {"state": {"type": "CANCELLING"}, "force": True}
        ask(prefect_api, f"flow_runs/{run['id']}/set_state", body)
        assert called.wait(LIMIT) == 0, (tmp_path / "log").read_text()
        said = json.loads((tmp_path / "outside.json").read_text())
        assert said["status"] in ("halted", "open") and said["set"] == []
        assert set(said["left"]) <= {"python"}, "the process that shows the study, and nothing of the cluster"
        eventually(lambda: ask(prefect_api, f"flow_runs/{run['id']}")["state_name"] == "Cancelled")
    finally:
        called.kill()
