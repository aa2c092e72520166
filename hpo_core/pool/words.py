"""Where a study stands in its pool: share, use, demand; whom it waits for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.journal.protocol import Journal
from hpo_core.journal.sql import is_alive
from hpo_core.pool.division import Member, capacity_of, shares_of
from hpo_core.pool.store import PoolRow, live_rows
from hpo_core.views.formatting import listed, plural

NAMED = 3
"""Most studies that a sentence names."""


class Standing(msgspec.Struct, frozen=True):
    """One study in its pool, as it was published last."""

    pool: str
    member: Member
    slots: int
    """Slots, workers or devices of the pool."""
    share: int
    why: str
    """Whom it waits for, and why; empty: it has all that it could use."""

    @property
    def held(self) -> int:
        return len(self.member.held)

    @property
    def words(self) -> str:
        member = self.member
        terms = f"weight {member.weight:g}" + (f", priority {member.priority}" if member.priority else "")
        words = (
            f"pool {self.pool}: {self.share:,} of {plural(self.slots, member.unit)} ({terms}); holds {self.held:,}, "
            f"could use {member.demand:,}"
        )
        return f"{words}. {self.why}" if self.why else words


def standing_of(mine: PoolRow, others: Iterable[PoolRow]) -> Standing:
    """Where the study of the row ``mine`` stands among the members of its pool."""
    member = mine.member
    assert member is not None
    found = (row.member for row in others)
    members = [member, *(other for other in found if other is not None and other.unit == member.unit)]
    shares = shares_of(members)
    reasons = _waits(member, members[1:], shares), _less_than_wanted(member, members[1:], shares)
    why = " ".join(filter(None, reasons))
    return Standing(mine.pool, member, slots=capacity_of(members), share=shares[mine.study], why=why)


def standings(rows: Iterable[PoolRow]) -> dict[str, Standing]:
    """By study: where the members of all pools stand.

    Args:
        rows: rows of members that have a controller now.
    """
    rows = [row for row in rows if row.member is not None]
    return {
        mine.study: standing_of(mine, [row for row in rows if row.pool == mine.pool and row is not mine])
        for mine in rows
    }


def live_standings(source: Journal) -> dict[str, Standing]:
    """By study: where those whose controller lives stand."""
    return standings(live_rows(source, is_alive))


def columns(source: Journal) -> dict[str, dict[str, Any]]:
    """By study: more columns of ``hpo list``."""
    return {
        name: {
            "pool": one.pool,
            "share": f"{one.share}/{one.slots}",
            "used": one.held,
            "demand": one.member.demand,
        }
        for name, one in live_standings(source).items()
    }


def status_line(source: Journal, name: str) -> tuple[str, str]:
    """A line of ``hpo status``; without words where the study is in no pool."""
    standing = live_standings(source).get(name)
    return "slots", "" if standing is None else standing.words


def _waits(mine: Member, others: Sequence[Member], shares: Mapping[str, int]) -> str:
    missing = shares[mine.study] - len(mine.held)
    if missing <= 0:
        return ""
    waits = f"It waits for {plural(missing, mine.unit)}"
    over = [other for other in others if len(other.held) > shares[other.study]]
    if not over:
        return f"{waits}; they are free, and taken at its next look; those of a controller that died, within 20 s."
    verbs = "has more than the share and gives" if len(over) == 1 else "have more than the share and give"
    return f"{waits}: {_names(over)} {verbs} {mine.unit}s back as jobs end."


def _less_than_wanted(mine: Member, others: Sequence[Member], shares: Mapping[str, int]) -> str:
    share = shares[mine.study]
    have = [other for other in others if shares[other.study]]
    first = [other for other in have if other.priority > mine.priority]
    equal = [other for other in have if other.priority == mine.priority]
    reasons = []
    if first:
        reasons.append(f"{_names(first)} {'goes' if len(first) == 1 else 'go'} first by priority")
    if equal:
        reasons.append(f"the {mine.unit}s are shared with {_names(equal)} by weight")
    if share >= mine.demand or not reasons:
        return ""
    return f"It could use {mine.demand - share:,} more: {', and '.join(reasons)}."


def _names(members: Sequence[Member]) -> str:
    return listed(sorted(member.study for member in members), NAMED)
