"""The waiting jobs that begin together on one device: a knapsack within memory and cores."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hpo_core.placement.packing.need import Need

TOLERANCE = 5
"""Permille of compute that may stay idle for the sake of jobs that should begin early."""
STEPS = 120
"""Steps of the search for a subset that memory and cores allow, at most."""
CONSIDERED = 40
"""Jobs that this search looks at."""

MOST_ITEMS = 96
"""Jobs that the knapsack of one device is filled from."""

Candidate = tuple[int, Need]
"""(place among the waiting jobs, need on this device)."""


def best_subset(candidates: list[Candidate], *, compute: int, memory: int, cores: int, idle: int) -> list[Candidate]:
    """The candidates worth most together, of those that leave at most ``idle`` more compute idle than must be.

    Args:
        candidates: each fits by itself; the first matter most.
        compute: permille that are left, and likewise for the others.
        idle: permille.
    """
    subset = _most_valued(candidates, compute, idle)
    if is_within(subset, memory, cores):
        return subset
    return _bounded_search(_without_surplus(candidates, compute, memory, cores), compute, memory, cores)


def _most_valued(candidates: list[Candidate], compute: int, idle: int) -> list[Candidate]:
    """As :func:`best_subset`, by compute alone: a knapsack by dynamic programming over the sums of compute."""
    items = _items(candidates, compute)
    worth = np.full(compute + 1, -np.inf)
    worth[0] = 0.0
    taken = []
    for _, need in items:
        with_it = worth[: -need.compute] + need.value
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
    return subset


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


def is_within(subset: list[Candidate], memory: int, cores: int) -> bool:
    return sum(need.memory for _, need in subset) <= memory and sum(need.cores for _, need in subset) <= cores


def _bounded_search(candidates: list[Candidate], compute: int, memory: int, cores: int) -> list[Candidate]:
    """The best subset within all three limits that :data:`STEPS` steps of branch and bound find.

    The first descent takes each candidate that still fits, in the order given; so the answer is never worse than that.
    """
    enough = compute - TOLERANCE
    best: list[Candidate] = []
    best_sum = -1
    steps = STEPS
    rest = [0] * (len(candidates) + 1)
    for place in range(len(candidates) - 1, -1, -1):
        rest[place] = rest[place + 1] + candidates[place][1].compute
    stack: list[tuple[int, int, int, int, tuple[int, ...]]] = [(0, compute, memory, cores, ())]
    while stack and steps and best_sum < enough:
        steps -= 1
        place, compute_left, memory_left, cores_left, subset = stack.pop()
        while place < len(candidates):
            if compute - compute_left + min(rest[place], compute_left) <= best_sum:
                break
            need = candidates[place][1]
            place += 1
            if need.compute <= compute_left and need.memory <= memory_left and need.cores <= cores_left:
                stack.append((place, compute_left, memory_left, cores_left, subset))  # without this one
                compute_left -= need.compute
                memory_left -= need.memory
                cores_left -= need.cores
                subset = (*subset, place - 1)
        if compute - compute_left > best_sum:
            best_sum = compute - compute_left
            best = [candidates[taken] for taken in subset]
    return best


def _without_surplus(candidates: list[Candidate], compute: int, memory: int, cores: int) -> list[Candidate]:
    """The first candidates: of equal needs no more than fit together, and :data:`CONSIDERED` at most."""
    count: Counter[tuple[int, int, int]] = Counter()
    kept = []
    for candidate in candidates:
        need = candidate[1]
        kind = need.compute, need.memory, need.cores
        count[kind] += 1
        number = count[kind]
        if number * need.compute <= compute and number * need.memory <= memory and number * need.cores <= cores:
            kept.append(candidate)
            if len(kept) == CONSIDERED:
                break
    return kept
