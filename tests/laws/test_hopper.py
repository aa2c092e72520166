"""Laws of model hopper parallelism, whatever joins, leaves, fails or is stopped, and in whichever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from benchmarks.played_hops import Played, play
from hpo_core.hopper.board import PlannedUnit, UnitTimes
from hpo_core.hopper.hop_policies import POLICIES
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.rng import Stream


@dataclass(eq=False)
class Job:
    """What was added: one configuration until it is finished or removed."""

    configuration: int
    after: int
    to: int
    orders: dict[int, list[int]]
    ended: int = 0
    """Epochs that ended since it was added."""
    visited: list[int] = field(default_factory=list)
    """Partitions of the epoch under way."""

    @property
    def epoch(self) -> int:
        return self.after + 1 + self.ended


class HopLaws(RuleBasedStateMachine):
    """A schedule beside a model of sets and lists that knows nothing of how the schedule keeps them."""

    policy = "remaining"

    @initialize(partitions=st.integers(1, 5), seed=st.integers(0, 99))
    def begin(self, partitions: int, seed: int) -> None:
        self.partitions = partitions
        self.schedule = HopSchedule(
            [f"part-{place}" for place in range(partitions)],
            POLICIES[self.policy](Stream(seed, "hops", 0)),
            times=UnitTimes([1.0 + place for place in range(partitions)]),
        )
        self.holds: dict[str, set[int]] = {}
        self.jobs: dict[int, Job] = {}
        self.flying: dict[str, tuple[PlannedUnit, Job]] = {}
        self.late: list[PlannedUnit] = []
        for place in range(partitions):
            self.holds["abcde"[place]] = {place}
            self.schedule.worker_joined("abcde"[place], {place})

    @rule(configuration=st.integers(0, 7), epochs=st.integers(1, 3), data=st.data())
    def add(self, configuration: int, epochs: int, data: st.DataObject) -> None:
        if configuration in self.jobs:
            with pytest.raises(ValueError, match="is under way already"):
                self.schedule.add(configuration, to=9)
            return
        after = data.draw(st.integers(0, 2))
        orders = {}
        if data.draw(st.booleans()):
            orders = {after + 1: data.draw(st.permutations(range(self.partitions)))}
        job = self.jobs[configuration] = Job(configuration, after, after + epochs, orders)
        self.schedule.add(configuration, after=after, to=job.to, orders=orders)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        configuration = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs.pop(configuration)
        mine = [unit for unit, owner in self.flying.values() if owner is job]
        assert self.schedule.remove(configuration) == (mine[0] if mine else None)

    @rule(worker=st.sampled_from("abcdefg"), data=st.data())
    def worker_joins_or_changes(self, worker: str, data: st.DataObject) -> None:
        held = data.draw(st.sets(st.integers(0, self.partitions - 1)))
        if worker in self.holds:
            self.schedule.worker_holds(worker, held)
        else:
            self.schedule.worker_joined(worker, held)
        self.holds[worker] = held

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def worker_is_lost(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.holds)))
        del self.holds[worker]
        lost = self.schedule.worker_lost(worker)
        assert lost == (self.flying[worker][0] if worker in self.flying else None)
        if lost is not None:
            self.gone(lost)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def unit_fails(self, data: st.DataObject) -> None:
        unit = self.flying[data.draw(st.sampled_from(sorted(self.flying)))][0]
        assert self.schedule.unit_failed(unit)
        self.gone(unit)

    def gone(self, unit: PlannedUnit) -> None:
        del self.flying[unit.worker]
        self.late.append(unit)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_end(self, data: st.DataObject) -> None:
        """A unit that was lost, or ended already, changes nothing."""
        unit = data.draw(st.sampled_from(self.late))
        assert not self.schedule.unit_ended(unit, seconds=1.0).counted
        assert not self.schedule.unit_failed(unit)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), seconds=st.floats(0.01, 100.0), ends=st.integers(1, 6))
    def units_end(self, data: st.DataObject, seconds: float, ends: int) -> None:
        for _ in range(ends):
            if self.flying:
                self.end(data.draw(st.sampled_from(sorted(self.flying))), seconds)
                self.next_units()

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def unit_ends_and_nobody_asks(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.flying))), 1.0)

    def end(self, worker: str, seconds: float) -> None:
        unit, job = self.flying.pop(worker)
        end = self.schedule.unit_ended(unit, seconds=seconds)
        self.late.append(unit)
        assert end.counted == (self.jobs.get(job.configuration) is job)
        if not end.counted:
            return
        job.visited.append(unit.partition)
        order = tuple(job.visited)
        if len(order) < self.partitions:
            assert end.order is None and not end.job_ended
            assert self.schedule.visits(job.configuration) == order
            return
        assert end.order == order == tuple(job.orders.get(unit.epoch, order))
        assert sorted(order) == list(range(self.partitions)), "each partition once an epoch"
        job.visited.clear()
        job.ended += 1
        assert end.job_ended == (unit.epoch == job.to)
        if end.job_ended:
            del self.jobs[job.configuration]

    @rule()
    def next_units(self) -> None:
        for unit in self.schedule.next_units():
            job = self.jobs[unit.configuration]
            assert unit.worker not in self.flying, "a worker runs two units"
            assert unit.partition in self.holds[unit.worker], "the partition does not lie there"
            assert all(other.configuration != unit.configuration for other, _ in self.flying.values())
            assert unit.partition not in job.visited
            assert unit.epoch == job.epoch
            self.flying[unit.worker] = (unit, job)
        self.nothing_waits_in_vain()

    def nothing_waits_in_vain(self) -> None:
        busy = {unit.configuration for unit, _ in self.flying.values()}
        needed = set()
        for job in self.jobs.values():
            if job.configuration not in busy:
                order = job.orders.get(job.epoch)
                needed |= {order[len(job.visited)]} if order else set(range(self.partitions)) - set(job.visited)
        for worker in self.holds.keys() - self.flying.keys():
            assert not self.holds[worker] & needed, f"{worker} is idle and holds what a configuration waits for"

    def teardown(self) -> None:
        if not hasattr(self, "schedule"):
            return
        self.schedule.check()
        self.nobody_holds()
        while self.schedule.configurations():
            if "z" not in self.holds:
                self.holds["z"] = set(range(self.partitions))
                self.schedule.worker_joined("z", self.holds["z"])
            self.next_units()
            assert self.flying, "a configuration is left and nothing runs"
            self.end(min(self.flying), 1.0)
            self.schedule.check()
        assert not self.jobs

    def nobody_holds(self) -> None:
        held = set().union(*self.holds.values())
        flying = {unit.configuration: unit.partition for unit, job in self.flying.values()
                  if self.jobs.get(unit.configuration) is job}  # fmt: skip
        expected = {}
        for partition in set(range(self.partitions)) - held:
            needing = {
                job.configuration
                for job in self.jobs.values()
                if job.epoch < job.to or (partition not in job.visited and flying.get(job.configuration) != partition)
            }
            if needing:
                expected[f"part-{partition}"] = needing
        assert {name: set(needing) for name, needing in self.schedule.halted().items()} == expected


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_laws_hold_whatever_happens(policy: str) -> None:
    machine = type("HopLaws", (HopLaws,), {"policy": policy})
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_stream_gives_the_same_schedule(policy: str) -> None:
    def played(seed: int) -> Played:
        schedule = HopSchedule(4, POLICIES[policy](Stream(seed, "hops", 0)))
        for place in range(4):
            schedule.worker_joined(f"worker-{place}", {place, (place + seed) % 4})
        for configuration in range(5):
            schedule.add(configuration, to=1 + configuration % 2)
        return play(schedule, lambda unit: 1.0 + unit.configuration % 3)

    assert all(played(seed) == played(seed) for seed in range(5))
