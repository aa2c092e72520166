from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.played_hops import lower_bound, play
from hpo_core.hopper.board import PlannedUnit, UnitTimes
from hpo_core.hopper.hop_policies import POLICIES
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.rng import Stream


def schedule_of(partitions: int, **more: Any) -> HopSchedule:
    schedule = HopSchedule(partitions, **more)
    for partition in range(partitions):
        schedule.worker_joined(str(partition), [partition])
    return schedule


def test_a_lost_unit_is_repeated_alone() -> None:
    schedule = HopSchedule(3)
    schedule.worker_joined("a", range(3))
    schedule.add(0, to=1)
    for _ in range(2):
        (unit,) = schedule.next_units()
        schedule.unit_ended(unit)
    schedule.next_units()
    schedule.worker_lost("a")
    schedule.worker_joined("a", range(3))
    assert len(schedule.visits(0)) == 2
    assert len(play(schedule, lambda unit: 1.0).units) == 1


def test_a_configuration_begins_its_next_epoch_while_others_are_in_theirs() -> None:
    schedule = schedule_of(2)
    schedule.add(0, to=2)
    schedule.add(1, to=2)
    played = play(schedule, lambda unit: 1.0 if unit.configuration == 0 else 10.0)
    begins = {(each.unit.configuration, each.unit.epoch): each.begin for each in reversed(played.units)}
    ends = {(each.unit.configuration, each.unit.epoch): each.end for each in played.units}
    assert begins[0, 2] < ends[1, 1]


def test_a_partition_without_a_worker_halts_with_its_name_and_the_others_go_on() -> None:
    schedule = HopSchedule(["north", "south"])
    schedule.worker_joined("a", [0])
    schedule.add(4, to=1)
    schedule.add(5, to=1)
    assert len(play(schedule, lambda unit: 1.0).units) == 2
    assert schedule.halted() == {"south": (4, 5)}
    schedule.worker_joined("b", [1])
    assert schedule.halted() == {}
    assert len(play(schedule, lambda unit: 1.0).units) == 2


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_partitions_of_validation_come_when_the_others_were_visited(policy: str) -> None:
    schedule = HopSchedule(2, POLICIES[policy](Stream(0, "hops", 0)), validation=["v0", "v1"])
    for place in range(2):
        schedule.worker_joined(str(place), [place, place + 2])
    for configuration in range(3):
        schedule.add(configuration, to=2)
    schedule.check()
    played = play(schedule, lambda unit: 1.0, on_end=lambda schedule, unit, end: schedule.check())
    for configuration in range(3):
        order = [each.unit.partition for each in played.units if each.unit.configuration == configuration]
        assert [partition >= 2 for partition in order] == [False, False, True, True] * 2


def test_a_worker_that_joins_within_an_epoch_takes_units_at_once() -> None:
    schedule = HopSchedule(4)
    schedule.worker_joined("a", range(4))
    for configuration in range(4):
        schedule.add(configuration, to=1)

    def join(schedule: HopSchedule) -> PlannedUnit | None:
        return schedule.worker_joined("b", range(4))

    played = play(schedule, lambda unit: 1.0, happenings=[(4.0, join)])
    assert played.makespan == 4.0 + 12 / 2


def test_a_stopped_configuration_keeps_its_worker_busy_until_its_unit_ends() -> None:
    schedule = schedule_of(1)
    schedule.add(0, to=1)
    (unit,) = schedule.next_units()
    assert schedule.remove(0) == unit
    schedule.add(0, to=1)  # tried again: not before the old unit has ended
    schedule.add(1, to=1)
    assert schedule.next_units() == []
    assert not schedule.unit_ended(unit).counted
    assert len(play(schedule, lambda unit: 1.0).units) == 2


def test_all_units_that_may_start_are_equally_likely_in_the_randomized_schedule() -> None:
    """Algorithm 1 shuffles the units and takes the first that may start."""
    counts = {(configuration, partition): 0 for configuration in range(3) for partition in range(2)}
    for seed in range(1200):
        schedule = HopSchedule(3, POLICIES["randomized"](Stream(seed, "hops", 0)))
        for configuration in range(3):
            schedule.add(configuration, to=1)
        schedule.worker_joined("a", [0, 1])
        (unit,) = schedule.next_units()
        counts[unit.configuration, unit.partition] += 1
    assert all(abs(count - 200) < 5 * (200 * 5 / 6) ** 0.5 for count in counts.values())


