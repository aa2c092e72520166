"""Which of two trials is fitter, by several metrics of which some may be missing (PBT, Li et al. 2019, 3.5.1).

The paper allows missing entries and does not say how to compare them: here both rules look at the metrics that both
trials have. With gaps that is no order: a may be fitter than b, b than c, and c than a. A tournament compares two and
needs none; where the best of many is wanted, :func:`ranked` counts for each how many are fitter.

Dominance is the usual one of Pareto: nowhere worse and somewhere better. The paper's is stricter (better in all), and
would leave any two trials undecided that are equal in one metric, as counts of errors or bytes often are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

Compared = TypeVar("Compared")
Fitness = tuple[float, ...] | None
"""Losses, smaller is fitter; NaN where a metric is missing; None: the trial diverged or was abandoned."""


def by_priority(one: Fitness, other: Fitness) -> int:
    """-1 where ``one`` is fitter, 1 where ``other`` is, 0 where nothing tells them apart.

    The first metric that both have and that differs decides.

    >>> by_priority((1.0, 9.0), (1.0, 2.0)), by_priority((math.nan, 1.0), (5.0, 2.0)), by_priority(None, (7.0,))
    (1, -1, 1)
    """
    if one is None or other is None:
        return (one is None) - (other is None)
    for a, b in zip(one, other, strict=True):
        if a < b:
            return -1
        if a > b:
            return 1
    return 0


def by_dominance(one: Fitness, other: Fitness) -> int:
    """-1 where ``one`` dominates, 1 where ``other`` does, 0 where neither does, over the metrics that both have.

    >>> by_dominance((1.0, 1.0), (1.0, 2.0)), by_dominance((1.0, 3.0), (2.0, 2.0))
    (-1, 0)
    >>> by_dominance((1.0, math.nan), (2.0, 0.0))
    -1
    """
    if one is None or other is None:
        return (one is None) - (other is None)
    shared = [(a, b) for a, b in zip(one, other, strict=True) if not (math.isnan(a) or math.isnan(b))]
    better, worse = any(a < b for a, b in shared), any(a > b for a, b in shared)
    return (worse > better) - (better > worse)


def has_gaps(fitness: Fitness) -> bool:
    """Whether a metric is missing."""
    return fitness is not None and any(map(math.isnan, fitness))


def ranked(fitness: Mapping[int, Compared], compare: Callable[[Compared, Compared], int]) -> list[int]:
    """Trials by how many of the others are fitter, the lower number first between equals.

    >>> ranked({3: (2.0,), 1: (2.0,), 2: None, 0: (5.0,)}, by_priority)
    [1, 3, 0, 2]
    """
    fitter = {trial: sum(compare(other, own) < 0 for other in fitness.values()) for trial, own in fitness.items()}
    return sorted(fitness, key=lambda trial: (fitter[trial], trial))
