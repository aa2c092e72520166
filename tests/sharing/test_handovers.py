"""Workers change hands as soon as what runs there has ended: who closes which, who looks when, what is offered."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from hpo_core.execution.executor import Inbox
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job, Rung
from hpo_core.pool.division import Member
from hpo_core.pool.executor import PooledExecutor, SlotPlaces
from hpo_core.pool.seat import PoolSeat, Terms
from hpo_core.pool.store import PoolRow
from tests.sharing.in_memory import MemoryPools
from tests.sharing.test_pooled_executor import ByHand, Endless

WORKERS = ("a", "b", "c", "d")


class Plain:
    """A study on four workers of one slot; a test ends its jobs."""

    def __init__(self, pools: MemoryPools) -> None:
        self.inner = ByHand(len(WORKERS))
        threads: Mapping[str, int] = dict.fromkeys(WORKERS, 1)
        places = SlotPlaces(Endless(), lambda: threads)
        self.seat = PoolSeat(pools, Terms(pool="p", study="plain", owner="plain", unit="worker"), places)
        self.pooled = PooledExecutor(self.inner, self.seat, places)
        self.trials = 0
        self.at: dict[str, int] = {}

    def room(self, now: float) -> int:
        self.inner.moment = now
        return self.pooled.inventory().slots

    def begin(self) -> None:
        slot = Slot(0, 0, "dask")
        self.pooled.submit(Job(self.trials, 0, Rung(0, 0), 1, {}), slot, lambda job, report: None)
        ((_, each),) = [item for item in self.pooled._running.items() if item[1].job.trial == self.trials]
        self.at[each.slot.name] = self.trials
        self.trials += 1

    def end(self, worker: str) -> None:
        self.inner.end(self.at.pop(worker))

    def held(self) -> str:
        return "".join(name[0] for name in self.seat.held)


@pytest.fixture
def pools() -> MemoryPools:
    return MemoryPools()


def claim(pools: MemoryPools, **claimed: object) -> None:
    member = Member(study="other", owner="o", unit="worker", seen=4, **claimed)  # type: ignore[arg-type]
    pools.change("p", "other", lambda rows: [PoolRow("p", "other", member)])


def test_the_worker_of_whichever_job_ends_first_is_given_back(pools: MemoryPools) -> None:
    plain = Plain(pools)
    plain.room(0.0)
    for _ in WORKERS:
        plain.begin()
    claim(pools, demand=2, usable=WORKERS)
    assert plain.room(6.0) == 4
    plain.end("a")  # the oldest job's: not the one that it was to give back
    assert plain.room(6.1) == 3, "no job begins there"
    assert plain.room(7.1) == 3 and plain.held() == "bcd"


def test_a_loop_that_waits_is_woken_once() -> None:
    inbox, woken = Inbox(), []

    def waits() -> None:
        inbox.wait(60.0)
        woken.append(True)

    thread = threading.Thread(target=waits)
    thread.start()
    inbox.wake()
    thread.join(600)
    assert woken == [True]
    began = time.monotonic()
    inbox.wait(0.2)
    assert time.monotonic() - began >= 0.19, "once"
