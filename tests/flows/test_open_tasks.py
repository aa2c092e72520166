"""A Dask task that trains several short jobs in turn: what the worker does, and what the executor makes of it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_flows.dask import on_worker as open_tasks
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.flows.conftest import ROOT

SECONDS = 600.0
"""Longest wait for one report, on a busy machine."""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a test sets in workers, which are in this process."""
    monkeypatch.setattr(open_tasks, "OPEN_SECONDS", SECONDS)


class _Cluster:
    """An executor with one slot, and what it reports."""

    def __init__(self, executor: DaskExecutor) -> None:
        self.executor = executor
        self.reports: queue.SimpleQueue[Report] = queue.SimpleQueue()

    @property
    def client(self) -> Any:
        assert self.executor._connection is not None
        return self.executor._connection.client

    def run(self, trial: int) -> Report:
        self.submit(trial)
        return self.reports.get(timeout=SECONDS)

    def submit(self, trial: int) -> None:
        job = Job(trial, 0, Rung(0, 0), 1, {"x": 0.5})
        self.executor.submit(job, Slot(0, 0, "dask"), lambda _, report: self.reports.put(report))

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_Cluster]:
    for part in ("checkpoints", "logs"):
        (tmp_path / part).mkdir()
    where = {"kind": "local", "workers": 1}
    spec = make_spec(objective="tests.flows.objectives:good", pythonpath=[str(ROOT)], cluster=where)
    executor = DaskExecutor(spec, str(tmp_path))
    try:
        executor.start()
        yield _Cluster(executor)
    finally:
        executor.close()


class TestOnACluster:
    """Short jobs share Dask's tasks; whatever fails beside them, each is reported once."""

    def test_short_jobs_share_tasks(self, cluster: _Cluster) -> None:
        reports = [cluster.run(trial) for trial in range(6)]
        assert [(report.trial, report.outcome) for report in reports] == [
            (trial, Outcome.COMPLETED) for trial in range(6)
        ]
        assert {report.worker for report in reports} == set(cluster.client.scheduler_info()["workers"])
        tasks = cluster.client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
        assert len(tasks) == 1
        assert "trial-00000" in tasks[0]

    def test_a_task_that_ends_takes_no_job_with_it(self, cluster: _Cluster) -> None:
        for trial in range(4):
            assert (report := cluster.run(trial)).outcome is Outcome.COMPLETED and report.trial == trial
            open_tasks.close_open_tasks("")  # the executor does not know, and gives it the next job
        assert cluster.reports.empty()

    def test_the_end_of_a_study_waits_for_no_open_task(self, cluster: _Cluster) -> None:
        """Once it did, for up to a second of each study and each of its slots."""
        assert cluster.run(0).outcome is Outcome.COMPLETED
        cluster.executor.close()
        cluster.until(lambda: not open_tasks._open)
