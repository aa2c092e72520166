"""The shortest schedule against every schedule there is."""

from __future__ import annotations

import itertools
import random

import pytest

from hpo_core.hopper.exact_policy import Plan, solve
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.hopper.played_hops import play
from tests.contract_suites.hop_policy_contract import complaints

pytest.importorskip("scipy", reason="SciPy comes with the extra 'samplers'")


def by_trying_everything(seconds: dict[tuple[int, int], float]) -> float:
    """Units begin as early as they can, in every order."""
    best = float("inf")
    for order in itertools.permutations(seconds):
        free: dict[tuple[str, int], float] = {}
        for unit in order:
            keys = (("configuration", unit[0]), ("worker", unit[1]))
            free |= dict.fromkeys(keys, max(free.get(key, 0.0) for key in keys) + seconds[unit])
        best = min(best, *[max(free.values())])
    return best


def is_lawful(plan: Plan, seconds: dict[tuple[int, int], float], partitions: int) -> bool:
    log = [(str(unit[1]), unit[0], unit[1], start, start + seconds[unit] - 1e-6) for unit, start in plan.starts.items()]
    epochs = {configuration: 1 for configuration, _ in seconds}
    return complaints(log, partitions=partitions, epochs=epochs) == []


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_is_shorter(seed: int) -> None:
    rng = random.Random(seed)
    rows, columns = rng.choice([(3, 2), (2, 3), (2, 2)])
    seconds = {(row, column): float(rng.randint(1, 9)) for row in range(rows) for column in range(columns)}
    plan = solve(seconds)
    assert plan.is_optimal and is_lawful(plan, seconds, columns)
    assert plan.makespan == pytest.approx(by_trying_everything(seconds))


@pytest.mark.parametrize("seed", [10, 11])
def test_the_program_finds_what_the_policy_misses(seed: int) -> None:
    rng = random.Random(seed)
    seconds = {(row, column): float(rng.randint(1, 9)) for row in range(3) for column in range(3)}
    plan = solve(seconds)
    assert plan.is_optimal and is_lawful(plan, seconds, 3)
    schedule = HopSchedule(3)
    for partition in range(3):
        schedule.worker_joined(str(partition), [partition])
        schedule.add(partition, to=1)
    assert plan.makespan < play(schedule, lambda unit: seconds[unit.configuration, unit.partition]).makespan
