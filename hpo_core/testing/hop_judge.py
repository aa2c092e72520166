"""Judges a finished hop schedule by its log alone; shares no code with the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

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
