"""Judgement of results: how those that violate constraints rank, and how repeats of a training make one result.

A constraint is a reported value that should be at most 0, as in Optuna. Feasible results rank by their losses alone,
before infeasible ones. Infeasible results rank by their total violation, the sum of the values above 0 (Deb 2002, as in
Optuna's NSGA-II); between equal ones by their losses, then by trial number. Results that are not finite come last.

A study with ``repeats: N`` ranks a trial by the mean of each metric over its trainings with N seeds. Repeats are
numbered from 0; number 0 trains with the seed that the trial has without repeats.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hpo_core.model.arithmetic import float_sum
from hpo_core.model.rng import derive_seed
from hpo_core.model.trial import Metrics, Point


def total_violation(values: Iterable[float]) -> float | None:
    """Sum of the constraint values above 0; None where one of them is not finite.

    >>> total_violation([-1.0, 0.5, 2.0]), total_violation([]), total_violation([1.0, math.nan])
    (2.5, 0.0, None)
    """
    known = list(values)
    if not all(map(math.isfinite, known)):
        return None
    return min(float_sum(value for value in known if value > 0), sys.float_info.max)


@functools.total_ordering
class Infeasible:
    """The loss of a result that violates constraints, as rungs compare it.

    Larger than every finite loss and smaller than infinity, which stands for no finite loss.

    >>> 5.0 < Infeasible(0.1, 1.0) < Infeasible(0.2, 0.0) < math.inf
    True
    """

    __slots__ = ("_key", "losses", "violation")
    _key: tuple[float, ...]

    def __init__(self, violation: float, losses: float | tuple[float, ...], *, negative: bool = False) -> None:
        self.violation = violation
        self.losses = losses
        plain = losses if isinstance(losses, tuple) else (losses,)
        key = (violation, *plain)
        self._key = (-1, *(-value for value in key)) if negative else (1, *key)

    def __neg__(self) -> Infeasible:
        """For heaps with the largest first: smaller than every finite loss, larger than minus infinity."""
        return Infeasible(self.violation, self.losses, negative=self._key[0] > 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Infeasible) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Any) -> bool:
        return self._key < _key_of(other)

    def __sub__(self, other: Any) -> float:
        """Between feasible and infeasible, or between two violations, no noise of the loss decides."""
        return math.inf

    __rsub__ = __sub__

    def __repr__(self) -> str:
        return f"Infeasible({self.violation!r}, {self.losses!r})"


Rankable = float | Infeasible
"""What a rung with one objective ranks; smaller is better."""


def _key_of(other: Any) -> tuple[float, ...]:
    if isinstance(other, Infeasible):
        return other._key
    return (0.0,) if math.isfinite(other) else (math.copysign(2.0, other),)


def seed_of_repeat(trial_seed: int, repeat: int) -> int:
    """Training seed of one repeat of a trial."""
    return trial_seed if repeat == 0 else derive_seed(trial_seed, "seed-repeat", repeat)


def mean_metrics(values: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all repeats have: exact, rounded once, whatever the order.

    >>> mean_metrics([{"loss": 0.25, "step": 1.0}, {"loss": 0.75}])
    {'loss': 0.5}
    """
    names = [name for name in values[0] if all(name in one for one in values)]
    return {name: _mean([one[name] for one in values]) for name in names}


def mean_curve(curves: Sequence[Sequence[Point]]) -> tuple[Point, ...]:
    """The mean metrics at each resource at which all repeats reported."""
    others = [{point.resource: point.metrics for point in curve} for curve in curves[1:]]
    found = []
    for point in curves[0]:
        if all(point.resource in other for other in others):
            means = mean_metrics([point.metrics, *(other[point.resource] for other in others)])
            if means:
                found.append(Point(point.resource, means))
    return tuple(found)


def spread(values: Sequence[Metrics], name: str) -> float | None:
    """Sample standard deviation of one metric over the repeats; None where it has none.

    >>> spread([{"loss": 1.0}, {"loss": 3.0}], "loss")
    1.4142135623730951
    """
    found = [one[name] for one in values if name in one]
    if len(found) < 2 or not all(map(math.isfinite, found)):
        return None
    try:
        return statistics.stdev(found)
    except OverflowError:
        return math.inf


def best_repeat(values: Sequence[Metrics], objective: tuple[str, int], constraints: Sequence[str] = ()) -> int:
    """Number of the repeat that stands for the trial where one model is wanted.

    The one with the least violation of the constraints; between equals the best by the (first) metric; then the first.

    Args:
        objective: name of the metric, and 1 where small values are good, -1 where large ones are.

    >>> best_repeat([{"acc": 0.7}, {"acc": 0.9}, {"acc": 0.9}], ("acc", -1))
    1
    """
    name, sign = objective

    def key(repeat: int) -> tuple[float, float, int]:
        metrics = values[repeat]
        violation = total_violation(metrics.get(one, math.nan) for one in constraints)
        loss = metrics.get(name, math.nan) * sign
        return (
            math.inf if violation is None else violation,
            loss if math.isfinite(loss) else math.inf,
            repeat,
        )

    return min(range(len(values)), key=key)


def _mean(values: Sequence[float]) -> float:
    if all(map(math.isfinite, values)):
        return float(statistics.mean(values))
    return float(sum(values))  # infinite or NaN
