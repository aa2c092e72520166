"""ExecutorContract: what every executor must do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from hpo_core.execution.executor import Executor, Inbox
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.placement.placer import Placer

CALL_SECONDS = 20.0
"""Longest time of a call that does not wait, on a machine that is very busy."""
MAX_SECONDS = 120.0
"""Longest time that a test waits for reports."""


class _Submitter:
    """Submits jobs to free slots and collects their reports, as the loop does."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.reports: list[Report] = []
        self._inbox = Inbox()
        self._slots = Placer()

    def submit(self, job: Job) -> None:
        self._slots.update(self.executor.inventory())
        ((_, slot),) = self._slots.place([job]).begun
        self.executor.submit(job, slot, self._on_report)

    def _on_report(self, job: Job, report: Report) -> None:
        assert job.key == (report.trial, report.attempt), "a report of another job"
        self._inbox.put(job, report)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` reports came, nothing can happen any more, or the time limit."""
        deadline = time.monotonic() + MAX_SECONDS
        while len(self.reports) < count and time.monotonic() < deadline:
            if not self.wait_once():
                return

    def wait_once(self) -> bool:
        """Wait for at most one second of the executor's clock; return whether anything can still happen."""
        going_on = self.executor.wait(self._inbox, self.executor.now() + 1.0)
        while self._inbox.reports:
            self.reports.append(self._inbox.reports.popleft())
        return going_on

    def outcomes(self) -> dict[tuple[int, int], Outcome]:
        """Outcome by (trial, attempt); fails where one was reported twice."""
        counted = Counter((report.trial, report.attempt) for report in self.reports)
        assert set(counted.values()) <= {1}, "an attempt was reported twice"
        return {(report.trial, report.attempt): report.outcome for report in self.reports}


class ExecutorContract:
    """Subclass it in a test module and override :meth:`executor`; :meth:`job` where its jobs need other parameters."""

    @pytest.fixture
    def executor(self) -> Executor:
        """A new executor with at least one slot, whose jobs succeed within seconds."""
        raise NotImplementedError("Override the fixture executor in the subclass of ExecutorContract.")

    def job(self, trial: int, attempt: int = 0) -> Job:
        """A job that the executor can run."""
        return Job(trial, attempt, Rung(0, 0), target=1, params={"x": 0.5})

    def test_the_inventory_has_slots_on_devices_with_unique_names(self, executor: Executor) -> None:
        names = [device.name for device in executor.inventory().devices]
        assert executor.inventory().slots > 0
        assert len(names) == len(set(names))

    def test_every_submitted_job_is_reported_once(self, executor: Executor) -> None:
        jobs = [self.job(trial) for trial in range(executor.inventory().slots)]
        submitter = _Submitter(executor)
        for job in jobs:
            submitter.submit(job)
        submitter.wait_for(len(jobs))
        assert submitter.outcomes() == {job.key: Outcome.COMPLETED for job in jobs}

    def test_a_cancelled_attempt_is_reported_once_as_preempted_or_as_it_ended(self, executor: Executor) -> None:
        submitter = _Submitter(executor)
        submitter.submit(self.job(0))
        executor.cancel([(0, 0)])
        executor.cancel([(0, 0)])
        submitter.wait_for(1)
        submitter.wait_once()  # for a second report, which must not come
        assert list(submitter.outcomes()) == [(0, 0)]
        assert submitter.outcomes()[0, 0] in (Outcome.PREEMPTED, Outcome.COMPLETED)

    def test_cancelling_an_attempt_that_is_not_running_changes_nothing(self, executor: Executor) -> None:
        submitter = _Submitter(executor)
        executor.cancel([(0, 7), (99, 0)])
        submitter.submit(self.job(0))
        executor.cancel([(0, 7), (99, 0)])
        submitter.wait_for(1)
        assert submitter.outcomes() == {(0, 0): Outcome.COMPLETED}

    def test_cancelling_all_ends_every_attempt(self, executor: Executor) -> None:
        jobs = [self.job(trial) for trial in range(executor.inventory().slots)]
        submitter = _Submitter(executor)
        for job in jobs:
            submitter.submit(job)
        executor.cancel([job.key for job in jobs])
        submitter.wait_for(len(jobs))
        assert submitter.outcomes().keys() == {job.key for job in jobs}
        assert set(submitter.outcomes().values()) <= {Outcome.PREEMPTED, Outcome.COMPLETED}

    @pytest.mark.parametrize("call", ["inventory", "cancel", "now"])
    def test_calls_other_than_wait_return_at_once(self, executor: Executor, call: str) -> None:
        submitter = _Submitter(executor)
        submitter.submit(self.job(0))
        calls: dict[str, Callable[[], object]] = {
            "inventory": executor.inventory,
            "cancel": lambda: executor.cancel([(0, 0)]),
            "now": executor.now,
        }
        began = time.monotonic()
        calls[call]()
        assert time.monotonic() - began < CALL_SECONDS
        submitter.wait_for(1)
