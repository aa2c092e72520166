"""HopPolicyContract: what every hop policy must do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

import pytest

from benchmarks.played_hops import Played, play
from hpo_core.hopper.board import PlannedUnit
from hpo_core.hopper.hop_policies import HopPolicy
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.rng import Stream

Visit = tuple[str, int, int, float, float]
"""(worker, configuration, partition, begin, end) of a unit that counted."""


def complaints(
    log: Iterable[Visit],
    *,
    partitions: int,
    epochs: Mapping[int, int],
    holds: Callable[[str, int], bool] = lambda worker, partition: True,
) -> list[str]:
    """What breaks the rules of model hopper parallelism (Cerebro, Section 3.1); empty if nothing does.

    Args:
        log: in any order.
        partitions: how many there are; those of the log are places from 0.
        epochs: by configuration, how many it had to train.
        holds: whether the partition lay on the worker.

    >>> log = [("a", 0, 0, 0.0, 1.0), ("b", 0, 1, 0.5, 2.0)]
    >>> complaints(log, partitions=2, epochs={0: 1})
    ['configuration 0 runs on a and b at once']
    >>> complaints([log[0], log[0]], partitions=2, epochs={0: 1})[-1]
    'configuration 0, epoch 1: visited [0, 0] of 2 partitions'
    """
    visits = sorted(log, key=lambda visit: visit[3])
    found = []
    for one, other in combinations(visits, 2):
        if max(one[3], other[3]) < min(one[4], other[4]):
            if one[0] == other[0]:
                found.append(f"worker {one[0]} runs configurations {one[1]} and {other[1]} at once")
            if one[1] == other[1]:
                found.append(f"configuration {one[1]} runs on {one[0]} and {other[0]} at once")
    for worker, configuration, partition, begin, end in visits:
        if not holds(worker, partition):
            found.append(f"configuration {configuration}: partition {partition} does not lie on {worker}")
        if end < begin or configuration not in epochs:
            found.append(f"configuration {configuration} on {worker}: {begin} to {end} should not be there")
    for configuration, count in epochs.items():
        order = [visit[2] for visit in visits if visit[1] == configuration]
        for epoch in range(count):
            visited = order[epoch * partitions : (epoch + 1) * partitions]
            if sorted(visited) != list(range(partitions)):
                found.append(f"configuration {configuration}, epoch {epoch + 1}: visited {visited} of {partitions} "
                             "partitions")  # fmt: skip
        if len(order) > count * partitions:
            found.append(f"configuration {configuration}: {len(order)} visits in {count} epochs")
    return found


MakePolicy = Callable[[Stream], HopPolicy]


class HopPolicyContract:
    """Subclass it in a test module and override :meth:`make_policy`; ``seeds`` is for policies that are slow."""

    seeds = 30
    """Clusters that are drawn for each law."""

    @pytest.fixture
    def make_policy(self) -> MakePolicy:
        """A function that makes a new policy; all its draws come from the stream that it gets."""
        raise NotImplementedError("Override the fixture make_policy in the subclass of HopPolicyContract.")

    def play(self, make_policy: MakePolicy, seed: int, *, replicas: int = 1) -> tuple[Played, dict[str, set[int]]]:
        """A drawn cluster and configurations with up to two epochs, to the end; with what each worker holds."""
        rng = random.Random(seed)
        partitions = rng.randint(1, 6)
        holds = {f"worker-{number}": {number} for number in range(partitions)}
        for _ in range((replicas - 1) * partitions):
            holds[rng.choice(sorted(holds))].add(rng.randrange(partitions))
        schedule = HopSchedule(partitions, make_policy(Stream(seed, "hops", 0)))
        for worker, held in holds.items():
            schedule.worker_joined(worker, held)
        epochs = {configuration: rng.randint(1, 2) for configuration in range(rng.randint(1, 8))}
        for configuration, count in epochs.items():
            schedule.add(configuration, to=count)
        costs = {configuration: rng.choice([1.0, 1.0, rng.uniform(0.5, 5)]) for configuration in epochs}
        played = play(schedule, lambda unit: costs[unit.configuration])
        log = [
            (each.unit.worker, each.unit.configuration, each.unit.partition, each.begin, each.end)
            for each in played.units
        ]
        assert complaints(
            log, partitions=partitions, epochs=epochs, holds=lambda worker, partition: partition in holds[worker]
        ) == []  # fmt: skip
        assert not schedule.configurations() and not schedule.in_flight()
        schedule.check()
        return played, holds

    @pytest.mark.parametrize("replicas", [1, 3])
    def test_each_configuration_visits_each_partition_once_an_epoch(
        self, make_policy: MakePolicy, replicas: int
    ) -> None:
        for seed in range(self.seeds):
            self.play(make_policy, seed, replicas=replicas)

    def test_the_same_stream_gives_the_same_schedule(self, make_policy: MakePolicy) -> None:
        for seed in range(5):
            assert self.play(make_policy, seed)[0] == self.play(make_policy, seed)[0]

    def test_no_worker_stays_idle_while_a_configuration_waits_for_what_it_holds(self, make_policy: MakePolicy) -> None:
        schedule = HopSchedule(3, make_policy(Stream(0, "hops", 0)))
        for configuration in range(4):
            schedule.add(configuration, to=1)
        schedule.worker_joined("a", [0, 1])
        assert len(schedule.next_units()) == 1 and schedule.next_units() == []
        schedule.worker_joined("b", [1])
        schedule.worker_joined("c", [2])
        assert {unit.worker for unit in schedule.next_units()} == {"b", "c"}

    def test_a_recorded_order_is_followed(self, make_policy: MakePolicy) -> None:
        for workers in (1, 2, 5):
            schedule = HopSchedule(4, make_policy(Stream(workers, "hops", 0)))
            for number in range(workers):
                schedule.worker_joined(str(number), range(4))
            orders = {0: (2, 0, 3, 1), 1: (3, 2, 1, 0), 2: (0, 1, 2, 3)}
            for configuration, order in orders.items():
                schedule.add(configuration, to=2, orders={1: order, 2: order[::-1]})
            visited: dict[int, list[int]] = {configuration: [] for configuration in orders}
            for each in play(schedule, lambda unit: 1.0 + unit.configuration).units:
                visited[each.unit.configuration].append(each.unit.partition)
            assert {key: tuple(order) for key, order in visited.items()} == {
                key: order + order[::-1] for key, order in orders.items()
            }

    def test_a_lost_worker_repeats_only_its_unit(self, make_policy: MakePolicy) -> None:
        schedule = HopSchedule(2, make_policy(Stream(0, "hops", 0)))
        for worker in "abc":
            schedule.worker_joined(worker, range(2))
        for configuration in range(5):
            schedule.add(configuration, to=1)

        def lose_a(schedule: HopSchedule) -> PlannedUnit | None:
            return schedule.worker_lost("a")

        played = play(schedule, lambda unit: 1.0, happenings=[(0.5, lose_a)])
        assert sum(each.counted for each in played.units) == 10
        assert len(played.units) == 11
