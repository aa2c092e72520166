"""The rules of a pool: what each study publishes there, and how many slots it may hold. Pure.

Each controller applies them to the same rows. A study holds at most its share, takes only what nobody holds, and keeps
what its running jobs use. Holdings change in one transaction, so no slot is held twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.water_filling import Claim, divide, ideal_shares


def claim_of(member: Member) -> Claim:
    """What a member asks of its pool."""
    return Claim(
        study=member.study,
        demand=member.demand,
        weight=member.weight,
        priority=member.priority,
        job_slots=member.job_slots,
        precedence=member.precedence,
    )


def capacity_of(members: Iterable[Member], *, shared_cluster: int | None = None) -> int:
    """Slots of a pool.

    Args:
        shared_cluster: slots of the one cluster that all members use. None: each has workers of its own, and the pool
            has as many slots as its members' settings say (the least of them), or else as many as the largest cluster.
            Of devices with names there are as many as any member holds or wants.
    """
    if shared_cluster is not None:
        return shared_cluster
    found = list(members)
    stated = [member.stated for member in found if member.stated is not None]
    named = {name for member in found for names in (member.devices, member.wants) for name in names}
    there = max(max((member.seen for member in found), default=0), len(named))
    return min(*stated, there) if stated and named else min(stated, default=there)


class Position(msgspec.Struct, frozen=True):
    """Where a study stands in its pool."""

    capacity: int
    share: int
    """Slots that it is due."""
    lent: int
    """Slots beyond them that nobody claims: it may hold them until somebody does."""
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
    members = (mine, *others)
    claims = [claim_of(member) for member in members]
    shares = divide(capacity, claims)
    share = shares[mine.study]
    lent = _lent(members, max(0, capacity - sum(shares.values()))).get(mine.study, 0)
    taken = sum(member.held for member in others)
    most = share + lent
    held = most if most > mine.held else max(most, min(mine.used, mine.held))
    held = min(held, max(0, capacity - taken))
    ideal = ideal_shares(capacity, claims)[mine.study]
    return Position(capacity, share, lent, ideal, held, max(0, capacity - taken - held))


def _lent(members: Sequence[Member], unclaimed: int) -> dict[str, int]:
    """Slots that no member claims, divided by the same rule between those that could use them later."""
    claims = [
        Claim(study=member.study, demand=member.spare, weight=member.weight, priority=member.priority)
        for member in members
        if member.spare
    ]
    return divide(unclaimed, claims) if unclaimed and claims else {}


def should_preempt(mine: Member, others: Sequence[Member], *, capacity: int) -> str | None:
    """The study for which the study ``mine`` should end one of its jobs; None: none.

    Who asks has waited long enough and nothing is free; who gives is the most over-served of all.
    """
    members = sorted((mine, *others), key=lambda member: member.study)
    if sum(member.held for member in members) < capacity:
        return None
    shares = divide(capacity, [claim_of(member) for member in members])
    asking = [member for member in members if member.asks and member.held < shares[member.study]]
    if not asking:
        return None
    most = max(members, key=lambda member: _kept(member) - shares[member.study])  # the first by name between equals
    if most.study != mine.study or _kept(mine) <= shares[mine.study]:
        return None
    return max(asking, key=lambda member: member.waited).study


def longest_asking(mine: Member, others: Sequence[Member], position: Position) -> str | None:
    """Where devices have names: the study for which ``mine``, which holds more than its share, should end a job.

    Which one it ends follows from the devices that it is to give back.
    """
    asking = [other for other in others if other.asks]
    if mine.held <= position.share or not asking:
        return None
    return max(asking, key=lambda other: (other.waited, other.study)).study


def _kept(member: Member) -> int:
    """Slots that it holds, without those that it was lent and does not use: these go back by themselves."""
    return member.held - min(member.spare, max(0, member.held - member.used))
