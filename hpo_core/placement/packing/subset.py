"""The waiting jobs that together leave the least of one device idle: a subset sum within memory and cores."""

from __future__ import annotations

from collections import Counter

from hpo_core.placement.packing.need import Need

TOLERANCE = 4
"""Permille of a device that may stay idle rather than passing over a longer job."""
STEPS = 120
"""Steps of the search for a subset that memory and cores allow, at most."""
CONSIDERED = 40
"""Jobs that this search looks at."""

Candidate = tuple[int, Need]
"""(place among the waiting jobs, need on this device)."""


def largest_subset(candidates: list[Candidate], *, compute: int, memory: int, cores: int) -> list[Candidate]:
    """The candidates with the largest sum of compute, but for :data:`TOLERANCE`, of as few first ones as reach it.

    Args:
        candidates: each fits by itself; the first matter most.
        compute: permille that are left, and likewise for the others.
    """
    subset = _first_that_reach(candidates, compute)
    if _is_within(subset, memory, cores):
        return subset
    return _bounded_search(_without_surplus(candidates, compute, memory, cores), compute, memory, cores)


def _first_that_reach(candidates: list[Candidate], compute: int) -> list[Candidate]:
    """The subset with the largest sum of compute within ``compute``, of as few first candidates as reach it."""
    mask = (1 << (compute + 1)) - 1
    enough = max(compute - TOLERANCE, 0)
    sums = 1
    reached = []
    for _, need in candidates:
        reached.append(sums)
        sums |= (sums << need.compute) & mask
        if sums >> enough:
            break
    total = sums.bit_length() - 1
    subset = []
    for place in range(len(reached) - 1, -1, -1):
        if not (reached[place] >> total) & 1:
            subset.append(candidates[place])
            total -= candidates[place][1].compute
    subset += [candidate for candidate in candidates if candidate[1].compute == 0]
    return subset


def _is_within(subset: list[Candidate], memory: int, cores: int) -> bool:
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
