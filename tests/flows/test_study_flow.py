"""A study as a Prefect flow: what Prefect's engine ran of it, read back over its API."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.journal.codec import encode_entry
from tests.flows.conftest import LIMIT, Runner
from tests.flows.prefect_api import ask

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def flow_runs(hpo: Runner, name: str) -> list[dict[str, Any]]:
    wanted = {"flow_runs": {"name": {"any_": [name]}}, "sort": "START_TIME_ASC"}
    return list(ask(hpo.environment, "flow_runs/filter", wanted))


def task_runs(hpo: Runner, run: dict[str, Any], count: int = 1) -> list[dict[str, Any]]:
    """Those of a flow run, once there are so many and none is open: the server writes them when it comes to it."""
    deadline = time.monotonic() + LIMIT
    while True:
        wanted = {"flow_runs": {"id": {"any_": [run["id"]]}}, "limit": 200}
        found = list(ask(hpo.environment, "task_runs/filter", wanted))
        if (len(found) >= count and all(one["state_type"] in FINAL for one in found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def parents(task_run: dict[str, Any]) -> list[str]:
    return [parent["id"] for parent in task_run["task_inputs"].get("__parents__", [])]


def logs(hpo: Runner, task_run: dict[str, Any], count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + LIMIT
    wanted = {"logs": {"task_run_id": {"any_": [task_run["id"]]}}, "sort": "TIMESTAMP_ASC"}
    while len(found := ask(hpo.environment, "logs/filter", wanted)) < count and time.monotonic() < deadline:
        time.sleep(0.5)
    return list(found)


@pytest.mark.slow
@pytest.mark.parametrize("grain", ["jobs", "rungs"])
def test_a_training_function_logs_to_its_task_run_and_knows_its_flow_run(hpo: Runner, grain: str) -> None:
    search = {"method": "random", "configs": 2, "max_resource": 2}
    name = f"logger-{grain}"
    file = hpo.study("logs_to_prefect", study=name, search=search, prefect=grain)
    hpo.json("tune", file)
    (run,) = flow_runs(hpo, f"tune-{name}")
    runs = task_runs(hpo, run, count=3 if grain == "jobs" else 1)
    kind, said = ("job", 2) if grain == "jobs" else ("rung", 4)
    (shown, *_) = [one for one in runs if one["task_key"].startswith(kind)]
    warnings = [line for line in logs(hpo, shown, said + 1) if line["level"] == 30]
    assert len(warnings) == said
    first = warnings[0]["message"]
    assert "step 0 of trial " in first and first.endswith(f" in tune-{name}, run {run['id']}")
    journal = Home(hpo.home).open_journal()
    assert not [entry for entry in journal.entries(name) if "step 0 of trial" in encode_entry(entry)]
    journal.close()


def running_at_once(runs: list[dict[str, Any]]) -> int:
    moments = sorted([(one["start_time"], 1) for one in runs] + [(one["end_time"], -1) for one in runs])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


@pytest.mark.slow
def test_a_concurrency_limit_on_a_tag_holds_across_studies(hpo: Runner) -> None:
    tag = f"one-gpu-{uuid.uuid4().hex[:6]}"
    limit = ask(hpo.environment, "concurrency_limits/", {"tag": tag, "concurrency_limit": 1})
    search = {"method": "random", "configs": 4, "max_resource": 2}
    studies = []
    for name in ("left", "right"):
        folder = hpo.folder / name
        folder.mkdir()
        runner = Runner(folder, hpo.environment)
        file = runner.study("slow", study=f"{name}-{tag}", search=search, prefect={"tags": [tag]})
        studies.append((runner, name, runner.start("tune", file)))
    runs = []
    for runner, name, process in studies:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, out + err
        assert f"{name}-{tag} finished: 4 trials, 4 jobs" in out
        (run,) = flow_runs(runner, f"tune-{name}-{tag}")
        runs += [one for one in task_runs(runner, run) if one["task_key"].startswith("job")]
    assert len(runs) == 8 and {one["state_type"] for one in runs} == {"COMPLETED"}
    assert running_at_once(runs) == 1, "the limit of the tag holds across flows"
    ask(hpo.environment, f"concurrency_limits/{limit['id']}", method="DELETE")


@pytest.mark.slow
def test_a_job_whose_workers_keep_dying_is_crashed_and_no_finished_one_is_computed_again(hpo: Runner) -> None:
    marks = hpo.folder / "marks"
    search = {"method": "random", "configs": 6, "max_resource": 1}
    constants = {"marks": str(marks)}
    file = hpo.study("ends_workers", study="dying", search=search, constants=constants, prefect="auto")
    facts = hpo.json("tune", file)
    assert (facts["trials"], facts["jobs"]) == (6, 5)
    trained = Counter(map(int, marks.read_text().split()))
    assert trained[2] == 3 and sum(trained.values()) >= 8
    (run,) = flow_runs(hpo, "tune-dying")
    jobs = [one for one in task_runs(hpo, run) if one["task_key"].startswith("job")]
    crashed = [one for one in jobs if one["state_type"] == "CRASHED"]
    assert [one["name"] for one in crashed if one["name"].startswith("trial 2 ")] != []
    assert all("lost" in one["state"]["message"] for one in crashed), crashed
    by_trial = Counter(one["name"].split()[1] for one in jobs if one["state_type"] == "COMPLETED")
    assert by_trial == dict.fromkeys("01345", 1), "each result once"
    lost = Counter(one["name"].split()[1] for one in crashed)
    assert lost["2"] == 3
    assert all(trained[trial] == 1 + lost[str(trial)] for trial in (0, 1, 3, 4, 5)), "no finished one again"
