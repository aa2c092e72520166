"""Laws of holding slots: studies whose controllers look in any order, with any demand, hold no slot twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares import capacity_of, position_of, should_preempt

NAMES = ["a", "b", "c", "d"]
SLOTS = 8


@st.composite
def looks(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    """Who looks, with which demand, and how much of what it holds its jobs use."""
    one = st.tuples(st.sampled_from(NAMES), st.integers(0, 12), st.floats(0.0, 1.0))
    return draw(st.lists(one, max_size=40))


@settings(max_examples=40)
@given(looks(), st.sampled_from([1, 2, 4]))
def test_whoever_looks_when_no_slot_is_held_twice_and_running_jobs_keep_theirs(
    looks: list[tuple[str, int, float]], gang: int
) -> None:
    members = {name: Member(study=name, job_slots=gang if name == "a" else 1) for name in NAMES}
    for name, demand, part in looks:
        used = int(members[name].held * part)
        mine = msgspec.structs.replace(members[name], demand=max(used, demand), used=used)
        others = [member for member in members.values() if member.study != name]
        position = position_of(mine, others, capacity=SLOTS)
        assert used <= position.held, "what running jobs use is kept"
        assert position.held <= max(position.share, used), "and nothing beyond the share besides"
        members[name] = msgspec.structs.replace(mine, held=position.held)
        assert sum(member.held for member in members.values()) <= SLOTS
        assert position.free == SLOTS - sum(member.held for member in members.values())


@settings(max_examples=40)
@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.permutations(NAMES))
def test_once_jobs_have_ended_two_rounds_of_looks_bring_everybody_to_its_share(
    demands: list[int], order: list[str]
) -> None:
    members = {name: Member(study=name, demand=demand) for name, demand in zip(NAMES, demands, strict=True)}
    members["a"] = msgspec.structs.replace(members["a"], held=SLOTS, used=0)  # it was alone
    for name in (*order, *order):
        others = [member for member in members.values() if member.study != name]
        position = position_of(members[name], others, capacity=SLOTS)
        members[name] = msgspec.structs.replace(members[name], held=position.held)
    for member in members.values():
        others = [other for other in members.values() if other is not member]
        assert position_of(member, others, capacity=SLOTS).share == member.held
    assert sum(member.held for member in members.values()) == min(SLOTS, sum(demands))


def test_a_pool_that_became_smaller_and_a_lease_that_ran_out_make_a_study_give_way() -> None:
    mine = Member(study="a", demand=8, held=8, used=8)
    assert position_of(mine, [Member(study="b", demand=8, held=6, used=6)], capacity=8).held == 2
    assert position_of(mine, [], capacity=5).held == 5


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([1.0, 2.0]), st.integers(0, 1)),
             min_size=1, max_size=4)
)  # fmt: skip
def test_what_nobody_claims_is_lent_and_nothing_else(asked: list[tuple[int, int, float, int]]) -> None:
    members = [
        Member(study=name, demand=demand, spare=spare, weight=weight, priority=priority)
        for name, (demand, spare, weight, priority) in zip(NAMES, asked, strict=False)
    ]
    positions = [
        position_of(mine, [other for other in members if other is not mine], capacity=SLOTS) for mine in members
    ]
    without = [msgspec.structs.replace(member, spare=0) for member in members]
    assert [one.share for one in positions] == [
        position_of(mine, [other for other in without if other is not mine], capacity=SLOTS).share for mine in without
    ], "nobody is due less because another one is lent some"
    unclaimed = SLOTS - sum(one.share for one in positions)
    assert sum(one.lent for one in positions) == min(unclaimed, sum(member.spare for member in members))
    assert all(one.lent <= member.spare for one, member in zip(positions, members, strict=True))


def test_lent_slots_that_are_not_used_are_no_reason_to_end_a_job() -> None:
    lent = Member(study="lent", demand=2, spare=6, held=8, used=2)
    waiting = Member(study="waiting", demand=4, asks=True, waited=70.0)
    assert should_preempt(lent, [waiting], capacity=8) is None
    used = msgspec.structs.replace(lent, used=8, demand=8, spare=0)
    assert should_preempt(used, [waiting], capacity=8) == "waiting"
    assert position_of(lent, [waiting], capacity=8).held == 4


def test_the_pool_is_as_large_as_its_largest_cluster_or_the_least_that_is_stated() -> None:
    members = [Member(study="a", seen=8), Member(study="b", seen=4)]
    assert capacity_of(members) == 8
    assert capacity_of([*members, Member(study="c", seen=9, stated=6)]) == 6
    assert capacity_of(members, shared_cluster=3) == 3
    assert capacity_of([]) == 0
    named = [Member(study="a", seen=1, devices=("x",)), Member(study="b", seen=1, wants=("y",))]
    assert capacity_of(named) == 2, "each sees one device, and they are two"
    assert capacity_of([*named, Member(study="c", seen=2, stated=1)]) == 1


@pytest.mark.parametrize(
    ("who", "asks", "held", "expected"),
    [
        ("most", True, 5, "waiting"),
        ("less", True, 5, None),  # another one has more above its share
        ("most", False, 5, None),  # nobody asks
        ("most", True, 4, None),  # a slot is free
        ("waiting", True, 5, None),
    ],
)
def test_the_most_over_served_study_gives_a_slot_to_who_asks(
    who: str, asks: bool, held: int, expected: str | None
) -> None:
    members = {
        "most": Member(study="most", demand=8, held=held),
        "less": Member(study="less", demand=8, held=3),
        "waiting": Member(study="waiting", demand=8, asks=asks, waited=70.0),
    }
    others = [member for name, member in members.items() if name != who]
    assert should_preempt(members[who], others, capacity=8) == expected
