"""PooledExecutor: jobs that wait for a slot, reports, and what short jobs claim."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.model.devices.inventory import Inventory, Slot, slots_demand
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.pool.executor import PooledExecutor, SlotPlaces
from hpo_core.pool.seat import PoolSeat, Terms
from tests.sharing.in_memory import MemoryPools, used


class ByHand:
    """An executor whose clock and reports are in the hands of a test."""

    poll_seconds = 1.0

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.moment = 0.0
        self.begun: dict[int, tuple[Job, OnReport]] = {}
        self.cancelled: list[tuple[int, int]] = []

    def inventory(self) -> Inventory:
        return Inventory.of(self.slots, "dask")

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self.begun[job.trial] = job, on_report

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        self.cancelled += attempts

    def now(self) -> float:
        return self.moment

    def wait(self, inbox: Inbox, until: float) -> bool:
        return False

    def end(self, trial: int, outcome: Outcome = Outcome.COMPLETED) -> None:
        job, on_report = self.begun.pop(trial)
        on_report(job, Report(trial=trial, attempt=0, outcome=outcome))


class Endless:
    """A study that could use any number of slots."""

    job_slots = 1

    def demand(self, most: int) -> int:
        return most

    def spare(self, most: int) -> int:
        return 0


def pooled_on(inner: ByHand, pools: MemoryPools) -> PooledExecutor:
    return PooledExecutor(
        inner, PoolSeat(pools, Terms(pool="p", study="s", owner="me"), Endless()), SlotPlaces(Endless())
    )


@pytest.fixture
def inner() -> ByHand:
    return ByHand(2)


@pytest.fixture
def pooled(inner: ByHand) -> PooledExecutor:
    return pooled_on(inner, MemoryPools())


def submit(executor: PooledExecutor, trial: int, told: list[Report], slots: int = 1) -> None:
    job = Job(trial, 0, Rung(0, 0), 1, {}, demand=slots_demand(slots))
    executor.submit(job, Slot(0, 0, "dask"), lambda _, report: told.append(report))


def test_a_job_that_waits_begins_as_soon_as_another_one_ends(inner: ByHand) -> None:
    """The share shrank after it was submitted. A study left the slot that it was due idle until its next look."""
    pools = MemoryPools()
    pooled = pooled_on(inner, pools)
    other = PoolSeat(pools, Terms(pool="p", study="other", owner="it"), Endless())
    pooled.inventory()
    for trial in range(2):
        submit(pooled, trial, [])
    other.exchange(0.5, range(2))
    inner.moment = 2.0
    assert pooled.inventory().slots == 1
    submit(pooled, 2, [])
    assert inner.begun.keys() == {0, 1}
    inner.moment = 2.1
    inner.end(0)
    pooled.wait(Inbox(), 2.1)
    assert inner.begun.keys() == {1}
    other.exchange(2.2, range(2))
    assert len(other.open(2.2)) == 1, "what is above the share is given back at once, too"
    inner.moment = 2.3
    inner.end(1)
    pooled.wait(Inbox(), 2.3)
    assert inner.begun.keys() == {2}


def test_a_job_that_finds_no_slot_waits_for_one_and_may_be_cancelled(inner: ByHand, pooled: PooledExecutor) -> None:
    pooled.inventory()
    told: list[Report] = []
    for trial in range(4):
        submit(pooled, trial, told)
    assert list(inner.begun) == [0, 1] and used(pooled) == 2
    pooled.cancel([(2, 0), (0, 0)])
    assert [(report.trial, report.outcome) for report in told] == [(2, Outcome.PREEMPTED)]
    assert inner.cancelled == [(0, 0)]
    inner.end(0, Outcome.PREEMPTED)
    inner.moment += 2.0
    pooled.inventory()
    assert list(inner.begun) == [1, 3]
    pooled.cancel([(1, 0), (3, 0)])
    assert {report.trial for report in told} == {0, 2}


def test_a_trial_that_grew_does_not_wait_for_slots_that_went_to_others(inner: ByHand, pooled: PooledExecutor) -> None:
    """Granted with four slots just before another study came: it, and those behind it, waited for ever."""
    inner.slots = 4
    told: list[Report] = []
    assert pooled.inventory().slots == 4
    submit(pooled, 0, told, slots=3)
    submit(pooled, 1, told, slots=4)
    submit(pooled, 2, told)
    other = PoolSeat(pooled.seat._pools, Terms(pool="p", study="other", owner="o"), Endless())
    for moment in range(1, 12):
        inner.moment = float(moment)
        other.exchange(inner.moment, range(4))
        pooled.inventory()
        if moment == 5:
            inner.end(0)
    (ended,) = [report for report in told if report.trial]
    assert (ended.trial, ended.outcome) == (1, Outcome.PREEMPTED) and "size is decided again" in ended.message
    assert list(inner.begun) == [2]
