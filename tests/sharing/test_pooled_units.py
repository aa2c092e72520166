"""Units in a pool where other threads start and end units while the pool is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from hpo_core.execution.executor import OnReport
from hpo_core.model.devices.inventory import Device, HeldPartitions, Inventory, Slot
from hpo_core.model.hops import Unit
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.pool.executor import PooledExecutor, WorkerPlaces
from hpo_core.pool.seat import HOPPED_WORKERS, PoolSeat, Terms
from hpo_core.pool.store import PoolRow, RowChange
from tests.sharing.in_memory import MemoryPools
from tests.sharing.test_pooled_executor import ByHand, Endless

WORKERS = ("a", "b")


class ByUnits(ByHand):
    """Two workers that hold a partition each; a test ends their units."""

    def __init__(self) -> None:
        super().__init__(len(WORKERS))
        self.units: dict[str, tuple[Job, OnReport]] = {}
        """That have begun, by worker."""

    def inventory(self) -> Inventory:
        return Inventory(
            tuple(Device(name, partitions=HeldPartitions(frozenset([f"part-{name}"]))) for name in WORKERS)
        )

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        assert slot.name not in self.units
        self.units[slot.name] = job, on_report


class Interrupted(MemoryPools):
    """Calls a function in the middle of the next change, as another thread might do something then."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def change(self, pool: str, study: str, decide: Callable[[Sequence[PoolRow]], RowChange | None]) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None

        def decided(rows: Sequence[PoolRow]) -> RowChange | None:
            meanwhile()
            return decide(rows)

        super().change(pool, study, decided)


class Models(Endless):
    """A study with two models."""

    def demand(self, most: int) -> int:
        return min(most, 2)


def unit(trial: int, number: int = 0) -> Job:
    place = Unit(partition="part-a", index=0, place=0, count=2, number=number, state="", durable=False, hopped=False,
                 trains=True, cached=1, elapsed=0.0)  # fmt: skip
    return Job(trial, 0, Rung(0, 0), 1, {}, unit=place)


@pytest.fixture
def pools() -> Interrupted:
    return Interrupted()


def opened(units: PooledExecutor) -> set[str]:
    """Workers on which units may begin."""
    return {device.name for device in units.inventory().devices if device.slots}


def hopping(pools: MemoryPools, study: str) -> tuple[PooledExecutor, ByUnits]:
    inner = ByUnits()
    places = WorkerPlaces(Models())
    seat = PoolSeat(pools, Terms(pool="p", study=study, owner=study), places, HOPPED_WORKERS)
    seat.kind = msgspec.structs.replace(HOPPED_WORKERS, patience=1.0)
    units = PooledExecutor(inner, seat, places)
    places.useful = sorted
    return units, inner


def test_a_unit_that_begins_while_the_pool_is_looked_at_waits_for_what_is_found(pools: Interrupted) -> None:
    """Its worker was idle when the look began, and is given to another study by it."""
    units, inner = hopping(pools, "one")
    assert opened(units) == set(WORKERS)
    other, _ = hopping(pools, "other")
    other.inventory()  # it wants both
    told: list[tuple[Job, Report]] = []
    begun_meanwhile = []

    def meanwhile() -> None:
        for place, worker in enumerate(WORKERS):
            units.submit(unit(place), Slot(place, 0, worker), lambda job, report: told.append((job, report)))
        begun_meanwhile.extend(inner.units)

    pools.meanwhile = meanwhile
    inner.moment = 6.0
    units.inventory()
    held = list(units.seat.grant.held)
    assert begun_meanwhile == [] and len(held) == 1
    assert list(inner.units) == held, "on the worker that it still holds it begins after the look"
    ((_, report),) = told
    assert report.outcome is Outcome.PREEMPTED and "another study of pool p" in report.message
    assert opened(units) == set(held)


def test_a_unit_that_follows_another_on_a_held_worker_begins_at_once(pools: Interrupted) -> None:
    units, inner = hopping(pools, "one")
    units.inventory()
    units.submit(unit(0), Slot(0, 0, "a"), lambda job, report: None)

    def meanwhile() -> None:
        job, on_report = inner.units.pop("a")
        on_report(job, Report(trial=0, attempt=0, outcome=Outcome.COMPLETED))
        units.submit(unit(1), Slot(0, 0, "a"), lambda job, report: None)
        assert inner.units["a"][0].trial == 1

    pools.meanwhile = meanwhile
    inner.moment = 6.0
    units.inventory()
    assert inner.units["a"][0].trial == 1 and "a" in units.seat.grant.held


def test_a_unit_that_lost_its_worker_takes_no_other_unit_of_its_model_along(pools: Interrupted) -> None:
    """One that was repeated elsewhere has the same attempt, and waits for a worker that the study holds."""
    units, inner = hopping(pools, "one")
    units.inventory()
    other, _ = hopping(pools, "other")
    other.inventory()  # it wants both
    inner.moment = 6.0
    units.inventory()
    (held,) = units.seat.grant.held
    (gone,) = set(WORKERS) - {held}
    told: list[str] = []

    def meanwhile() -> None:
        for number, worker in enumerate((held, gone)):
            slot = Slot(0, 0, worker)
            units.submit(unit(0, number), slot, lambda job, report, worker=worker: told.append(worker))  # type: ignore[misc]

    pools.meanwhile = meanwhile
    inner.moment = 12.0
    units.inventory()
    assert told == [gone] and list(inner.units) == [held]
