"""Seed repeats: several trainings of one configuration, each with a seed of its own, that make one result.

A study with ``repeats: N`` ranks a trial by the mean of each metric over its repeats. Repeats are numbered from 0;
number 0 trains with the seed that the trial has without repeats.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hpo_core.model.feasibility import total_violation
from hpo_core.model.rng import derive_seed
from hpo_core.model.trial import Metrics, Point


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
