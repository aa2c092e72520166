"""Packing, gangs and shared slots as a Prefect flow: each granted job is a task run within its rung."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.events import JobCompleted
from tests.flows.conftest import LIMIT, Runner
from tests.flows.test_methods_in_prefect import entries, granted
from tests.flows.test_study_flow import flow_runs, parents, running_at_once, task_runs

pytestmark = pytest.mark.slow


def jobs_within_rungs(hpo: Runner, study: str) -> list[dict[str, Any]]:
    """Task runs of the jobs of a finished study, which are those that its journal granted, each within its rung."""
    found = entries(hpo, study)
    (run,) = flow_runs(hpo, f"tune-{study}")
    assert run["state_type"] == "COMPLETED", run["state"]
    runs = task_runs(hpo, run, count=granted(found) + 1)
    assert Counter(one["state_type"] for one in runs) == {"COMPLETED": len(runs)}
    rungs = {one["id"]: one["name"] for one in runs if one["task_key"].startswith("rung")}
    jobs = [one for one in runs if one["task_key"].startswith("job")]
    assert len(jobs) == granted(found) == sum(isinstance(each, JobCompleted) for e in found for each in e.events)
    for job in jobs:
        (rung,) = parents(job)
        assert job["name"].partition(",")[0].rpartition("-> ")[2] == rungs[rung].rpartition("to ")[2]
    return jobs


def test_jobs_that_share_a_device_are_tasks_that_run_at_once(hpo: Runner) -> None:
    file = hpo.study(
        "slow",
        study="packed",
        search={"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 2, "reduction_factor": 2},
        packing={"demand": {"compute": 25, "memory": "50MB", "cores": 0.1}},
        cluster={"kind": "local", "workers": 1},
        prefect="jobs",
    )
    assert hpo.json("tune", file)["status"] == "finished"
    jobs = jobs_within_rungs(hpo, "packed")
    assert all(", on " in job["name"] for job in jobs), "a job's task says on which device it runs"
    assert running_at_once(jobs) >= 2


def test_a_gang_is_one_task(hpo: Runner) -> None:
    file = hpo.study(
        study="ganged",
        objective="tests.gangs.lab:train",
        space={"lr": {"type": "float", "low": 0.003, "high": 0.03}},
        search={"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 2, "reduction_factor": 2},
        training={"gang": 2},
        prefect="jobs",
    )
    assert hpo.json("tune", file)["status"] == "finished"
    jobs = jobs_within_rungs(hpo, "ganged")
    assert len(jobs) == 6 and running_at_once(jobs) == 1, "two workers are one gang"


def test_studies_that_share_slots_are_flows_with_tasks_of_their_own(hpo: Runner) -> None:
    search = {"method": "random", "configs": 6, "max_resource": 3}
    processes = []
    for name in ("this", "that"):
        file = hpo.study("slow", study=name, search=search, share={"pool": "both"}, prefect="jobs")
        own = file.rename(Path(hpo.folder, f"{name}.yaml"))
        processes.append(hpo.start("tune", own))
    for process in processes:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, out + err
    both = [*jobs_within_rungs(hpo, "this"), *jobs_within_rungs(hpo, "that")]
    assert len(both) == 12
