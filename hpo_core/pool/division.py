"""Members of a pool, and the one rule that says how many workers, devices or slots each of them gets.

Water-filling: what there is is divided by weight, up to what each can use, and what one cannot use goes to the others
in the same way. Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", section 5.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import floor, isfinite
from typing import Annotated

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.spec.sections import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

MOST_SLOTS = 1_000_000
"""Largest number of slots in a row; a row that states more is damaged."""
MOST_NAMES = 4_096
"""Largest number of names that one study holds, or could use."""
MOST_NAME = 300
"""Longest name of a worker or device, in characters; a longer one is not used."""
BEATS = 4
"""Signs of life of each member in a turn; studies take turns with what rounding leaves."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)]
_Names = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=MOST_NAME)], ...], msgspec.Meta(max_length=MOST_NAMES)]
_Weight = Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]
_Priority = Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)]


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's wish for a study's share while it ran (``hpo share``); it goes before the study's settings."""

    weight: _Weight | None = None
    priority: _Priority | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A study as its controller tells the pool; a row whose values are out of range is no member."""

    study: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
    """Shown to people: a name that no study can have is no member's."""
    owner: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The controller: another one of the same study gives way to who came last."""
    beat: _Count = 0
    """Number of signs of life so far."""
    weight: _Weight = 1.0
    priority: _Priority = 0
    unit: Annotated[str, msgspec.Meta(max_length=40)] = "slot"
    """``worker``, ``device``, or ``slot``: slots are only counted, and named by numbers."""
    seen: _Count = 0
    """Units of its cluster."""
    demand: _Count = 0
    """Units that it could use now: what its jobs use, and what it could start."""
    spare: _Count = 0
    """Units beyond its demand that it could use once a job ends, as trials grow: lent where nobody claims them."""
    job_slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] = 1
    """Units of each of its jobs; it gets multiples of that."""
    usable: _Names = ()
    """Names that it could use now, held or not; empty: any."""
    held: _Names = ()
    """Names that nobody else uses."""

    def __post_init__(self) -> None:
        if not isfinite(self.weight):
            raise ValueError("weight must be finite")

    @property
    def whole_jobs(self) -> int:
        return self.demand - self.demand % self.job_slots


def capacity_of(members: Iterable[Member]) -> int:
    """Size of a pool: the largest cluster that a member sees, or all names that they hold or could use.

    >>> capacity_of([Member(study="a", seen=8), Member(study="b", seen=4)])
    8
    """
    members = list(members)
    seen = max((member.seen for member in members), default=0)
    names = {name for member in members if member.usable for name in (*member.usable, *member.held)}
    return max(seen, len(names)) if names else min(seen, MOST_NAMES)


def shares_of(members: Sequence[Member]) -> dict[str, int]:
    """By study: the units that its claim gives it. All controllers compute the same from the same rows."""
    return divide(capacity_of(members), members, _turn(members))


def numbers_of(members: Sequence[Member]) -> dict[str, int]:
    """By study: its share, and what is lent to it of what nobody claims, to grow.

    >>> numbers_of([Member(study="a", seen=8, demand=2, spare=9), Member(study="b", seen=8, demand=3)])
    {'a': 5, 'b': 3}
    """
    shares = shares_of(members)
    growing = [msgspec.structs.replace(member, demand=member.spare, job_slots=1) for member in members]
    lent = divide(capacity_of(members) - sum(shares.values()), growing, _turn(members))
    return {study: share + lent[study] for study, share in shares.items()}


def _turn(members: Sequence[Member]) -> int:
    return sum(member.beat for member in members) // (BEATS * max(1, len(members)))


def divide(capacity: int, members: Iterable[Member], turn: int = 0) -> dict[str, int]:
    """Units of each study, by name. The order of ``members`` does not matter.

    The ideal shares, rounded down to whole jobs. What is left goes job by job to those whose turn it is: over many
    turns each has its ideal share. A study whose job needs more than its ideal share gets one job first in its turn.
    What then is too little for somebody's next job is divided among the others likewise.

    >>> divide(32, [Member(study="a", demand=32)])
    {'a': 32}
    >>> divide(32, [Member(study="a", demand=32), Member(study="b", demand=64)])
    {'a': 16, 'b': 16}
    >>> divide(8, [Member(study="a", demand=1), Member(study="b", demand=9), Member(study="c", demand=9, weight=2)])
    {'a': 1, 'b': 2, 'c': 5}
    >>> [divide(1, [Member(study=name, demand=1) for name in "ab"], turn)["a"] for turn in range(8)]
    [0, 1, 0, 1, 0, 0, 1, 0]
    """
    ordered = sorted(members, key=lambda member: member.study)
    shares = {member.study: 0 for member in ordered}
    left = max(0, capacity)
    for equals in _classes(ordered):
        ideal = ideal_shares(left, equals)
        gangs = [one for one in equals if one.job_slots > max(Fraction(1), ideal[one.study])]
        begun = [gang for gang in gangs if 0 < len(gang.held) < gang.job_slots]
        first = sorted(begun, key=lambda gang: (-len(gang.held), gang.study))[:1]  # it keeps what it has collected
        for gang in [*first, *_in_turn(gangs, ideal, turn, _ROOT)]:
            if gang.job_slots <= left and not shares[gang.study]:
                shares[gang.study] = gang.job_slots
                left -= gang.job_slots
        rest = [member for member in equals if member not in gangs]
        # each time one study at least is served or too large for what is left; gangs may use what nobody else can
        for some in [rest] * len(rest) + [equals] * len(equals):
            able = [
                msgspec.structs.replace(member, demand=member.whole_jobs - shares[member.study])
                for member in some
                if member.job_slots <= min(left, member.whole_jobs - shares[member.study])
            ]
            for study, units in _rounded(left, able, turn).items():
                shares[study] += units
                left -= units
    return shares


def ideal_shares(capacity: int, members: Iterable[Member]) -> dict[str, Fraction]:
    """Shares before they are rounded: exact, by study's name.

    >>> ideal_shares(8, [Member(study=name, demand=9) for name in "abc"])["a"]
    Fraction(8, 3)
    """
    ordered = sorted(members, key=lambda member: member.study)
    shares = {member.study: Fraction(0) for member in ordered}
    left = Fraction(max(0, capacity))
    for equals in _classes(ordered):
        weights = sum((as_written(member.weight) for member in equals), Fraction(0))
        for member in sorted(equals, key=lambda member: Fraction(member.whole_jobs) / as_written(member.weight)):
            weight = as_written(member.weight)  # who reaches what it can use at the lowest level comes first
            share = min(Fraction(member.whole_jobs), left * weight / weights)
            shares[member.study] = share
            left -= share
            weights -= weight
    return shares


def _classes(ordered: Sequence[Member]) -> list[list[Member]]:
    priorities = sorted({member.priority for member in ordered}, reverse=True)
    return [[member for member in ordered if member.priority == priority] for priority in priorities]


_GOLDEN, _ROOT = 618_033_989, 414_213_562
"""Billionths of the golden ratio and of the root of 2, less 1: steps that spread turns evenly, and independently."""


def _in_turn(members: Sequence[Member], ideal: dict[str, Fraction], turn: int, step: int) -> list[Member]:
    # Systematic sampling: in a turn each is rounded up with the probability of the rest that rounding down takes away,
    # and as many are as these rests make whole jobs. Who is first changes, too: what is left may not suffice for all.
    at = Fraction(turn * step % 1_000_000_007, 1_000_000_007)
    found = []
    for member in members:
        before, at = at, at + ideal[member.study] / member.job_slots % 1
        if floor(at) > floor(before):
            found.append(member)
    first = turn % max(1, len(found))
    return [*found[first:], *found[:first]]


def _rounded(capacity: int, members: Sequence[Member], turn: int) -> dict[str, int]:
    ideal = ideal_shares(capacity, members)
    given = {member.study: int(ideal[member.study]) // member.job_slots * member.job_slots for member in members}
    left = capacity - sum(given.values())
    in_turn = _in_turn(members, ideal, turn, _GOLDEN)
    others = sorted(members, key=lambda member: given[member.study] - ideal[member.study])
    for member in itertools.chain(in_turn, (member for member in others if member not in in_turn)):
        if given[member.study] < ideal[member.study] and member.job_slots <= left:
            given[member.study] += member.job_slots
            left -= member.job_slots
    return given
