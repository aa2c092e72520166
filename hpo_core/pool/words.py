"""Where a study stands in its pool: share, use, demand; whom it waits for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hpo_core.model.devices.pool_member import Member
from hpo_core.pool.arbiter import Pool
from hpo_core.pool.store import PoolRow
from hpo_core.spec.sections import ShareSpec

NAMED = 3
"""Most studies that a sentence names."""


class Standing(msgspec.Struct, frozen=True):
    """One study in its pool, as it was published last."""

    pool: str
    member: Member
    slots: int
    """Slots of the pool, or whole devices where its studies hold these."""
    share: int
    held: int
    why: str
    """Whom it waits for, and why; empty: it has all that it could use."""

    @property
    def words(self) -> str:
        """All of it, in two sentences."""
        member = self.member
        terms = f"weight {member.weight:g}" + (f", priority {member.priority}" if member.priority else "")
        words = (
            f"pool {self.pool}: {self.share:,} of {_plural(self.slots, _unit(member))} ({terms}); holds {self.held:,}, "
            f"could use {member.demand:,}"
        )
        return f"{words}. {self.why}" if self.why else words


def standing_of(mine: PoolRow, others: Iterable[PoolRow]) -> Standing:
    """Where the study of the row ``mine`` stands among the members of its pool."""
    member = mine.member
    assert member is not None
    rows = [mine, *(row for row in others if row.member is not None and row.member.kind == member.kind)]
    pool = Pool([row.member for row in rows if row.member is not None], {row.study: row.grant for row in rows})
    reasons = _waits(member, pool), _less_than_wanted(member, pool)
    share, held = pool.shares[mine.study], pool.held[mine.study]
    return Standing(mine.pool, member, slots=pool.capacity, share=share, held=held, why=" ".join(filter(None, reasons)))


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


def share_words(share: ShareSpec | None, unit: str = "slot") -> str:
    """The settings in words: ``pool cpu, weight 2, priority 0``; empty without a share.

    Args:
        unit: what is shared, in one word.
    """
    if share is None:
        return ""
    words = [f"pool {share.pool}" if share.pool is not None else f"the {unit}s of its cluster"]
    words += [f"weight {share.weight:g}", f"priority {share.priority}"]
    words += [] if share.preempt is None else [f"may preempt after {share.preempt:g} s"]
    return ", ".join(words)


def _unit(member: Member) -> str:
    return member.kind or "slot"


def _waits(mine: Member, pool: Pool) -> str:
    position, held = pool.position(mine.study), pool.held[mine.study]
    missing = position.share - held
    if missing <= 0 or (mine.kind and not position.wants):  # models that hop may have no work for more just now
        return ""
    others = [member for member in pool.members if member is not mine]
    over = [other for other in others if pool.held[other.study] > pool.shares[other.study]]
    unit = _unit(mine)
    waits = f"It waits for {_plural(missing, unit)}"
    if mine.waited >= 1:
        waits += f", for {mine.waited:,.0f} s so far"
    if not over:
        holding = {pool.holder.get(name) for name in position.wants}
        holders = [other for other in others if other.study in holding]
        if mine.kind and holders:
            verb = "holds" if len(holders) == 1 else "hold"
            return f"{waits}: {_names(holders)} {verb} what it could use within the share, and they take turns."
        return f"{waits}; they are free, and taken at its next look; those of a controller that died, within 20 s."
    have = "has" if len(over) == 1 else "have"
    gives = "gives" if len(over) == 1 else "give"
    asks = ", the youngest at once, for it has waited long enough" if mine.asks else ""
    return f"{waits}: {_names(over)} {have} more than the share and {gives} {unit}s back as jobs end{asks}."


def _less_than_wanted(mine: Member, pool: Pool) -> str:
    share = pool.shares[mine.study]
    if share >= mine.demand:
        return ""
    others = [member for member in pool.members if member is not mine and pool.shares[member.study]]
    first = [other for other in others if other.priority > mine.priority]
    equal = [other for other in others if other.priority == mine.priority]
    reasons = []
    if first:
        reasons.append(f"{_names(first)} {'goes' if len(first) == 1 else 'go'} first by priority")
    if equal:
        reasons.append(f"the {_unit(mine)}s are shared with {_names(equal)} by weight")
    if not reasons:
        return ""
    return f"It could use {mine.demand - share:,} more: {', and '.join(reasons)}."


def _names(members: Sequence[Member]) -> str:
    names = [member.study for member in sorted(members, key=lambda member: member.study)]
    shown = names[:NAMED] if len(names) > NAMED + 1 else names
    more = [f"{len(names) - len(shown)} others"] if len(names) > len(shown) else []
    parts = [*shown, *more]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
