"""Water-filling: divides slots between studies by weight, up to what each can use.

Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", section 5.3: slots are divided evenly
(here: by weight) between the studies, and what one cannot use goes to the others in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.pool_member import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

JUST_BEGUN = 1_000_000
"""``precedence`` of a study that was rounded up a moment ago, and keeps that for a turn."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim of one study on a pool.

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
    share rounded down or up. What then is too little for somebody's next job is divided among the others likewise.
    A study whose jobs need more slots than its ideal share gets one job first once nobody has waited longer.

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
    shares = {claim.study: 0 for claim in ordered}
    left = max(0, capacity)
    for equals in _classes(ordered):
        gang = _waiting_gang(equals, left)
        if gang is not None:
            shares[gang.study] = gang.job_slots
            left -= gang.job_slots
        rest = [claim for claim in equals if claim is not gang]
        # each time one claim at least is served or too large for what is left; the gang may use what nobody else can
        for some in [rest] * len(rest) + [equals] * len(equals):
            open_claims = [
                msgspec.structs.replace(claim, demand=claim.usable - shares[claim.study])
                for claim in some
                if claim.job_slots <= min(left, claim.usable - shares[claim.study])
            ]
            for study, slots in _rounded(left, open_claims).items():
                shares[study] += slots
                left -= slots
    return shares


def ideal_shares(capacity: int, claims: Iterable[Claim]) -> dict[str, Fraction]:
    """Shares before they are rounded: exact, by study's name.

    >>> ideal_shares(8, [Claim(study=name, demand=9) for name in "abc"])["a"]
    Fraction(8, 3)
    """
    ordered = _ordered(claims)
    shares = {claim.study: Fraction(0) for claim in ordered}
    left = Fraction(max(0, capacity))
    for equals in _classes(ordered):
        weights = sum((as_written(claim.weight) for claim in equals), Fraction(0))
        for claim in sorted(equals, key=lambda claim: Fraction(claim.usable) / as_written(claim.weight)):
            weight = as_written(claim.weight)  # who reaches what it can use at the lowest level comes first
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
    priorities = sorted({claim.priority for claim in ordered}, reverse=True)
    return [[claim for claim in ordered if claim.priority == priority] for priority in priorities]


def _waiting_gang(claims: Sequence[Claim], left: int) -> Claim | None:
    # Who has waited longest, where its job needs more than its ideal share: what rounding leaves may never suffice.
    ideal = ideal_shares(left, claims)
    waiting = [
        claim
        for claim in claims
        if claim.precedence > 0
        and claim.job_slots <= min(left, claim.usable)
        and (claim.precedence < JUST_BEGUN if claim.job_slots == 1 else ideal[claim.study] < claim.job_slots)
    ]
    longest = min(waiting, key=lambda claim: (-claim.precedence, claim.study), default=None)
    return None if longest is None or longest.job_slots == 1 else longest


def _rounded(capacity: int, claims: Sequence[Claim]) -> dict[str, int]:
    ideal = ideal_shares(capacity, claims)
    given = {claim.study: int(ideal[claim.study]) // claim.job_slots * claim.job_slots for claim in claims}
    left = capacity - sum(given.values())

    def lack(claim: Claim) -> Fraction:
        return ideal[claim.study] - given[claim.study]

    for claim in sorted(claims, key=lambda claim: (-claim.precedence, -lack(claim), claim.study)):
        if lack(claim) > 0 and claim.job_slots <= left:
            given[claim.study] += claim.job_slots
            left -= claim.job_slots
    return given
