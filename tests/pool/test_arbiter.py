"""Laws of the one rule of a pool, on random states and with looks in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.arbiter import Pool, capacity_of, longest_asking
from hpo_core.pool.seat import COUNTED, DEVICES, HOPPED_WORKERS, WORKERS, Kind, PoolSeat, Terms, Use
from tests.sharing.in_memory import MemoryPools

NAMES = ["v", "w", "x", "y"]
STUDIES = ["a", "b", "c"]
SLOTS = 8
STATES = 1_000


def device_member(study: str, usable: Sequence[str], **more: object) -> Member:
    return Member(study=study, kind="device", usable=tuple(usable), **{"demand": len(usable), **more})  # type: ignore[arg-type]


def random_pool(draw: random.Random) -> Pool:
    """Up to four studies on up to six names: any demand, any that they could use, hold, or have to give back."""
    names, studies = [f"worker-{number}" for number in range(draw.randint(1, 6))], "abcd"[: draw.randint(1, 4)]
    holders = {name: draw.choice([None, *studies]) for name in names}
    members, grants = [], {}
    for study in studies:
        held = tuple(name for name in names if holders[name] == study)
        grants[study] = Grant(held=held, closing=tuple(name for name in held if draw.random() < 0.3))
        usable = (
            draw.sample(names, len(names)) if draw.random() < 0.4 else draw.sample(names, draw.randint(0, len(names)))
        )
        members.append(
            Member(
                study=study,
                kind="worker",
                usable=tuple(usable),
                demand=draw.randint(0, 6),
                spare=draw.choice([0, 0, 1]),
                patience=draw.choice([0.0, 5.0]),
                weight=draw.choice([1.0, 3.0]),
                priority=draw.choice([0, 0, 1]),
                waited=draw.choice([0.0, 5.0, 30.0]),
            )
        )
    return Pool(members, grants)


def poured(capacity: int, members: Sequence[Member]) -> dict[str, Fraction]:
    """Section 5.3 in words: by weight to all; what is above what one can use goes evenly to the rest; by priority."""
    shares = {member.study: Fraction(0) for member in members}
    left = Fraction(capacity)
    for priority in sorted({member.priority for member in members}, reverse=True):
        open_ones = [member for member in members if member.priority == priority]
        while open_ones and left > 0:
            level = min(
                [left / sum(Fraction(one.weight) for one in open_ones)]
                + [(one.demand - shares[one.study]) / Fraction(one.weight) for one in open_ones]
            )
            for one in open_ones:
                shares[one.study] += level * Fraction(one.weight)
                left -= level * Fraction(one.weight)
            open_ones = [one for one in open_ones if shares[one.study] < one.demand]
    return shares


def test_on_random_states_one_pass_gives_what_may_be_given() -> None:
    for seed in range(STATES):
        draw = random.Random(seed)
        pool = random_pool(draw)
        mine = draw.choice(pool.members).study
        idle = {name for name, study in pool.holder.items() if study == mine and draw.random() < 0.5}
        grants = pool.arbitrate(idle)
        for member in pool.members:
            ideal = poured(pool.capacity, pool.members)[member.study]
            assert abs(pool.shares[member.study] - ideal) < 1, "water-filling, rounded to whole names"
            had, has = set(pool.grants[member.study].held), set(grants[member.study].held)
            assert had - idle <= has, "nothing is taken on which a job may run"
            assert has - had <= set(member.usable), "nobody gets what is of no use to it"
            assert len(has) <= max(len(had), member.demand + member.spare)
            assert set(grants[member.study].closing) <= has
        held = [name for grant in grants.values() for name in grant.held]
        assert len(held) == len(set(held)), "no name is held twice"
        assert set(held) <= pool.holder.keys() or len(held) <= pool.capacity
        free = set(pool.names).difference(held)
        if len(held) < pool.capacity:
            for member in pool.members:
                has_all = len(grants[member.study].held) >= member.demand + member.spare
                assert has_all or free.isdisjoint(member.usable), "no free name is left to who could use it"
        left = {
            one.study: len(set(grants[one.study].held).difference(grants[one.study].closing)) for one in pool.members
        }
        due = {one.study: pool.shares[one.study] - len(grants[one.study].held) for one in pool.members}
        closing = sum(len(grant.closing) for grant in grants.values())
        assert closing <= sum(number for number in due.values() if number > 0), "no more is closed than is due"
        for member in pool.members:
            if due[member.study] > closing:
                for other in pool.members:
                    if other is not member and left[other.study] > pool.shares[other.study]:
                        kept = set(grants[other.study].held).difference(grants[other.study].closing)
                        assert kept.isdisjoint(member.usable), "who is due is promised what others have above theirs"


def test_a_second_decision_closes_no_more() -> None:
    for seed in range(STATES // 4):
        pool = random_pool(random.Random(seed))
        first = pool.arbitrate()
        second = Pool(pool.members, first).arbitrate()
        assert {study: grant.held for study, grant in second.items()} == {
            study: grant.held for study, grant in first.items()
        }
        third = Pool(pool.members, second).arbitrate()
        assert third == second


def grants_of(members: Sequence[Member], held: dict[str, Sequence[str]]) -> dict[str, Grant]:
    return Pool(members, {study: Grant(held=tuple(names)) for study, names in held.items()}).arbitrate()


def test_who_needs_one_device_gets_it_and_the_other_moves() -> None:
    """`b` can use `x` alone; `a`, which came first, holds it, and `y` will do for it."""
    a, b = device_member("a", "xy", demand=1, patience=20.0), device_member("b", "x", waited=9.0)
    assert grants_of([a, b], {"a": "x"})["a"].closing == (), "it has waited for less than the patience of the other"
    patient = msgspec.structs.replace(a, patience=5.0)
    late = grants_of([patient, b], {"a": "x"})
    assert late["a"] == Grant(held=("x",), closing=("x",)), "it begins nothing there, and gets y once x is given back"
    released = grants_of([a, b], {"a": ""})
    assert (released["a"].held, released["b"].held) == (("y",), ("x",))


@pytest.mark.parametrize(("priority", "gives"), [(0, True), (1, False)])
def test_a_study_of_higher_priority_within_its_share_keeps_what_only_it_can_use(priority: int, gives: bool) -> None:
    a = device_member("a", "x", priority=priority, seen=2)
    b = device_member("b", "x", waited=60.0, seen=2)
    assert bool(grants_of([a, b], {"a": "x"})["a"].closing) is gives


@pytest.mark.parametrize(("waited", "gives"), [(0.0, True), (90.0, False)])
def test_of_two_that_lack_names_the_one_that_waited_longer_keeps_what_both_want(waited: float, gives: bool) -> None:
    a = device_member("a", "xz", waited=waited, seen=4)
    b = device_member("b", "x", waited=60.0)
    c = device_member("c", "z", priority=9)
    assert ("x" in grants_of([a, b, c], {"a": "x", "c": "z"})["a"].closing) is gives


def test_of_idle_names_beyond_its_share_a_study_gives_back_any() -> None:
    """Whichever job ends first: not the name alone that was closing."""
    due, mine = device_member("b", "xy", demand=1), device_member("a", "zxy")
    closing = Pool([mine, due], {"a": Grant(held=("x", "y", "z"))}).arbitrate()
    assert closing["a"].closing == ("y",)
    assert Pool([mine, due], closing).arbitrate({"x"})["b"].held == ("x",)


def test_the_pool_is_as_large_as_its_largest_cluster() -> None:
    members = [Member(study="a", seen=8), Member(study="b", seen=4)]
    assert capacity_of(members) == 8
    assert capacity_of([]) == 0
    assert capacity_of([Member(study="a", seen=1)], "xy") == 2, "each sees one device, and they are two"


@pytest.mark.parametrize(("asks", "held", "expected"), [(True, 5, "b"), (False, 5, None), (True, 4, None)])
def test_a_study_above_its_share_ends_a_job_for_who_has_asked_longest(
    asks: bool, held: int, expected: str | None
) -> None:
    mine = Member(study="a", demand=8, seen=8)
    others = [Member(study="b", demand=8, asks=asks, waited=70.0), Member(study="c", demand=8)]
    position = Pool([mine, others[0]], {}).position("a")
    assert longest_asking(mine, others, held, position) == expected


def test_the_work_of_a_decision_grows_with_the_number_of_planted_names() -> None:
    """Whoever may write to the database can plant rows; a look must not take minutes for that."""
    members, grants = [], {}
    for place in range(20):
        held, wanted = (tuple(f"{place}{sign}{name}" for name in range(1_000)) for sign in "-+")
        names = (*held, *wanted, *(f"x{name}" for name in range(1_000)))
        members.append(device_member(f"p{place:02}", names, waited=float(place)))
        grants[f"p{place:02}"] = Grant(held=held)
    found = Pool(members, grants).arbitrate()
    assert len({name for grant in found.values() for name in grant.held}) == 41_000


# Looks in any order, by seats of real controllers.


class Wants:
    """A study that could use so much."""

    def __init__(self, job_slots: int = 1, wanted: int = 0) -> None:
        self.wanted, self.job_slots = wanted, job_slots

    def demand(self, most: int) -> int:
        return min(most, self.wanted)

    def spare(self, most: int) -> int:
        return 0


def seats_of(rows: MemoryPools, names: str, kind: Kind = COUNTED, gang: int = 1) -> dict[str, PoolSeat]:
    return {
        name: PoolSeat(rows, Terms(pool="p", study=name, owner=name), Wants(gang if name == "a" else 1), kind)
        for name in names
    }


def all_held(rows: MemoryPools) -> list[str]:
    return [name for row in rows.all() for name in row.grant.held]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12), st.floats(0.0, 1.0)), max_size=15),
    st.sampled_from([1, 2, 4]),
)
def test_whoever_looks_when_no_slot_is_held_twice_and_running_jobs_keep_theirs(
    looks: list[tuple[str, int, float]], gang: int
) -> None:
    rows = MemoryPools()
    seats = seats_of(rows, "abcd", gang=gang)
    for moment, (name, demand, part) in enumerate(looks):
        for other, seat in seats.items():
            held = sorted(seat.grant.held)
            busy = held[: int(len(held) * part)] if other == name else held
            seat._study.wanted = max(len(busy), demand if other == name else 0)  # type: ignore[attr-defined]
            seat.exchange(float(moment), Use(SLOTS, len(busy), len(busy), busy=busy))
            assert set(busy) <= set(seat.grant.held), "what running jobs use is kept"
            assert len(all_held(rows)) == len(set(all_held(rows))) <= SLOTS


@settings(max_examples=12)
@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.permutations("abcd"))
def test_once_jobs_have_ended_rounds_of_looks_bring_everybody_to_its_share(
    demands: list[int], order: list[str]
) -> None:
    rows = MemoryPools()
    seats = seats_of(rows, "abcd")
    seats["a"]._study.wanted = SLOTS  # type: ignore[attr-defined]
    seats["a"].exchange(0.0, Use(SLOTS, SLOTS, SLOTS))
    assert len(seats["a"].grant.held) == SLOTS, "it was alone"
    for name, demand in zip("abcd", demands, strict=True):
        seats[name]._study.wanted = demand  # type: ignore[attr-defined]
    for moment in (2.0, 4.0, 6.0):
        for name in order:
            seats[name].exchange(moment, Use(SLOTS, 0, SLOTS))
    for seat in seats.values():
        assert seat.position is not None and seat.position.share == len(seat.grant.held)
    assert len(all_held(rows)) == min(SLOTS, sum(demands))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([1.0, 2.0]), st.integers(0, 1)),
             min_size=1, max_size=4)
)  # fmt: skip
def test_what_nobody_claims_is_lent_and_nothing_else(asked: list[tuple[int, int, float, int]]) -> None:
    members = [
        Member(study=name, demand=demand, spare=spare, weight=weight, priority=priority, seen=SLOTS)
        for name, (demand, spare, weight, priority) in zip("abcd", asked, strict=False)
    ]
    pool = Pool(members, {})
    without = Pool([msgspec.structs.replace(member, spare=0) for member in members], {})
    assert pool.shares == without.shares, "nobody is due less because another one is lent some"
    lent = {study: len(grant.held) - pool.shares[study] for study, grant in pool.arbitrate().items()}
    unclaimed = SLOTS - sum(pool.shares.values())
    assert sum(lent.values()) == min(unclaimed, sum(member.spare for member in members))
    assert all(0 <= lent[member.study] <= member.spare for member in members)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [WORKERS, HOPPED_WORKERS, DEVICES], ids=["plain", "hops", "devices"])
def test_whatever_each_can_use_nothing_is_held_twice_and_nobody_starves(kind: Kind, seed: int) -> None:
    """Each wants a name, and keeps every one on which it may begin busy with one job after the other."""
    draw, rows = random.Random(seed), MemoryPools()
    usable = {name: draw.sample(NAMES, draw.randint(1, 4)) for name in STUDIES}
    if kind is WORKERS:
        usable = dict.fromkeys(STUDIES, NAMES[: draw.randint(1, 4)])
    kinds = dict.fromkeys(STUDIES, kind)
    seats = {
        name: PoolSeat(rows, Terms(pool="p", study=name, owner=name), Wants(wanted=1), kinds[name]) for name in STUDIES
    }
    busy: dict[str, dict[str, int]] = {name: {} for name in STUDIES}
    since = dict.fromkeys(STUDIES, 0)
    order = draw.sample(STUDIES, 3)
    for now in range(120):
        for name in order:
            seat = seats[name]
            seat.look_soon()
            most = max(len(busy[name]), len(seat.grant.held))
            seat.exchange(now + 0.3 * order.index(name), Use(4, len(busy[name]), most, usable[name], list(busy[name])))
            assert len(all_held(rows)) == len(set(all_held(rows)))
            for device in sorted(seat.open(now + 1.0)):
                busy[name].setdefault(device, draw.randint(1, 5))
            assert set(busy[name]) <= set(seat.grant.held)
            since[name] = now if seat.grant.held else since[name]
            busy[name] = {device: time - 1 for device, time in busy[name].items() if time > 1}
        assert max(now - since[name] for name in STUDIES) <= 3 * (max(kind.patience, 20.0) + 13), (
            "nobody waits for ever"
        )
