"""Workers change hands as soon as what runs there has ended: who closes which, who looks when, what is offered."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import msgspec
import pytest

from hpo_core.execution.executor import Inbox
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.devices.pool_member import Member
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.pool.executor import PooledExecutor, SlotPlaces, WorkerPlaces
from hpo_core.pool.seat import WHOLE_WORKERS, WORKER_SLOTS, PoolSeat, Terms
from hpo_core.pool.store import RowChange
from tests.sharing import test_pooled_units
from tests.sharing.in_memory import MemoryPools
from tests.sharing.test_pooled_executor import ByHand, Endless

WORKERS = ("a", "b", "c", "d")


class Plain:
    """A study on four workers of one slot; a test ends its jobs."""

    def __init__(self, pools: MemoryPools) -> None:
        self.inner = ByHand(len(WORKERS))
        kind = msgspec.structs.replace(WORKER_SLOTS, patience=60.0)
        self.seat = PoolSeat(pools, Terms(pool="p", study="plain", owner="plain"), Endless(), kind)
        threads: Mapping[str, int] = dict.fromkeys(WORKERS, 1)
        self.pooled = PooledExecutor(self.inner, self.seat, SlotPlaces(lambda: threads))
        self.trials = 0
        self.at: dict[str, int] = {}

    def room(self, now: float) -> int:
        """Slots that the study may use."""
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
        return "".join(name[0] for name in self.seat.grant.held)


@pytest.fixture
def pools() -> MemoryPools:
    return MemoryPools()


def claim(pools: MemoryPools, **claimed: object) -> None:
    """Another study says what it wants."""
    member = Member(study="other", owner="o", kind="worker slot", seen=4, **claimed)  # type: ignore[arg-type]
    pools.change("p", "other", lambda rows: RowChange(member))


def test_jobs_begin_on_workers_that_nobody_waits_for_while_others_are_given_back(pools: MemoryPools) -> None:
    plain = Plain(pools)
    assert plain.room(0.0) == 4
    for _ in WORKERS:
        plain.begin()
    claim(pools, demand=2, usable=("a#0", "b#0"))
    assert plain.room(6.0) == 4
    plain.end("c")
    plain.end("d")
    assert plain.room(6.5) == 4, "c and d are of no use to the other one, which is due a and b"
    plain.begin()
    assert plain.room(6.7) == 4 and set(plain.at) == {"a", "b", "c"}


def test_the_worker_of_whichever_job_ends_first_is_given_back(pools: MemoryPools) -> None:
    plain = Plain(pools)
    plain.room(0.0)
    for _ in WORKERS:
        plain.begin()
    claim(pools, demand=2, usable=("a#0", "b#0", "c#0", "d#0"))
    assert plain.room(6.0) == 4
    plain.end("a")  # the oldest job's: not the one that it was to give back
    assert plain.room(6.1) == 3, "no job begins there"
    assert plain.room(7.1) == 3 and plain.held() == "bcd"


def test_a_worker_is_given_back_in_the_moment_in_which_its_job_ends(pools: MemoryPools) -> None:
    plain = Plain(pools)
    plain.room(0.0)
    for _ in WORKERS:
        plain.begin()
    claim(pools, demand=1, usable=("b#0",))
    plain.room(6.0)
    plain.end("b")
    plain.room(6.1)
    assert plain.held() == "acd", "not at the next look, a second later"


def test_a_worker_is_promised_just_before_its_last_unit_ends(pools: MemoryPools) -> None:
    inner = test_pooled_units.ByHand()
    places = WorkerPlaces(test_pooled_units.Models())
    seat = PoolSeat(pools, Terms(pool="p", study="hops", owner="h"), places, WHOLE_WORKERS)
    units = PooledExecutor(inner, seat, places)
    useful = ["a", "b"]
    places.useful = lambda holdings: useful
    claim(pools, demand=1, usable=("a#0",))
    units.inventory()

    def unit_on_a(trial: int, lasts: float) -> None:
        began = inner.moment
        units.submit(test_pooled_units.unit(trial), Slot(0, 0, "a"), lambda job, report: None)
        inner.moment = began + lasts

    def end() -> None:
        job, on_report = inner.begun.pop("a")
        times = {"started": inner.moment - 10.0, "ended": inner.moment}
        on_report(job, Report(trial=job.trial, attempt=0, outcome=Outcome.COMPLETED, **times))

    claim(pools, demand=1)
    unit_on_a(0, 10.0)
    useful.remove("a")
    units.inventory()
    assert seat.mine.ending == (), "nobody knows how long a unit lasts"
    useful.append("a")
    units.inventory()
    end()
    inner.moment += 2.0
    units.inventory()
    unit_on_a(1, 5.0)
    useful.remove("a")
    units.inventory()
    assert seat.mine.ending == () and "a#0" in seat.grant.held
    inner.moment += 4.2
    units.inventory()
    assert seat.mine.ending == ("a#0",) and "a#0" in seat.grant.held

    inbox = Inbox()
    units.wait(inbox, 0.0)
    end()
    began = time.monotonic()
    inbox.wait(30.0)
    assert time.monotonic() - began < 20, "the loop looks at once"
    units.inventory()
    assert "a#0" not in seat.grant.held and seat.mine.ending == ()


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
