"""What is left trains in gangs: laws of units of several ranks, judged from what was told and answered alone."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.hopper.board import PlannedUnit
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.hopper.played_hops import play
from hpo_core.hopper.registry import POLICIES
from hpo_core.hopper.unit_times import GangLimit, UnitTimes
from hpo_core.model.rng import Stream


class Driven:
    """A drawn cluster driven to its end; keeps its own books, and judges each answer by them."""

    def __init__(
        self,
        seed: int,
        *,
        faults: bool = True,
        validation: int = 0,
        orders: dict[int, dict[int, list[Any]]] | None = None,
        partitions: int | None = None,
        epochs: dict[int, int] | None = None,
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.trained_on = partitions or rng.randint(1, 9)
        self.count = self.trained_on + validation
        workers = rng.randint(1, 9)
        self.holds = {f"w{number}": {number % self.count} for number in range(workers)}
        for partition in range(self.count):  # each somewhere, some in several places
            for _ in range(rng.randint(1, 3)):
                self.holds[f"w{rng.randrange(workers)}"].add(partition)
        self.orders = orders or {}
        self.times = UnitTimes()
        self.schedule = HopSchedule(
            self.trained_on,
            POLICIES[rng.choice(["remaining", "randomized"])](Stream(seed, "hops", 0)),
            times=self.times,
            validation=[f"v{place}" for place in range(validation)],
            gangs=GangLimit(self.times, gains={ranks: float(ranks) for ranks in range(2, 20)}),
        )
        for name, held in self.holds.items():
            self.schedule.worker_joined(name, held)
        self.epochs = epochs or {configuration: rng.randint(1, 3) for configuration in range(rng.randint(1, 4))}
        self.seen: dict[int, dict[int, list[tuple[int, ...]]]] = {c: {} for c in self.epochs}
        for configuration, to in self.epochs.items():
            self.schedule.add(configuration, to=to, orders=self.orders.get(configuration))
        self.running: dict[int, PlannedUnit] = {}
        self.there = set(self.holds)
        self.run(faults)

    def run(self, faults: bool) -> None:
        heap: list[tuple[float, int]] = []
        now = 0.0
        for _ in range(3000):
            for unit in self.schedule.next_units():
                self._began(unit)
                heapq.heappush(heap, (now + self.rng.choice([1.0, self.rng.uniform(0.5, 3)]), unit.number))
            self.schedule.check()
            self._none_waits_in_vain()
            if not heap:
                break
            now, number = heapq.heappop(heap)
            unit = self.running.pop(number)
            fate = self.rng.random() if faults else 1.0
            if fate < 0.1 and len(unit.seats) > 1:  # one of its workers goes, it ends, the worker is back
                name = self.rng.choice(unit.seats)[1]
                assert self.schedule.worker_lost(name) is not None
                self.schedule.check()
                assert unit.number in {each.number for each in self.schedule.in_flight()}
                self.schedule.unit_failed(unit)
                self.schedule.worker_joined(name, self.holds[name])
            elif fate < 0.2:
                assert self.schedule.unit_failed(unit)
            else:
                end = self.schedule.unit_ended(unit, seconds=1.0)
                assert end.counted
                self.seen[unit.configuration].setdefault(unit.epoch, []).append(unit.partitions)
                if end.order is not None:
                    flat = [each for group in self.seen[unit.configuration][unit.epoch] for each in group]
                    assert list(end.order) == flat[: self.trained_on]
        assert not self.running and not self.schedule.configurations(), "a configuration never comes to its end"

    def _began(self, unit: PlannedUnit) -> None:
        workers = [worker for _, worker in unit.seats]
        recorded = unit.epoch in self.orders.get(unit.configuration, {})
        assert recorded or len(set(workers)) == len(workers), "each rank has a worker of its own"
        assert all(partition in self.holds[worker] for partition, worker in unit.seats)
        busy = {worker for other in self.running.values() for _, worker in other.seats}
        assert busy.isdisjoint(workers), "no two units on one worker"
        assert all(other.configuration != unit.configuration for other in self.running.values())
        before = [each for group in self.seen[unit.configuration].get(unit.epoch, []) for each in group]
        assert not set(before) & set(unit.partitions) and len(set(unit.partitions)) == len(unit.partitions)
        if min(unit.partitions) >= self.trained_on:
            assert len(unit.partitions) == 1 and set(range(self.trained_on)) <= set(before)
        elif not recorded and len(workers) > 1:
            under_way, there = (
                len(self.schedule.configurations()),
                sum(bool(held & set(range(self.trained_on))) for held in self.holds.values()),
            )
            assert under_way < there / 2 and len(workers) <= there // under_way
        self.running[unit.number] = unit

    def _none_waits_in_vain(self) -> None:
        if self.orders:
            return
        busy = {worker for unit in self.running.values() for _, worker in unit.seats}
        flying = {unit.configuration for unit in self.running.values()}
        for configuration in set(self.schedule.configurations()) - flying:
            epoch = self.schedule.board.configurations[configuration].epoch
            seen = {each for group in self.seen[configuration].get(epoch, []) for each in group}
            trained = set(range(self.trained_on))
            left = trained - seen or set(range(self.count)) - seen
            idle = [worker for worker in self.holds if worker not in busy and self.holds[worker] & left]
            assert not idle, f"{configuration} needs {left}, and {idle} idle"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 2))
def test_gang_units_keep_the_invariants_of_hopping(seed: int, faults: bool, validation: int) -> None:
    driven = Driven(seed, faults=faults, validation=validation)
    for configuration, to in driven.epochs.items():
        assert sorted(driven.seen[configuration]) == list(range(1, to + 1))
        for groups in driven.seen[configuration].values():
            flat = [each for group in groups for each in group]
            assert sorted(flat) == list(range(driven.count)), "each partition once an epoch"
            assert set(flat[: driven.trained_on]) == set(range(driven.trained_on)), "those of validation last"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_a_record_is_followed_on_any_other_cluster(seed: int, other: int, faults: bool) -> None:
    first = Driven(seed, faults=False)
    orders: dict[int, dict[int, list[Any]]] = {
        configuration: {
            epoch: [list(group) if len(group) > 1 else group[0] for group in groups] for epoch, groups in epochs.items()
        }
        for configuration, epochs in first.seen.items()
    }
    again = Driven(other, faults=faults, partitions=first.trained_on, epochs=first.epochs, orders=orders)
    assert again.seen == first.seen


def linear(count: int, workers: int, *, gangs: bool) -> HopSchedule:
    times = UnitTimes()
    gains = {ranks: float(ranks) for ranks in range(2, workers + 1)}
    schedule = HopSchedule(workers, times=times, gangs=GangLimit(times, gains=gains) if gangs else None)
    for worker in range(workers):
        schedule.worker_joined(str(worker), [worker])
    for configuration in range(count):
        schedule.add(configuration, to=3)
    return schedule


@pytest.mark.parametrize(("configurations", "alone", "together"), [(1, 24, 3), (2, 24, 6), (3, 24, 14), (4, 24, 24)])
def test_with_linear_speedups_no_worker_idles(configurations: int, alone: int, together: int) -> None:
    """Eight workers, three epochs: 24 units alone; at most two ranks for three; none from half of the workers on."""
    for gangs, makespan in ((False, alone), (True, together)):
        schedule = linear(configurations, 8, gangs=gangs)
        assert play(schedule, lambda unit: 1.0).makespan == pytest.approx(makespan)


def test_units_of_an_epoch_are_of_equal_sizes() -> None:
    """Six partitions on four workers: twice three, not four and two."""
    times = UnitTimes()
    schedule = HopSchedule(6, times=times, gangs=GangLimit(times, gains={2: 2.0, 3: 3.0, 4: 4.0}))
    for worker in "abcd":
        schedule.worker_joined(worker, range(6))
    schedule.add(0, to=1)
    assert [len(each.unit.seats) for each in play(schedule, lambda unit: 1.0).units] == [3, 3]


def test_measured_gangs_double_while_they_are_worth_it_and_stop_where_they_are_not() -> None:
    times = UnitTimes()
    limit = GangLimit(times)
    times.observe(0, "a", 0, 10.0)

    def measure(ranks: int, gain: float) -> None:
        times.observe_gang(0, [(partition, "a") for partition in range(ranks)], 10.0 * ranks / gain)

    assert limit.ranks(1, 64) == 2, "before anything is known"
    measure(2, 1.9)
    assert limit.ranks(1, 64) == 4
    measure(4, 2.0)
    assert limit.ranks(1, 64) == 4, "once may be chance: the first one imports libraries"
    measure(4, 2.0)
    assert limit.ranks(1, 64) == 3
    measure(3, 2.0), measure(3, 2.0)
    assert limit.ranks(1, 64) == 2
    assert times.gain(2) == pytest.approx(1.9) and times.gain(3) == pytest.approx(2.0)
    assert (
        GangLimit(times, efficiency=0.5).ranks(1, 64) == 8 and GangLimit(times, efficiency=0.5, most=3).ranks(1, 9) == 3
    )


def test_a_model_that_nothing_is_known_of_trains_alone_before_gangs_are_measured() -> None:
    schedule = linear(1, 4, gangs=False)
    schedule.gangs = GangLimit(schedule.times)
    sizes = [len(each.unit.seats) for each in play(schedule, lambda unit: 1.0).units]
    assert sizes[:3] == [1, 2, 1] and max(sizes) == 4, "four partitions: one alone, two together, one"


def test_a_record_keeps_its_workers_free_until_its_gang_can_begin() -> None:
    """Without that, single units of other models would take one of the two workers whenever it is free."""
    schedule = HopSchedule(2)
    schedule.worker_joined("a", [0])
    schedule.worker_joined("b", [1])
    for configuration in range(4):
        schedule.add(configuration, to=50)
    first, second = schedule.next_units()
    schedule.add(9, to=1, orders={1: [[1, 0]]})
    schedule.unit_ended(first)
    assert schedule.next_units() == [], "its worker waits for the other one"
    schedule.check()
    schedule.unit_ended(second)
    (gang,) = schedule.next_units()
    assert (gang.configuration, gang.seats) == (9, ((1, "b"), (0, "a")))
    schedule.unit_ended(gang)
    assert len(schedule.next_units()) == 2, "and are free for all again"
