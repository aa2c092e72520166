"""Water-filling: divides slots between studies by weight, up to what each can use.

Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", section 5.3: slots are divided evenly
(here: by weight) between the studies, and what one cannot use goes to the others in the same way.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.pool_member import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

JUST_BEGUN = 1_000_000
"""``precedence`` of a study that was rounded up a moment ago, and keeps that for a turn."""


FEW_JOBS = 8
"""Last jobs of each study that are given one by one; those before are given in larger steps."""
HALVINGS = 60
"""Bisections of the range of water levels; after them less than about a job of each study is left."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one study asks of a pool.

    Raises:
        ValueError: a value is out of range.
    """

    study: str
    demand: int
    """Slots that it could use now: what its jobs use, and what it could start."""
    weight: float = 1.0
    """Slots relative to those of a study of weight 1."""
    priority: int = 0
    """Studies of a higher priority get all that they can use first."""
    job_slots: int = 1
    """Slots of each of its jobs; slots are given in multiples of it."""
    precedence: int = 0
    """Who is rounded up first: seconds for which it has waited with less than its ideal share.

    Below 0: seconds for which it has been rounded up already, or :data:`JUST_BEGUN` while it has waited for less than a
    turn.
    """

    def __post_init__(self) -> None:
        where = f"Claim of study {self.study!r}"
        if self.demand < 0 or self.job_slots < 1:
            raise ValueError(
                f"{where}: demand = {self.demand} must be 0 or more, job_slots = {self.job_slots} 1 or more."
            )
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            raise ValueError(f"{where}: weight = {self.weight} must be from {LEAST_WEIGHT} to {MOST_WEIGHT:g}.")
        if not LEAST_PRIORITY <= self.priority <= MOST_PRIORITY:
            raise ValueError(f"{where}: priority = {self.priority} must be from {LEAST_PRIORITY} to {MOST_PRIORITY}.")

    @property
    def usable(self) -> int:
        """Slots that whole jobs can use."""
        return self.demand - self.demand % self.job_slots


def divide(capacity: int, claims: Iterable[Claim]) -> dict[str, int]:
    """Slots of each study, by name. The order of ``claims`` does not matter.

    The ideal shares, rounded to whole jobs: down first. What is left then goes job by job to who has waited longest,
    then to who lacks most of its ideal share, then by name. Where all jobs use one slot, each study gets its ideal
    share rounded down or up. A study whose jobs need more slots than its ideal share gets one job first once nobody has
    waited longer.

    >>> divide(32, [Claim(study="a", demand=32)])
    {'a': 32}
    >>> divide(32, [Claim(study="a", demand=32), Claim(study="b", demand=64)])
    {'a': 16, 'b': 16}
    >>> divide(8, [Claim(study="a", demand=1), Claim(study="b", demand=9), Claim(study="c", demand=9, weight=2)])
    {'a': 1, 'b': 2, 'c': 5}
    >>> waiting = {"a": 0, "b": 10, "c": 30}
    >>> divide(2, [Claim(study=name, demand=1, precedence=seconds) for name, seconds in waiting.items()])
    {'a': 0, 'b': 1, 'c': 1}
    """
    ordered = _ordered(claims)
    ideal = ideal_shares(capacity, ordered)
    shares = {claim.study: 0 for claim in ordered}
    left = max(0, capacity)
    for claims_of_class in _classes(ordered):
        given = {}
        if (gang := _waiting_gang(claims_of_class, ideal, left)) is not None:
            given[gang.study] = gang.job_slots
            claims_of_class = [claim for claim in claims_of_class if claim is not gang]
            ideal = ideal | ideal_shares(left - gang.job_slots, claims_of_class)
        for claim in claims_of_class:
            whole = math.floor(ideal[claim.study])
            given[claim.study] = whole - whole % claim.job_slots
        left -= sum(given.values())
        left -= _round_up(claims_of_class, ideal, given, left)
        if gang is not None:  # it may use what nobody else of its class can
            left -= _fill([*claims_of_class, gang], ideal, given, left)
        shares |= given
    return shares


def ideal_shares(capacity: int, claims: Iterable[Claim]) -> dict[str, Fraction]:
    """Shares before they are rounded: exact, by study's name.

    >>> ideal_shares(8, [Claim(study=name, demand=9) for name in "abc"])["a"]
    Fraction(8, 3)
    """
    ordered = _ordered(claims)
    shares = {claim.study: Fraction(0) for claim in ordered}
    left = Fraction(max(0, capacity))
    for claims_of_class in _classes(ordered):
        open_claims = sorted(claims_of_class, key=lambda claim: Fraction(claim.usable) / as_written(claim.weight))
        weights = sum((as_written(claim.weight) for claim in open_claims), Fraction(0))
        for claim in open_claims:  # who reaches what it can use at the lowest level comes first
            weight = as_written(claim.weight)
            share = min(Fraction(claim.usable), left * weight / weights)
            shares[claim.study] = share
            left -= share
            weights -= weight
    return shares


def _ordered(claims: Iterable[Claim]) -> list[Claim]:
    ordered = sorted(claims, key=lambda claim: claim.study)
    for one, other in itertools.pairwise(ordered):
        if one.study == other.study:
            raise ValueError(f"Study {one.study!r} has two claims; each study has one.")
    return ordered


def _classes(ordered: Sequence[Claim]) -> list[list[Claim]]:
    """By priority, the highest first."""
    priorities = sorted({claim.priority for claim in ordered}, reverse=True)
    return [[claim for claim in ordered if claim.priority == priority] for priority in priorities]


def _waiting_gang(claims: Sequence[Claim], ideal: dict[str, Fraction], left: int) -> Claim | None:
    """A study whose jobs need more slots than its ideal share, and that has waited longest: it gets one job.

    Else it would wait for ever: what rounding leaves over may never be enough for its job.
    """
    waiting = [
        claim
        for claim in claims
        if claim.precedence > 0
        and claim.job_slots <= min(left, claim.usable)
        and (claim.precedence < JUST_BEGUN if claim.job_slots == 1 else ideal[claim.study] < claim.job_slots)
    ]
    longest = min(waiting, key=lambda claim: (-claim.precedence, claim.study), default=None)
    return None if longest is None or longest.job_slots == 1 else longest


def _round_up(claims: Sequence[Claim], ideal: dict[str, Fraction], given: dict[str, int], left: int) -> int:
    """Give what rounding down left over, job by job; returns how many slots."""
    before = left

    def lack(claim: Claim) -> Fraction:
        return ideal[claim.study] - given[claim.study]

    for claim in sorted(claims, key=lambda claim: (-claim.precedence, -lack(claim), claim.study)):
        if lack(claim) > 0 and claim.job_slots <= left:
            given[claim.study] += claim.job_slots
            left -= claim.job_slots
    left -= _fill(claims, ideal, given, left)
    return before - left


def _fill(claims: Sequence[Claim], ideal: dict[str, Fraction], given: dict[str, int], left: int) -> int:
    """Give more where jobs of several slots did not fit, so that none is unused that somebody can use.

    Job by job to who has least above its ideal share for its weight. Where many jobs are left, all are brought to one
    level first that is certainly reached: the same in a few steps.

    Returns:
        Slots given.
    """
    before = left

    def fits(claim: Claim) -> bool:
        return claim.job_slots <= min(left, claim.usable - given[claim.study])

    def level(claim: Claim) -> Fraction:
        return (given[claim.study] - ideal[claim.study]) / as_written(claim.weight)

    while fitting := [claim for claim in claims if fits(claim)]:
        turns = FEW_JOBS * len(fitting)
        if left > turns * min(claim.job_slots for claim in fitting):
            for claim, jobs in _jobs_to_a_level({claim: level(claim) for claim in fitting}, given, left).items():
                given[claim.study] += jobs * claim.job_slots
                left -= jobs * claim.job_slots
        lowest_first = [(level(claim), claim.study, claim) for claim in fitting]
        heapq.heapify(lowest_first)
        while lowest_first and turns:
            _, _, claim = heapq.heappop(lowest_first)
            turns -= 1
            if fits(claim):
                given[claim.study] += claim.job_slots
                left -= claim.job_slots
                heapq.heappush(lowest_first, (level(claim), claim.study, claim))
    return before - left


def _jobs_to_a_level(levels: Mapping[Claim, Fraction], given: Mapping[str, int], left: int) -> dict[Claim, int]:
    """Jobs that each begins below one level, found by halving: as high as fits in what is left."""
    steps = {claim: Fraction(claim.job_slots) / as_written(claim.weight) for claim in levels}
    most = {claim: (claim.usable - given[claim.study]) // claim.job_slots for claim in levels}

    def jobs_below(level: Fraction) -> dict[Claim, int]:
        return {
            claim: max(0, min(most[claim], math.ceil((level - low) / steps[claim]))) for claim, low in levels.items()
        }

    found = dict.fromkeys(levels, 0)
    lowest = min(levels.values())
    highest = max(low + most[claim] * steps[claim] for claim, low in levels.items())
    for _ in range(HALVINGS):
        level = (lowest + highest) / 2
        jobs = jobs_below(level)
        if sum(number * claim.job_slots for claim, number in jobs.items()) <= left:
            found, lowest = jobs, level
        else:
            highest = level
    return found
