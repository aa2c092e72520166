"""The rules of a pool: what each study publishes there, and how many slots it may hold. Pure.

Each controller applies them to the same rows. A study holds at most its share, takes only what nobody holds, and keeps
what its running jobs use. Holdings change in one transaction, so no slot is held twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Annotated

import msgspec

from hpo_core.model.devices.pool_limits import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_SLOTS, MOST_WEIGHT
from hpo_core.placement.shares.water_filling import Claim, divide, ideal_shares

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)]


class Wish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person said of a study's share while it ran (``hpo share``); it goes before the study's settings."""

    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller of a study publishes in its pool; a row whose values are out of range is no member."""

    study: Annotated[str, msgspec.Meta(max_length=100)]
    owner: Annotated[str, msgspec.Meta(max_length=400)] = ""
    """The controller: another one of the same study gives way to who came last."""
    beat: _Count = 0
    """Counts the controller's signs of life."""
    weight: Annotated[float, msgspec.Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = 1.0
    priority: Annotated[int, msgspec.Meta(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = 0
    one_cluster: bool = False
    """Whether all members use one cluster; else each has workers of its own."""
    seen: _Count = 0
    """Slots of its cluster, as it sees them."""
    stated: _Count | None = None
    """Slots of the pool, as its settings say."""
    demand: _Count = 0
    """Slots that it could use now."""
    held: _Count = 0
    """Slots that nobody else may use."""
    used: _Count = 0
    """Slots that its jobs used when it last gave a sign of life."""
    job_slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)] = 1
    precedence: Annotated[int, msgspec.Meta(ge=-MOST_SLOTS, le=MOST_SLOTS)] = 0
    waited: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Seconds for which it has held less than its share."""
    asks: bool = False
    """Whether it waited so long that somebody else's job should be ended for it."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and math.isfinite(self.waited)):
            raise ValueError("weight and waited must be finite")

    def claim(self) -> Claim:
        """What it asks of the pool."""
        return Claim(
            study=self.study,
            demand=self.demand,
            weight=self.weight,
            priority=self.priority,
            job_slots=self.job_slots,
            precedence=self.precedence,
        )


def capacity_of(members: Iterable[Member], *, shared_cluster: int | None = None) -> int:
    """Slots of a pool.

    Args:
        shared_cluster: slots of the one cluster that all members use. None: each has workers of its own, and the pool
            has as many slots as its members' settings say (the least of them), or else as many as the largest cluster.
    """
    if shared_cluster is not None:
        return shared_cluster
    found = list(members)
    stated = [member.stated for member in found if member.stated is not None]
    return min(stated) if stated else max((member.seen for member in found), default=0)


class Position(msgspec.Struct, frozen=True):
    """Where a study stands in its pool."""

    capacity: int
    share: int
    """Slots that it is due."""
    ideal: Fraction
    """The same before it is rounded to whole jobs."""
    held: int
    """Slots that it may hold now."""
    free: int
    """Slots of the pool that nobody holds."""


def position_of(mine: Member, others: Sequence[Member], *, capacity: int) -> Position:
    """What a study is due, and what it may hold: it gives back what is too much and unused, takes what is free.

    Where the others took its slots (its lease had run out), or the pool became smaller, it gives way.
    """
    claims = [member.claim() for member in (mine, *others)]
    share = divide(capacity, claims)[mine.study]
    taken = sum(member.held for member in others)
    held = share if share > mine.held else max(share, min(mine.used, mine.held))
    held = min(held, max(0, capacity - taken))
    return Position(capacity, share, ideal_shares(capacity, claims)[mine.study], held, max(0, capacity - taken - held))


def should_preempt(mine: Member, others: Sequence[Member], *, capacity: int) -> str | None:
    """The study for which the study ``mine`` should end one of its jobs; None: none.

    Who asks has waited long enough and nothing is free; who gives is the most over-served of all.
    """
    members = sorted((mine, *others), key=lambda member: member.study)
    if sum(member.held for member in members) < capacity:
        return None
    shares = divide(capacity, [member.claim() for member in members])
    asking = [member for member in members if member.asks and member.held < shares[member.study]]
    if not asking:
        return None
    most = max(members, key=lambda member: member.held - shares[member.study])  # the first by name between equals
    if most.study != mine.study or mine.held <= shares[mine.study]:
        return None
    return max(asking, key=lambda member: member.waited).study
