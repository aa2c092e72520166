"""Virtual workers: how fast each is, when it comes and when it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.spec import limits


class Worker(msgspec.Struct, frozen=True):
    """One job at a time."""

    speed: float = 1.0
    """A job of ``t`` seconds takes ``t / speed`` here."""
    joins: float = 0.0
    leaves: float = math.inf
    """Virtual seconds; a job that runs then is lost."""

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise SpecError(f"Simulated worker: speed = {self.speed} must be a number above 0.")
        if not 0 <= self.joins < self.leaves:
            raise SpecError(
                f"Simulated worker: joins = {self.joins} and leaves = {self.leaves} must ascend from 0; swap them, or "
                "drop one."
            )


def make_workers(
    count: int,
    *,
    speeds: Sequence[float] = (1.0,),
    joins: Sequence[tuple[int, float]] = (),
    leaves: Sequence[tuple[int, float]] = (),
) -> tuple[Worker, ...]:
    """A cluster of ``count`` workers that changes with time.

    Args:
        speeds: given to the workers in turn, by number.
        joins: (how many more, at which second).
        leaves: (how many fewer, at which second); those with the highest numbers go.

    Raises:
        SpecError: a number is out of range, or more leave than are there.

    >>> [w.speed for w in make_workers(3, speeds=[1, 2])]
    [1, 2, 1]
    >>> [(w.joins, w.leaves) for w in make_workers(1, joins=[(1, 5.0)], leaves=[(1, 9.0)])]
    [(0.0, inf), (5.0, 9.0)]
    """
    if count < 1:
        raise SpecError(f"Simulated cluster: workers = {count}; give at least 1.")
    if not speeds:
        raise SpecError("Simulated cluster: speeds is empty; give at least one number, or leave it out.")
    total = count + sum(many for many, _ in joins)
    if total > limits.SIMULATED_WORKERS:
        raise SpecError(
            f"Simulated cluster: {shown(total)} workers, and at most {limits.SIMULATED_WORKERS:,} are simulated; "
            "give fewer."
        )
    comes = [0.0] * count
    goes = [math.inf] * count
    changes = [(at, 0, many) for many, at in joins] + [(at, 1, many) for many, at in leaves]
    for at, leaving, many in sorted(changes):
        if many < 1 or not 0 <= at < math.inf:
            raise SpecError(f"Simulated cluster: {many} workers at second {at}; give at least 1, from second 0 on.")
        if not leaving:
            comes += [at] * many
            goes += [math.inf] * many
            continue
        there = [n for n in range(len(comes)) if comes[n] < at and goes[n] == math.inf]
        if many > len(there):
            raise SpecError(f"Simulated cluster: {many} workers leave at second {at}, and only {len(there)} are there.")
        for n in there[-many:]:
            goes[n] = at
    return tuple(Worker(speeds[n % len(speeds)], comes[n], goes[n]) for n in range(len(comes)))
