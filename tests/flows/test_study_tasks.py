"""Task runs of jobs, executed by Prefect's engine, around an executor whose jobs end as a test says."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

import hpo_flows
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.model.devices.inventory import EMPTY, Inventory, Slot
from hpo_core.model.trial import Job, JobKey, Outcome, Report, Rung
from hpo_flows.prefect_api.connection import patient_prefect
from hpo_flows.prefect_pages.study_tasks import StudyTasks
from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask


class AtOnce:
    """Executor whose jobs end before :meth:`submit` returns."""

    poll_seconds = 1.0

    def inventory(self) -> Inventory:
        return EMPTY

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        outcome = Outcome.COMPLETED if job.trial % 2 else Outcome.ERROR
        metrics = {"loss": 0.5} if job.trial % 2 else {}
        on_report(job, Report(trial=job.trial, attempt=0, outcome=outcome, metrics=metrics, message="as told"))

    def cancel(self, attempts: Iterable[JobKey]) -> None: ...

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        return False


def test_a_job_that_is_faster_than_its_task_has_a_task_run_and_its_hooks(prefect_api: dict[str, str]) -> None:
    ended: list[bool] = []
    threads: list[int] = []
    failed: list[str] = []
    hooks = list(hpo_flows.job.on_failure_hooks)
    hpo_flows.job.on_failure(lambda task, task_run, state: failed.append(task_run.name))

    @flow(persist_result=False)
    def study() -> str:
        tasks = StudyTasks(AtOnce(), "loss", per_job=True)
        inbox = Inbox()
        before = threading.active_count()
        for trial in range(40):
            tasks.submit(Job(trial, 0, Rung(0, 0), 1, {}), Slot(0, 0, "none"), inbox.put)
        threads.append(threading.active_count() - before)
        ended.append(tasks.close(LIMIT))
        return str(flow_run.id)

    with patient_prefect((prefect_api["PREFECT_API_URL"], prefect_api.get("PREFECT_API_AUTH_STRING", ""))):
        run = study()
    hpo_flows.job.on_failure_hooks[:] = hooks
    assert ended == [True]
    assert threads[0] < 20, "no job holds a thread"
    assert sorted(failed) == sorted(f"trial {number} -> 1" for number in range(0, 40, 2)), "hooks of a task are called"
    wanted = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
    deadline = time.monotonic() + LIMIT
    found: list[dict[str, Any]] = []
    while (len(found) < 41 or not all(one["end_time"] for one in found)) and time.monotonic() < deadline:
        found = ask(prefect_api, "task_runs/filter", wanted)
        time.sleep(0.3)
    states = Counter((one["task_key"].partition("-")[0], one["state_type"]) for one in found)
    assert states == {("rung", "COMPLETED"): 1, ("job", "COMPLETED"): 20, ("job", "FAILED"): 20}
