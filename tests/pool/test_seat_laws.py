"""A look at the pool ends, whatever the rows say: random members, of which some give back names soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.arbiter import Pool
from hpo_core.pool.seat import WHOLE_WORKERS, WORKER_SLOTS, PoolSeat, Terms, Use
from hpo_core.pool.store import RowChange
from tests.sharing.in_memory import MemoryPools

NAMES = [f"worker-{number}#0" for number in range(4)]
MOST_CALLS = 50
"""Decisions of one look; each is one pass over the names."""


class Claims:
    """A study that could use so many names."""

    job_slots = 1

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def demand(self, most: int) -> int:
        return min(most, self.wanted)

    def spare(self, most: int) -> int:
        return 0


@st.composite
def members(draw: st.DrawFn) -> list[tuple[Member, Grant, Sequence[str]]]:
    """Three studies: the names that each could use, holds, and runs jobs on."""
    holders = draw(st.lists(st.sampled_from([None, *"abc"]), min_size=len(NAMES), max_size=len(NAMES)))
    found = []
    for study in "abc":
        held = tuple(name for name, holder in zip(NAMES, holders, strict=True) if holder == study)
        busy = [name for name in held if draw(st.booleans())]
        ending = tuple(name for name in busy if draw(st.booleans()))
        closing = tuple(name for name in held if draw(st.integers(0, 3)) == 0)
        usable = [name for name in draw(st.permutations(NAMES)) if name not in ending and draw(st.booleans())]
        member = Member(
            study=study,
            owner=study,
            kind="worker slot",
            seen=len(NAMES),
            demand=draw(st.integers(0, len(NAMES))),
            usable=tuple(usable),
            ending=ending,
            weight=draw(st.sampled_from([1.0, 2.0])),
            priority=draw(st.integers(0, 1)),
            waited=draw(st.sampled_from([0.0, 4.0, 30.0])),
            any_will_do=draw(st.booleans()),
        )
        found.append((member, Grant(held=held, closing=closing), busy))
    return found


@settings(max_examples=80)
@given(members(), st.booleans())
def test_a_look_ends_whatever_the_rows_say(rows: list[tuple[Member, Grant, Sequence[str]]], hops: bool) -> None:
    pools, calls, arbitrate = MemoryPools(), [], Pool.arbitrate
    for member, grant, _ in rows:
        pools.change(
            "p",
            member.study,
            lambda _, member=member, grant=grant: RowChange(member, {member.study: grant}),  # type: ignore[misc]
        )
    mine, grant, busy = rows[0]
    terms = Terms(pool="p", study="a", owner="a", weight=mine.weight, priority=mine.priority)
    seat = PoolSeat(pools, terms, Claims(mine.demand), WHOLE_WORKERS if hops else WORKER_SLOTS)

    def counted(pool: Pool, *given: Any, **named: Any) -> dict[str, Grant]:
        calls.append(pool)
        assert len(calls) <= MOST_CALLS, "the look does not end"
        return arbitrate(pool, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "arbitrate", counted)
        seat.exchange(0.0, Use(len(NAMES), len(busy), len(busy), mine.usable, busy, mine.ending, NAMES))
    held = [name for row in pools.all() for name in row.grant.held]
    assert len(held) == len(set(held)) <= len(NAMES), "no name is held twice"
    assert set(busy) <= set(seat.grant.held), "what jobs run on is kept"
    for member, before, _ in rows[1:]:
        (row,) = [row for row in pools.all() if row.study == member.study]
        assert set(before.held) <= set(row.grant.held), "nobody gives back what another study holds"
