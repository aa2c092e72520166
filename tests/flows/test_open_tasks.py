"""A Dask task that trains several short jobs in turn: what the worker does, and what the executor makes of it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest

from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.request import JobRequest, decode_report, encode_request
from hpo_core.training.worker import trainers
from hpo_flows.dask import on_worker as open_tasks
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.dask_processes import DaskProcesses
from tests.flows.conftest import ROOT

SECONDS = 600.0
"""Longest wait for one report, on a busy machine."""
KEY = "study/trial-00000/attempt-0/0"


class _Worker:
    """The worker's side: a task in a thread, and an event loop that calls arrive in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.Thread(target=self._train)
        self.published: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.result: Report | None = None
        self._first = b""

    def start(self, first: bytes) -> None:
        self._first = first
        self._thread.start()

    def request(self, trial: int, function: str = "good", target: int = 1) -> bytes:
        return encode_request(
            JobRequest(
                study="study",
                job=Job(trial, 0, Rung(0, 0), target, {"x": 0.5}),
                objective=f"tests.flows.objectives:{function}",
                metric="loss",
                seed=1,
                folder=str(self._folder),
                pythonpath=(str(ROOT),),
            )
        )

    def _train(self) -> None:
        def publish(report: bytes) -> None:
            self.published.put(decode_report(report))

        self.result = decode_report(open_tasks.train_in_turn(self._first, KEY, publish))

    def call(self, request: bytes) -> Report | None:
        answer = asyncio.run(open_tasks.train_next(KEY, request))
        return None if answer is None else decode_report(answer)

    def end(self) -> Report:
        self._thread.join(SECONDS)
        assert self.result is not None
        return self.result


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a test sets in workers, which may be this process."""
    monkeypatch.setattr(open_tasks, "OPEN_SECONDS", open_tasks.OPEN_SECONDS)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Worker]:
    for part in ("checkpoints", "logs"):
        (tmp_path / part).mkdir()
    monkeypatch.setattr(open_tasks, "OPEN_SECONDS", SECONDS)
    yield _Worker(tmp_path)
    trainers.close_all()


def test_an_open_task_trains_jobs_in_turn_until_one_fails(worker: _Worker) -> None:
    worker.start(worker.request(0))
    assert worker.published.get(timeout=SECONDS).trial == 0
    answers = [worker.call(worker.request(1)), worker.call(worker.request(2, target=3))]
    assert [(answer.trial, answer.outcome) for answer in answers if answer is not None] == [
        (1, Outcome.COMPLETED),
        (2, Outcome.COMPLETED),
    ]
    failed = worker.call(worker.request(3, "silent"))
    assert failed is not None
    assert failed.outcome is Outcome.ERROR
    assert worker.end() == failed
    assert worker.call(worker.request(4)) is None
    assert worker.published.empty()  # later reports answer their calls


def test_a_task_that_is_closed_ends_with_the_report_of_its_last_job(worker: _Worker) -> None:
    worker.start(worker.request(0))
    published = worker.published.get(timeout=SECONDS)
    open_tasks.close_open_tasks()
    assert worker.end() == published
    assert worker.call(worker.request(1)) is None


def test_a_job_that_takes_long_is_reported_by_the_tasks_end(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.start(worker.request(0))
    worker.published.get(timeout=SECONDS)
    monkeypatch.setattr(open_tasks, "OPEN_SECONDS", 0.05)  # from now on, for the call alone
    assert worker.call(worker.request(1, "slow", target=2)) is None
    open_tasks.close_open_tasks()
    assert (worker.end().trial, worker.end().outcome) == (1, Outcome.COMPLETED)


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
def processes(dask_processes: DaskProcesses) -> DaskProcesses:
    """One worker in a process of its own."""
    dask_processes.add_worker("one")
    return dask_processes


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Cluster]:
    """A worker in this process, or in one of its own: its next job comes by another way."""
    where = {"kind": "local", "workers": 1}
    if request.param == "processes":
        where = request.getfixturevalue("processes").cluster
    for part in ("checkpoints", "logs"):
        (tmp_path / part).mkdir()
    spec = make_spec(objective="tests.flows.objectives:good", pythonpath=[str(ROOT)], cluster=where)
    executor = DaskExecutor(spec, str(tmp_path))
    try:
        executor.start()
        yield _Cluster(executor)
    finally:
        executor.close()


def _keep_open(seconds: float) -> None:
    open_tasks.OPEN_SECONDS = seconds


def _close_open_tasks() -> None:
    open_tasks.close_open_tasks()


class TestOnACluster:
    """Short jobs share Dask's tasks; whatever fails beside them, each is reported once."""

    def test_short_jobs_share_tasks(self, cluster: _Cluster) -> None:
        cluster.client.run(_keep_open, SECONDS)
        reports = [cluster.run(trial) for trial in range(6)]
        assert [(report.trial, report.outcome) for report in reports] == [
            (trial, Outcome.COMPLETED) for trial in range(6)
        ]
        assert {report.worker for report in reports} == set(cluster.client.scheduler_info()["workers"])
        tasks = cluster.client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
        assert len(tasks) == 1
        assert "trial-00000" in tasks[0]

    def test_an_answer_that_is_lost_loses_no_report(self, cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster.client.run(_keep_open, 5.0)
        assert cluster.run(0).outcome is Outcome.COMPLETED
        run = cluster.client.run

        async def forgets(*arguments: Any, **options: Any) -> dict[str, Any]:
            await run(*arguments, **options)
            return {}

        monkeypatch.setattr(cluster.client, "run", forgets)
        report = cluster.run(1)
        monkeypatch.undo()
        assert (report.trial, report.outcome) == (1, Outcome.COMPLETED)
        assert cluster.reports.empty()

    def test_a_task_that_ends_takes_no_job_with_it(self, cluster: _Cluster) -> None:
        cluster.client.run(_keep_open, SECONDS)
        for trial in range(4):
            assert (report := cluster.run(trial)).outcome is Outcome.COMPLETED and report.trial == trial
            cluster.client.run(_close_open_tasks)  # the executor does not know, and gives it the next job
        assert cluster.reports.empty()

    @pytest.mark.parametrize("cluster", ["threads"], indirect=True)
    def test_the_end_of_a_study_waits_for_no_open_task(self, cluster: _Cluster) -> None:
        """Once it did, for up to a second of each study and each of its slots."""
        cluster.client.run(_keep_open, 10 * SECONDS)
        assert cluster.run(0).outcome is Outcome.COMPLETED
        cluster.executor.close()
        cluster.until(lambda: not open_tasks._open)

    @pytest.mark.parametrize("cluster", [pytest.param("processes", marks=pytest.mark.slow)], indirect=True)
    def test_a_worker_that_dies_with_an_open_task_loses_one_attempt_at_most(
        self, cluster: _Cluster, processes: DaskProcesses
    ) -> None:
        cluster.client.run(_keep_open, SECONDS)
        assert cluster.run(0).outcome is Outcome.COMPLETED
        before = set(cluster.client.scheduler_info()["workers"])
        processes.kill("one")
        processes.add_worker("two")
        report = cluster.run(1)  # at once: it may be sent to the open task
        assert report.outcome in (Outcome.COMPLETED, Outcome.LOST)
        cluster.until(
            lambda: (
                bool(set(cluster.client.scheduler_info()["workers"]) - before)
                and cluster.executor.inventory().slots == 1
            )
        )
        assert cluster.run(2).outcome is Outcome.COMPLETED
        assert cluster.reports.empty()


@pytest.mark.slow
def test_two_studies_take_turns_on_one_worker(tmp_path: Path) -> None:
    """A task that stays open for one study's short jobs does not keep the other one waiting."""
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as shared:
        where = {"kind": "address", "address": shared.scheduler_address}
        executors: list[DaskExecutor] = []
        try:
            for name in ("one", "two"):
                for part in ("checkpoints", "logs"):
                    (tmp_path / name / part).mkdir(parents=True)
                spec = make_spec(
                    study=name, objective="tests.flows.objectives:good", pythonpath=[str(ROOT)], cluster=where
                )
                executors.append(DaskExecutor(spec, str(tmp_path / name)))
                executors[-1].start()
            studies = [_Cluster(executor) for executor in executors]
            other: list[Report] = []
            thread = threading.Thread(target=lambda: other.extend(studies[1].run(trial) for trial in range(3)))
            thread.start()
            trial = 0
            while thread.is_alive() or trial < 3:  # one of them never lets its slot be idle
                assert studies[0].run(trial).outcome is Outcome.COMPLETED
                trial += 1
            assert [(report.trial, report.outcome) for report in other] == [
                (trial, Outcome.COMPLETED) for trial in range(3)
            ]
        finally:
            for executor in executors:
                executor.close()
