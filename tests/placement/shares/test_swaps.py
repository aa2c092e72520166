"""Who gives up a device for whom: judged one device at a time, and by what nobody may lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_choice import choose_devices
from hpo_core.placement.shares.device_matching import match_free
from tests.placement.shares.test_device_choice import pools

Pool = tuple[list[Member], dict[str, int], int | None]


@st.composite
def swaps(draw: st.DrawFn) -> Pool:
    """A pool whose members give back some devices soon, and move for others."""
    members, shares, capacity = draw(pools())
    changed = []
    for member in members:
        offers = tuple(name for name in member.devices if draw(st.booleans()))
        changed.append(msgspec.structs.replace(member, offers=offers, moves=draw(st.booleans())))
    return changed, shares, draw(st.sampled_from([None, None, capacity]))


def gives_one_by_one(
    mine: Member, members: Sequence[Member], shares: Mapping[str, int], capacity: int | None, patience: float
) -> set[str]:
    """What a study gives up by rules 3 to 5, where a job runs on each device: every step looks at all anew."""
    offers = {name for one in members for name in one.offers}
    lasting = [
        msgspec.structs.replace(one, devices=tuple(name for name in one.devices if name not in offers))
        for one in members
    ]
    gets = match_free(lasting, shares, capacity=capacity, closed=offers)
    then = [
        msgspec.structs.replace(
            one,
            devices=(*one.devices, *(name for name, study in gets.items() if study == one.study)),
            wants=tuple(name for name in one.wants if name in offers),
        )
        for one in lasting
    ]
    gets |= match_free(then, shares, capacity=capacity)
    held = {one.study: len(one.devices) + list(gets.values()).count(one.study) for one in lasting}
    had = dict(held)
    not_held = {name for one in members for name in one.wants}
    not_held -= {name for one in lasting for name in one.devices}
    spare = not_held - set(gets)
    given: set[str] = set()
    for due in lasting:
        is_limited = bool(spare & set(due.wants))
        for _ in range(min(len(due.wants), shares[due.study] - had[due.study])):
            others = [one for one in lasting if one is not due and held[one.study] > 0]
            others = [one for one in others if is_limited or set(one.devices) & set(due.wants)]
            above = [(held[one.study] - shares[one.study], one.study) for one in others]
            above = [each for each in above if each[0] > 0]
            moving = [one for one in others if one.moves and spare & set(one.wants)]
            willing = [
                (one.study in gets.values(), held[one.study] / one.weight, one.study)
                for one in others
                if one.study in gets.values() or (one.priority <= due.priority and one.waited < due.waited)
            ]
            if above:
                giver = max(above)[-1]
            elif moving and not is_limited:
                last = max(moving, key=lambda one: one.study)
                giver = last.study
                spare.remove(next(name for name in last.wants if name in spare))
            elif willing and due.waited >= patience and not is_limited:
                giver = max(willing)[-1]
            else:
                break
            held[giver] -= 1
            if giver == mine.study:
                will_do = [name for name in mine.devices if name not in given and name not in offers]
                given.update([name for name in will_do if is_limited or name in due.wants][-1:])
    return given


@settings(max_examples=300)
@given(swaps(), st.sampled_from([0.0, 10.0]))
def test_each_gives_up_what_it_would_give_one_by_one(pool: Pool, patience: float) -> None:
    members, shares, capacity = pool
    members.sort(key=lambda one: (-one.priority, -one.waited, one.study))
    for mine in members:
        others = [one for one in members if one is not mine]
        choice = choose_devices(
            mine,
            others,
            shares=shares,
            usable=[name for name in (*mine.devices, *mine.wants) if name not in mine.offers],
            used=mine.devices,
            capacity=capacity,
            patience=patience,
        )
        gives = gives_one_by_one(mine, members, shares, capacity, patience)
        assert set(mine.devices) - set(choice.open) == gives | set(mine.offers)
        assert set(mine.devices) <= set(choice.held), "jobs run on all of them"
        assert set(choice.instead) <= set(choice.open)
        taken = {name for one in others for name in one.devices}
        assert taken.isdisjoint(choice.held), "what is given back soon is not free before"


def test_who_gives_back_a_worker_gets_another_one_for_it_without_waiting() -> None:
    """`b` could use either, and will have `x` in a moment."""
    hops = Member(study="a", demand=1, devices=("x",), offers=("x",), wants=("y",))
    plain = Member(study="b", demand=9, devices=("y",), wants=("x",))
    shares = {"a": 1, "b": 1}
    choice = choose_devices(plain, [hops], shares=shares, usable=["y", "x"], used=["y"], patience=60.0)
    assert (choice.held, choice.open) == (("y",), ())
    kept = msgspec.structs.replace(hops, offers=())
    assert choose_devices(plain, [kept], shares=shares, usable=["y", "x"], used=["y"], patience=60.0).open == ("y",)
    before = choose_devices(hops, [plain], shares=shares, usable=["y"], used=["x"], patience=60.0)
    assert (before.held, before.open) == (("x",), ()), "it has y once the job there has ended"


@pytest.mark.parametrize(
    ("moves", "free", "gives"), [(True, ["z"], True), (True, [], False), (False, ["z"], False)]
)  # fmt: skip
def test_a_study_that_has_enough_moves_at_once_where_another_device_is_free(
    moves: bool, free: list[str], gives: bool
) -> None:
    due = Member(study="a", demand=1, wants=("x",), waited=1.0)
    mine = Member(study="b", demand=1, devices=("x",), moves=moves)
    shares = {"a": 1, "b": 1}
    choice = choose_devices(mine, [due], shares=shares, usable=["x", *free], used=["x"], patience=20.0)
    assert (choice.open == ()) is gives and choice.held == ("x",)
    idle = choose_devices(mine, [due], shares=shares, usable=["x", *free], patience=20.0)
    assert idle.held == (("z",) if gives else ("x",))


def test_no_two_move_for_one_spare_device() -> None:
    due = Member(study="a", demand=2, wants=("x", "y"))
    both = [
        Member(study=study, demand=1, devices=(name,), wants=("z",), moves=True)
        for study, name in (("b", "x"), ("c", "y"))
    ]
    shares = {"a": 2, "b": 1, "c": 1}
    gave = []
    for mine in both:
        others = [due, *(one for one in both if one is not mine)]
        choice = choose_devices(
            mine, others, shares=shares, usable=[*mine.devices, "z"], used=mine.devices, patience=20.0
        )
        gave.append(choice.open == ())
    assert sorted(gave) == [False, True]


def test_a_job_begins_on_none_of_those_that_one_waits_for() -> None:
    """Whichever job ends first, its device is the one that is given back."""
    due = Member(study="b", demand=2, wants=("x", "y"))
    mine = Member(study="a", demand=3, devices=("x", "y", "z"))
    choice = choose_devices(mine, [due], shares={"a": 2, "b": 1}, usable=["x", "y", "z"], used=["x", "y", "z"])
    assert (choice.open, choice.instead) == (("x", "z"), ("x",)), "nobody waits for z"
