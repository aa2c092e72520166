"""The waiting jobs that begin together on one device: a knapsack of compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hpo_core.placement.packing.need import Need

MOST_ITEMS = 96
"""Jobs that the knapsack of one device is filled from."""

Candidate = tuple[int, Need]
"""(place among the waiting jobs, need on this device)."""


def best_subset(candidates: list[Candidate], values: Sequence[float], *, compute: int, idle: int) -> list[Candidate]:
    """The candidates worth most together, of those that leave at most ``idle`` more compute idle than must be.

    A knapsack by dynamic programming over the sums of compute. In the order of the candidates.

    Args:
        candidates: the first matter most.
        values: what each waiting job is worth on this device.
        compute: permille that are left.
        idle: permille.
    """
    items = _items(candidates, compute)
    worth = np.full(compute + 1, -np.inf)
    worth[0] = 0.0
    taken = []
    for job, need in items:
        with_it = worth[: -need.compute] + values[job]
        is_better = with_it > worth[need.compute :]
        np.copyto(worth[need.compute :], with_it, where=is_better)
        taken.append(is_better)
    most = int(np.flatnonzero(worth >= 0)[-1])
    least = max(most - idle, 0)
    total = least + int(worth[least : most + 1].argmax())
    subset = []
    for candidate, is_better in zip(reversed(items), reversed(taken), strict=True):
        rest = total - candidate[1].compute
        if rest >= 0 and is_better[rest]:
            subset.append(candidate)
            total = rest
    return subset[::-1]


def _items(candidates: list[Candidate], compute: int) -> list[Candidate]:
    """Of candidates that need about as much compute the first ones, so many as fit; :data:`MOST_ITEMS` or few more."""
    for width in (1, 4, 16, 64):
        count: Counter[int] = Counter()
        items = []
        for candidate in candidates:
            size = candidate[1].compute
            if size and (count[size // width] + 1) * size <= compute:
                count[size // width] += 1
                items.append(candidate)
        if len(items) <= MOST_ITEMS:
            break
    return items
