"""A study as a Prefect flow: what Prefect's engine ran of it, read back over its API."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.journal.codec import encode_entry
from tests.flows.conftest import LIMIT, Runner, wait_for_entries
from tests.flows.prefect_api import ask

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def flow_runs(hpo: Runner, name: str) -> list[dict[str, Any]]:
    """Those of a name, the oldest first."""
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


def test_rungs_are_tasks_with_their_jobs_as_children(hpo: Runner) -> None:
    facts = hpo.json("tune", hpo.study(study="nested", prefect="auto"))
    (run,) = flow_runs(hpo, "tune-nested")
    assert run["state_type"] == "COMPLETED" and facts["best"] is not None
    assert {"hpo", "nested", "asha"} <= set(run["tags"])
    assert run["parameters"]["name"] == "nested"
    runs = task_runs(hpo, run)
    assert Counter(one["state_type"] for one in runs) == {"COMPLETED": len(runs)}
    rungs = {one["id"]: one["name"] for one in runs if one["task_key"].startswith("rung")}
    assert sorted(set(rungs.values())) == [
        "rung 0 of bracket 0, to 1", "rung 1 of bracket 0, to 3", "rung 2 of bracket 0, to 9",
    ]  # fmt: skip
    jobs = [one for one in runs if one["task_key"].startswith("job")]
    assert len(jobs) == facts["jobs"] == len({one["name"] for one in jobs})
    for job in jobs:
        (rung,) = parents(job)
        assert job["name"].rpartition("-> ")[2] == rungs[rung].rpartition("to ")[2]
        assert job["state"]["message"].startswith("loss = ")
        assert job["tags"] == [], "a task with a tag asks the API before it begins"


def logs(hpo: Runner, task_run: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The log of a task run, once it has so many lines."""
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
    """Most of these task runs that ran at one time."""
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
def test_a_cancelled_command_ends_soon_also_where_it_ignores_ctrl_c(hpo: Runner) -> None:
    gate = hpo.folder / "gate"
    gate.write_text("2")
    search = {"method": "random", "configs": 20, "max_resource": 2}
    file = hpo.study("held", study="stopped", search=search, constants={"gate": str(gate)}, prefect="auto")
    process = subprocess.Popen(
        ["bash", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-m", "hpo_flows", "tune", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=hpo.environment, cwd=hpo.folder,
    )  # fmt: skip
    wait_for_entries(hpo, "stopped", 3, process)
    while not (runs := [run for run in flow_runs(hpo, "tune-stopped") if run["state_type"] == "RUNNING"]):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": True}
    ask(hpo.environment, f"flow_runs/{runs[0]['id']}/set_state", cancelling)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, out + err
    assert "hpo resume stopped" in err
    (run,) = flow_runs(hpo, "tune-stopped")
    assert run["state_type"] == "CANCELLED", run["state"]
    states = Counter(one["state_type"] for one in task_runs(hpo, run) if one["task_key"].startswith("job"))
    assert states["CANCELLED"] and set(states) <= {"COMPLETED", "CANCELLED"}, states
    gate.unlink()
    assert hpo.json("resume", "stopped")["status"] == "finished"


@pytest.mark.slow
def test_a_killed_controller_leaves_nothing_running(hpo: Runner) -> None:
    gate = hpo.folder / "gate"
    gate.write_text("3")
    search = {"method": "random", "configs": 8, "max_resource": 2}
    file = hpo.study("held", study="killed", search=search, constants={"gate": str(gate)}, prefect="auto")
    process = hpo.start("tune", file)
    wait_for_entries(hpo, "killed", 5, process)
    deadline = time.monotonic() + LIMIT
    while not [run for run in flow_runs(hpo, "tune-killed") if run["state_type"] == "RUNNING"]:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.kill()
    process.communicate()
    gate.unlink()
    assert hpo.json("resume", "killed")["status"] == "finished"
    (first,) = flow_runs(hpo, "tune-killed")
    (second,) = flow_runs(hpo, "resume-killed")
    assert (first["state_type"], second["state_type"]) == ("CRASHED", "COMPLETED")
    for run in (first, second):
        assert {one["state_type"] for one in task_runs(hpo, run)} <= {"COMPLETED", "CRASHED"}


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
