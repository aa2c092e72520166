"""Laws of holding devices by name, judged by trying every assignment and by playing looks in any order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_choice import choose_devices
from hpo_core.placement.shares.device_matching import match_free

DEVICES = ["v", "w", "x", "y"]
STUDIES = ["a", "b", "c"]


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Member], dict[str, int], int | None]:
    """Members, the devices that each is due, and how many all may hold."""
    holders = draw(st.lists(st.sampled_from([None, *STUDIES]), min_size=4, max_size=4))
    members, shares = [], {}
    for study in STUDIES:
        devices = tuple(name for name, holder in zip(DEVICES, holders, strict=True) if holder == study)
        wants = [name for name in draw(st.permutations(DEVICES)) if name not in devices]
        demand = draw(st.integers(0, 4))
        shares[study] = draw(st.integers(0, demand))
        members.append(
            Member(
                study=study,
                demand=demand,
                devices=devices,
                wants=tuple(wants[: draw(st.integers(0, 4))]),
                weight=draw(st.sampled_from([1.0, 3.0])),
                priority=draw(st.integers(0, 1)),
                waited=draw(st.sampled_from([0.0, 5.0, 30.0])),
            )
        )
    return members, shares, draw(st.sampled_from([None, 2, 3]))


def every_assignment(members: Sequence[Member]) -> Iterator[dict[str, str]]:
    """All ways to give free devices to members that want them."""
    taken = {name for member in members for name in member.devices}
    free = [name for name in DEVICES if name not in taken]
    choices = [[None, *(member.study for member in members if name in member.wants)] for name in free]
    for owners in itertools.product(*choices):
        yield {name: owner for name, owner in zip(free, owners, strict=True) if owner is not None}


def served(members: Sequence[Member], shares: Mapping[str, int], owner: Mapping[str, str]) -> list[int]:
    """Of what each is due, how much an assignment gives it."""
    gains = [sum(study == member.study for study in owner.values()) for member in members]
    return [
        min(gain, max(0, shares[member.study] - len(member.devices)))
        for gain, member in zip(gains, members, strict=True)
    ]


@settings(max_examples=150)
@given(pools())
def test_no_other_assignment_serves_earlier_members_better_or_leaves_less_unused(
    pool: tuple[list[Member], dict[str, int], int | None],
) -> None:
    members, shares, capacity = pool
    found = match_free(members, shares, capacity=capacity)
    held = sum(len(member.devices) for member in members)
    room = 4 if capacity is None else max(0, capacity - held)

    def is_allowed(owner: Mapping[str, str]) -> bool:
        counts = [len(one.devices) + sum(study == one.study for study in owner.values()) for one in members]
        gains = [count - len(one.devices) for count, one in zip(counts, members, strict=True)]
        within = all(not gain or count <= one.demand for gain, count, one in zip(gains, counts, members, strict=True))
        return within and len(owner) <= room

    allowed = [owner for owner in every_assignment(members) if is_allowed(owner)]
    assert found in allowed
    assert served(members, shares, found) == max(served(members, shares, owner) for owner in allowed)
    assert len(found) == max(len(owner) for owner in allowed)


@example(
    (
        [
            Member(study="a", demand=2, devices=("y",), wants=("v", "w")),
            Member(study="b", demand=1, wants=("y",)),
            Member(study="c"),
        ],
        {"a": 2, "b": 1, "c": 0},
        None,
    ),
    [False] * 4,
    0.0,
)
@settings(max_examples=150)
@given(pools(), st.lists(st.booleans(), min_size=4, max_size=4), st.sampled_from([0.0, 10.0]))
def test_what_one_look_may_do(
    pool: tuple[list[Member], dict[str, int], int | None], jobs: list[bool], patience: float
) -> None:
    members, shares, capacity = pool
    mine, *others = members
    used = [name for name, runs in zip(mine.devices, jobs, strict=False) if runs]
    usable = [*mine.devices, *mine.wants]
    choice = choose_devices(mine, others, shares=shares, usable=usable, used=used, capacity=capacity, patience=patience)
    taken = {name for other in others for name in other.devices}
    assert set(choice.held).isdisjoint(taken) and set(used) <= set(choice.held)
    assert set(choice.open) <= set(choice.held) and set(choice.held) - set(choice.open) <= set(used)
    assert len(choice.held) <= max(mine.demand, len(used))
    if capacity is not None and set(choice.held) - set(mine.devices):
        assert len(choice.held) + len(taken) <= capacity
    lacking = [other for other in others if shares[other.study] > len(other.devices) and other.wants]
    if not lacking:
        assert set(choice.open) >= set(used), "nobody is due anything: no device is given back"
    if len(choice.held) < shares["a"] and capacity is None:
        for name in mine.wants:
            if name not in taken and name not in choice.held:
                assert any(name in other.wants for other in lacking), "free, of use and due: it is taken, or promised"
    if len(choice.open) > shares["a"] and capacity is None:
        for other in lacking:
            gets = set(other.wants) - taken - set(mine.devices)
            over = [one for one in others if one is not other and len(one.devices) > shares[one.study]]
            above = any(set(one.devices) & set(other.wants) for one in over)
            kept = set(choice.open) & set(mine.devices) & set(other.wants)
            assert not kept or gets or above or len(lacking) > 1 or _given(mine, choice.open, other) >= 1


def _given(mine: Member, opened: Sequence[str], other: Member) -> int:
    return len((set(mine.devices) - set(opened)) & set(other.wants))


def look(members: dict[str, Member], name: str, shares: dict[str, int], usable: dict[str, list[str]],
         running: dict[str, list[str]], opened: dict[str, tuple[str, ...]], patience: float,
         now: float, short: dict[str, float]) -> None:  # fmt: skip
    """One study looks at its pool, and publishes; what it says of its waiting is old when others read it."""
    mine = msgspec.structs.replace(members[name], waited=now - short.get(name, now))
    others = [member for member in members.values() if member.study != name]
    closing = set(mine.devices) - set(opened[name])
    choice = choose_devices(
        mine, others, shares=shares, usable=usable[name], used=running[name], closing=closing, patience=patience
    )
    opened[name] = choice.open
    if len(choice.held) >= shares[name]:
        short.pop(name, None)
    else:
        short.setdefault(name, now)
    wants = tuple(one for one in usable[name] if one not in choice.held) if mine.demand > len(choice.held) else ()
    members[name] = msgspec.structs.replace(mine, devices=choice.held, wants=wants, waited=now - short.get(name, now))


@example(
    usable_of=[["v"], ["x", "y"], ["x", "y", "v"]], lasting=[1, 1, 4, *[1] * 9], order=["b", "c", "a"], patience=0.0
)
@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(DEVICES), min_size=1, max_size=4, unique=True), min_size=3, max_size=3),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
    st.permutations(STUDIES),
    st.sampled_from([0.0, 4.0]),
)
def test_whatever_each_can_use_nothing_is_held_twice_and_nobody_starves(
    usable_of: list[list[str]], lasting: list[int], order: list[str], patience: float
) -> None:
    """Each is due a device, and keeps every one that is open busy with one job after the other."""
    usable = dict(zip(STUDIES, usable_of, strict=True))
    members = {name: Member(study=name, demand=len(usable[name])) for name in STUDIES}
    shares = dict.fromkeys(STUDIES, 1)
    left: dict[str, dict[str, int]] = {name: {} for name in STUDIES}
    opened: dict[str, tuple[str, ...]] = dict.fromkeys(STUDIES, ())
    since = dict.fromkeys(STUDIES, 0)
    short: dict[str, float] = {}
    number = idle = 0
    for now in range(120):
        for name in order:
            look(members, name, shares, usable, {one: list(left[one]) for one in STUDIES}, opened, patience,
                 now + 0.3 * order.index(name), short)  # fmt: skip
            holders = [device for member in members.values() for device in member.devices]
            assert len(holders) == len(set(holders))
            for device in opened[name]:
                if device not in left[name]:
                    left[name][device] = lasting[number % 12]
                    number += 1
            since[name] = now if members[name].devices else since[name]
            left[name] = {device: time - 1 for device, time in left[name].items() if time > 1}
        busy = {device for one in left.values() for device in one}
        free = {name for name in DEVICES if any(name in usable[one] for one in STUDIES)}
        idle = idle + 1 if free - {device for one in members.values() for device in one.devices} else 0
        assert idle <= 2 and busy <= free, "a device that somebody can use is free for two rounds of looks at most"
        assert max(now - since[name] for name in STUDIES) <= 3 * (patience + 8), "and nobody waits for ever"


def test_who_needs_one_device_gets_it_and_the_other_moves() -> None:
    """`b` can use `x` alone; `a`, which came first, holds it, and `y` will do for it."""
    a, b = Member(study="a", demand=1, devices=("x",)), Member(study="b", demand=1, wants=("x",), waited=9.0)
    shares = {"a": 1, "b": 1}
    early = choose_devices(a, [b], shares=shares, usable=["x", "y"], used=["x"], patience=20.0)
    assert early.open == ("x",), "it has waited for less than the patience of the pool"
    choice = choose_devices(a, [b], shares=shares, usable=["x", "y"], used=["x"], patience=5.0)
    assert (choice.held, choice.open) == (("x",), ()), "it begins nothing there, and takes y once x is given back"
    idle = choose_devices(a, [b], shares=shares, usable=["x", "y"], patience=5.0)
    assert idle.held == idle.open == ("y",), "no job runs on x: it takes y at once"
    free = [Member(study="a", demand=1, wants=("x", "y")), Member(study="b", demand=1, wants=("x",))]
    assert match_free(free, shares) == {"x": "b", "y": "a"}


def test_the_device_of_the_youngest_job_is_given_back_first_and_stays_the_one() -> None:
    a = Member(study="a", demand=2, devices=("x", "y"))
    b = Member(study="b", demand=2, wants=("x", "y"))
    shares = {"a": 1, "b": 1}
    assert choose_devices(a, [b], shares=shares, usable=["x", "y"], used=["x", "y"]).open == ("x",)
    later = choose_devices(a, [b], shares=shares, usable=["x", "y"], used=["y", "x"], closing={"y"})
    assert later.open == ("x",), "a younger job on x since then is no reason"


@pytest.mark.parametrize(("priority", "gives"), [(0, True), (1, False)])
def test_a_study_of_higher_priority_within_its_share_keeps_what_only_it_can_use(priority: int, gives: bool) -> None:
    a = Member(study="a", demand=1, devices=("x",), priority=priority)
    b = Member(study="b", demand=1, wants=("x",), waited=60.0)
    choice = choose_devices(a, [b], shares={"a": 1, "b": 1}, usable=["x"], used=["x"])
    assert (choice.open == ()) is gives


@pytest.mark.parametrize(("waited", "gives"), [(0.0, True), (90.0, False)])
def test_of_two_that_lack_devices_the_one_that_waited_longer_keeps_what_both_want(waited: float, gives: bool) -> None:
    a = Member(study="a", demand=2, devices=("x",), waited=waited)
    b = Member(study="b", demand=1, wants=("x",), waited=60.0)
    choice = choose_devices(a, [b], shares={"a": 2, "b": 1}, usable=["x"], used=["x"])
    assert (choice.open == ()) is gives