@pytest.mark.parametrize(("configurations", "workers"), [(8, 8), (16, 8), (16, 16), (13, 4)])
def test_equal_units_leave_no_gap(configurations: int, workers: int) -> None:
    schedule = schedule_of(workers)
    for configuration in range(configurations):
        schedule.add(configuration, to=3)
    played = play(schedule, lambda unit: 1.0)
    assert played.makespan == 3 * lower_bound([[1.0] * workers] * configurations)
    assert played.hops == 3 * configurations * workers


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"to": 0}, "less than to = 0"),
        ({"to": 3, "after": 3}, "after = 3 must be"),
        ({"to": 1, "visited": [0, 0]}, "each at most once"),
        ({"to": 1, "visited": [0, 1, 2]}, "leave at least one"),
        ({"to": 1, "visited": [3]}, "places from 0"),
        ({"to": 1, "orders": {1: [0, 1]}}, "must visit each of 3 partitions once"),
        ({"to": 1, "visited": [2], "orders": {1: [0, 1, 2]}}, "must begin with that"),
    ],
)
def test_an_impossible_job_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        schedule_of(3).add(0, **given)


def test_impossible_workers_and_partitions_are_refused() -> None:
    schedule = schedule_of(2)
    with pytest.raises(ValueError, match="'0' is here already"):
        schedule.worker_joined("0", [0])
    with pytest.raises(ValueError, match="places from 0 to 1"):
        schedule.worker_joined("x", [2])
    with pytest.raises(ValueError, match="none of them twice"):
        HopSchedule(["a", "a"])


def test_a_worker_goes_on_with_partitions_that_are_in_its_memory() -> None:
    """All lie on both workers, and five of eight fit into the memory of one: few of them are loaded again."""
    schedule = HopSchedule(8)
    memory: dict[str, list[int]] = {"a": [], "b": []}
    for worker in memory:
        schedule.worker_joined(worker, range(8))
    for configuration in range(4):
        schedule.add(configuration, to=3)
    rounds = loads = 0
    while units := schedule.next_units():
        rounds += 1
        for unit in units:
            held = memory[unit.worker]
            loads += unit.partition not in held
            memory[unit.worker] = [*(each for each in held if each != unit.partition), unit.partition][-5:]
            schedule.unit_ended(unit, seconds=1.0)
    assert rounds == 4 * 3 * 8 / 2, "no worker ever waits"
    assert loads <= rounds, "at least half of the units find their partition in memory"


def test_costs_and_slowness_are_found_from_units_that_ended() -> None:
    rng = random.Random(4)
    costs = [rng.uniform(1, 50) for _ in range(12)]
    slowness = [rng.choice([0.5, 1.0, 2.0]) for _ in range(6)]
    sizes = [1.0, 1.0, 2.0, 1.0, 0.5, 1.0]
    times = UnitTimes(sizes)
    mean = sum(sizes) / len(sizes)

    def seconds(configuration: int, worker: int) -> float:
        return costs[configuration] * slowness[worker] * sizes[worker] / mean

    pairs = [(configuration, worker) for configuration in range(12) for worker in range(6)]
    for _ in range(2):  # two epochs
        rng.shuffle(pairs)
        for configuration, worker in pairs:
            times.observe(configuration, str(worker), worker, seconds(configuration, worker) * rng.uniform(0.9, 1.1))
    for configuration, worker in pairs:
        assert times.seconds(configuration, str(worker), worker) == pytest.approx(
            seconds(configuration, worker), rel=0.15
        )


def test_a_worker_that_becomes_slow_is_noticed() -> None:
    times = UnitTimes()
    for _ in range(50):
        for worker in "ab":
            times.observe(0, worker, 0, 1.0)
    for _ in range(100):
        times.observe(0, "a", 0, 3.0)
        times.observe(0, "b", 0, 1.0)
    assert times.slowness("a") / times.slowness("b") == pytest.approx(3.0, rel=0.1)


def test_impossible_times_are_refused_and_a_clock_that_went_back_is_left_out() -> None:
    times = UnitTimes()
    times.observe(0, "a", 0, -3.0)
    assert not times.is_known(0)
    with pytest.raises(ValueError, match="size must be finite and above 0"):
        UnitTimes([1.0, 0.0])


def test_evaluations_that_are_short_are_no_news_of_the_training() -> None:
    times = UnitTimes([1.0, 1.0, 2.0], trained_on=2)
    for _ in range(30):
        for configuration, cost in ((0, 10.0), (1, 30.0)):
            for partition in range(2):
                times.observe(configuration, "a", partition, cost)
            times.observe(configuration, "a", 2, 0.1 * 2.0 * cost)
            assert times.cost(configuration) * times.slowness("a") == pytest.approx(cost, rel=0.01)
    assert times.seconds(1, "a", 2) == pytest.approx(6.0, rel=0.05)


def test_a_configuration_without_units_takes_size_times_the_mean_so_far() -> None:
    times = UnitTimes([1.0, 3.0])
    times.observe(0, "a", 0, 2.0)
    times.observe(1, "a", 0, 8.0)
    assert times.seconds(2, "b", 1) == pytest.approx(3 * times.seconds(2, "b", 0))
    assert times.cost(2) == pytest.approx((times.cost(0) * times.cost(1)) ** 0.5)
