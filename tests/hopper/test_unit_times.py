"""Estimates of unit times."""

from __future__ import annotations

import random

import pytest

from hpo_core.hopper.board import UnitTimes


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
