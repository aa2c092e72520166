"""Laws of the one rule of a pool, on random states and with looks in any order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.arbiter import Pool, capacity_of, longest_asking
from hpo_core.pool.division import Claim, ideal_shares
from hpo_core.pool.seat import COUNTED, Kind, PoolSeat, Terms, Use
from tests.sharing.in_memory import MemoryPools

NAMES = ["v", "w", "x", "y"]
STUDIES = ["a", "b", "c"]
SLOTS = 8


def device_member(study: str, usable: Sequence[str], **more: object) -> Member:
    return Member(study=study, kind="device", usable=tuple(usable), **{"demand": len(usable), **more})  # type: ignore[arg-type]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Three studies on four names: any demand, any that they can use, hold, give back soon, or promised."""
    holders = draw(st.lists(st.sampled_from([None, *STUDIES]), min_size=4, max_size=4))
    members, grants = [], {}
    for study in STUDIES:
        held = tuple(name for name, holder in zip(NAMES, holders, strict=True) if holder == study)
        ending = tuple(name for name in held if draw(st.integers(0, 3)) == 0)
        closing = tuple(name for name in held if draw(st.integers(0, 2)) == 0)
        heirs = tuple(draw(st.sampled_from(["", "gone", *STUDIES])) for _ in closing)
        usable = [name for name in draw(st.permutations(NAMES)) if name not in ending and draw(st.integers(0, 3))]
        grants[study] = Grant(held=held, closing=closing, heirs=heirs)
        members.append(
            device_member(
                study,
                usable,
                demand=draw(st.integers(0, 4)),
                spare=draw(st.sampled_from([0, 0, 1])),
                ending=ending,
                any_will_do=draw(st.booleans()),
                weight=draw(st.sampled_from([1.0, 3.0])),
                priority=draw(st.integers(0, 1)),
                waited=draw(st.sampled_from([0.0, 5.0, 30.0])),
                stated=draw(st.sampled_from([None, None, 2, 3])),
            )
        )
    return Pool(members, grants, patience=draw(st.sampled_from([0.0, 10.0])))


def lasting(member: Member, grant: Grant) -> set[str]:
    return set(grant.held).difference(member.ending)


@settings(max_examples=150)
@given(pools(), st.sets(st.sampled_from(NAMES)))
def test_what_the_arbiter_may_do(pool: Pool, names: set[str]) -> None:
    idle = {name for name in names if pool.holder.get(name) == "a"}
    before, grants = pool.grants, pool.arbitrate(idle)
    held = [name for grant in grants.values() for name in grant.held]
    assert len(held) == len(set(held)), "no name is held twice"
    gained = set(held) - pool.holder.keys()
    assert not gained or len(held) <= pool.capacity
    for member in pool.members:
        mine, had = grants[member.study], set(before[member.study].held)
        assert had - idle <= set(mine.held), "nothing is taken on which a job may run"
        assert set(mine.held) - had <= set(member.usable), "and nobody gets what is of no use to it"
        assert len(lasting(member, mine)) <= max(
            len(lasting(member, before[member.study])), member.demand + member.spare
        )
        assert set(mine.closing) <= set(mine.held) and len(mine.heirs) == len(mine.closing)
    promised = {heir: [] for heir in STUDIES}  # type: dict[str, list[str]]
    for study, grant in grants.items():
        for name, heir in zip(grant.closing, grant.heirs, strict=True):
            promised[heir].append(name)
            assert heir != study and name in pool.usable[heir]
    for member in pool.members:
        missing = max(0, pool.shares[member.study] - len(lasting(member, grants[member.study])))
        assert len(promised[member.study]) <= missing, "nobody is promised more than it is due"


@settings(max_examples=150)
@given(pools())
def test_a_second_decision_changes_nothing(pool: Pool) -> None:
    first = pool.arbitrate()
    assert Pool(pool.members, first, patience=pool.patience).arbitrate() == first


@settings(max_examples=80)
@given(pools())
def test_no_free_name_is_left_to_who_could_use_it(pool: Pool) -> None:
    grants = pool.arbitrate()
    free = set(NAMES).difference(*(grant.held for grant in grants.values()))
    if sum(len(grant.held) for grant in grants.values()) < pool.capacity:
        for member in pool.members:
            assert free.isdisjoint(member.usable) or (
                len(lasting(member, grants[member.study])) >= member.demand + member.spare
            )


@settings(max_examples=80)
@given(pools())
def test_who_is_due_is_promised_what_others_have_above_their_share(pool: Pool) -> None:
    grants = pool.arbitrate()
    kept = {one.study: lasting(one, grants[one.study]).difference(grants[one.study].closing) for one in pool.members}
    soon = {name for one in pool.members for name in one.ending}
    for due in pool.members:
        heirs = [heir for grant in grants.values() for heir in grant.heirs]
        has = len(lasting(due, grants[due.study])) + heirs.count(due.study)
        if has < pool.shares[due.study] and not soon:
            for other in pool.members:
                if other is not due and len(kept[other.study]) > pool.shares[other.study]:
                    assert kept[other.study].isdisjoint(due.usable)


@settings(max_examples=80)
@given(pools())
def test_once_all_is_idle_and_of_use_to_all_each_has_its_share(pool: Pool) -> None:
    """Water-filling (Li et al. 2020, 5.3), rounded to whole names."""
    members = [
        msgspec.structs.replace(one, usable=tuple(NAMES), ending=(), spare=0, stated=None) for one in pool.members
    ]
    grants = Pool(members, {}).arbitrate()
    claims = [Claim(study=one.study, demand=one.demand, weight=one.weight, priority=one.priority) for one in members]
    for study, ideal in ideal_shares(len(NAMES), claims).items():
        assert abs(len(grants[study].held) - ideal) < 1


@settings(max_examples=80)
@given(pools())
def test_a_name_that_ends_soon_counts_the_same_whoever_looks(pool: Pool) -> None:
    """A study whose last name is ending gets one for it, and gives none back at the same time."""
    members = [msgspec.structs.replace(one, ending=()) for one in pool.members]
    gone = {
        one.study: Grant(held=tuple(name for name in pool.grants[one.study].held if name not in one.ending))
        for one in pool.members
    }
    room = len(pool.holder) <= pool.capacity
    now, then = pool.arbitrate(), Pool(members, gone, patience=pool.patience).arbitrate()
    for member in pool.members:
        if room and pool.capacity >= len(NAMES):
            assert len(lasting(member, now[member.study])) <= len(then[member.study].held)


def grants_of(members: Sequence[Member], held: dict[str, Sequence[str]], patience: float = 0.0) -> dict[str, Grant]:
    return Pool(
        members, {study: Grant(held=tuple(names)) for study, names in held.items()}, patience=patience
    ).arbitrate()


def test_who_needs_one_device_gets_it_and_the_other_moves() -> None:
    """`b` can use `x` alone; `a`, which came first, holds it, and `y` will do for it."""
    a, b = device_member("a", "xy", demand=1), device_member("b", "x", waited=9.0)
    early = grants_of([a, b], {"a": "x"}, patience=20.0)
    assert early["a"].closing == (), "it has waited for less than the patience of the pool"
    late = grants_of([a, b], {"a": "x"}, patience=5.0)
    assert late["a"] == Grant(held=("x",), closing=("x",), heirs=("b",)), (
        "it begins nothing there, and gets y once x is given back"
    )
    released = grants_of([a, b], {"a": ""}, patience=5.0)
    assert (released["a"].held, released["b"].held) == (("y",), ("x",))


def test_the_name_that_a_study_would_give_up_first_is_closed_and_stays_the_one() -> None:
    a, b = device_member("a", "xy"), device_member("b", "xy")
    first = grants_of([a, b], {"a": "xy"})
    assert first["a"].closing == ("y",)
    later = msgspec.structs.replace(a, usable=("y", "x"))
    assert Pool([later, b], first).arbitrate() == first, "a younger job on x since then is no reason"


@pytest.mark.parametrize(("priority", "gives"), [(0, True), (1, False)])
def test_a_study_of_higher_priority_within_its_share_keeps_what_only_it_can_use(priority: int, gives: bool) -> None:
    a = device_member("a", "x", priority=priority, stated=2, seen=2)
    b = device_member("b", "x", waited=60.0, seen=2)
    assert bool(grants_of([a, b], {"a": "x"})["a"].closing) is gives


@pytest.mark.parametrize(("waited", "gives"), [(0.0, True), (90.0, False)])
def test_of_two_that_lack_names_the_one_that_waited_longer_keeps_what_both_want(waited: float, gives: bool) -> None:
    a = device_member("a", "xz", waited=waited, seen=4)
    b = device_member("b", "x", waited=60.0)
    c = device_member("c", "z", priority=9)
    assert ("x" in grants_of([a, b, c], {"a": "x", "c": "z"})["a"].closing) is gives


def test_who_gives_back_a_worker_soon_gets_another_one_for_it_without_waiting() -> None:
    """Any worker will do for `b`, which will have `x` in a moment."""
    hops = device_member("a", "y", demand=1, ending=("x",), seen=2)
    plain = device_member("b", "yx", demand=9, seen=2, any_will_do=True)
    assert grants_of([hops, plain], {"a": "x", "b": "y"}, patience=60.0)["b"].closing == ("y",)
    kept = msgspec.structs.replace(hops, ending=(), usable=("x", "y"))
    assert grants_of([kept, plain], {"a": "x", "b": "y"}, patience=60.0)["b"].closing == ()


@pytest.mark.parametrize("any_will_do", [True, False])
def test_a_study_for_which_any_name_will_do_gives_one_up_at_once(any_will_do: bool) -> None:
    due = device_member("a", "x", waited=1.0, seen=2)
    mine = device_member("b", "xz", demand=1, any_will_do=any_will_do, seen=2)
    assert (grants_of([due, mine], {"b": "x"}, patience=20.0)["b"].closing == ("x",)) is any_will_do


def test_of_idle_names_beyond_its_share_a_study_gives_back_those_that_others_wait_for() -> None:
    """Whichever job ends first: not the name alone that was closing."""
    due, mine = device_member("b", "xy", demand=1), device_member("a", "zxy", waited=0.0)
    closing = Pool([mine, due], {"a": Grant(held=("x", "y", "z"))}).arbitrate()
    assert (closing["a"].closing, closing["a"].heirs) == (("y",), ("b",))
    ended = msgspec.structs.replace(mine, usable=("z", "y", "x"))
    assert Pool([ended, due], closing).arbitrate({"x"})["b"].held == ("x",)


def test_a_whole_worker_is_gathered_slot_by_slot_and_closed_with_all_of_its_slots() -> None:
    plain = Member(study="a", kind="worker slot", any_will_do=True, demand=4, usable=("w#0", "w#1", "u#0", "u#1"))
    hops = Member(study="b", kind="worker slot", whole=True, demand=2, job_slots=2, usable=("w#0", "w#1"))
    first = grants_of([plain, hops], {"a": ("u#0", "u#1", "w#0", "w#1")})
    assert first["a"].closing == ("w#0", "w#1") and not first["b"].held
    half = grants_of([plain, hops], {"a": ("u#0", "u#1", "w#0")})
    assert not half["b"].held and "w#1" not in half["a"].held, "it is kept for who takes all of the worker"
    assert grants_of([plain, hops], {"a": ("u#0", "u#1")})["b"].held == ("w#0", "w#1")
    many = Member(study="a", kind="worker slot", any_will_do=True, demand=3, weight=3.0, usable=plain.usable)
    back = grants_of([many, hops], {"a": ("u#0", "u#1"), "b": ("w#0", "w#1")})
    assert set(back["b"].closing) in (set(), {"w#0", "w#1"})


def test_the_pool_is_as_large_as_its_largest_cluster_or_the_least_that_is_stated() -> None:
    members = [Member(study="a", seen=8), Member(study="b", seen=4)]
    assert capacity_of(members) == 8
    assert capacity_of([*members, Member(study="c", seen=9, stated=6)]) == 6
    assert capacity_of([]) == 0
    assert capacity_of([Member(study="a", seen=1)], "xy") == 2, "each sees one device, and they are two"
    assert capacity_of([Member(study="a", seen=1), Member(study="c", seen=2, stated=1)], "xy") == 1


@pytest.mark.parametrize(("asks", "held", "expected"), [(True, 5, "b"), (False, 5, None), (True, 4, None)])
def test_a_study_above_its_share_ends_a_job_for_who_has_asked_longest(
    asks: bool, held: int, expected: str | None
) -> None:
    mine = Member(study="a", demand=8, seen=8)
    others = [Member(study="b", demand=8, asks=asks, waited=70.0), Member(study="c", demand=8)]
    position = Pool([mine, others[0]], {}).position("a")
    assert longest_asking(mine, others, held, position) == expected


# Looks in any order, by seats of real controllers.


class Wants:
    """A study that could use so much."""

    def __init__(self, job_slots: int = 1) -> None:
        self.wanted, self.extra, self.job_slots = 0, 0, job_slots

    def demand(self, most: int) -> int:
        return min(most, self.wanted)

    def spare(self, most: int) -> int:
        return min(most, self.extra)


def seats_of(rows: MemoryPools, names: str, kind: Kind = COUNTED, gang: int = 1) -> dict[str, PoolSeat]:
    return {
        name: PoolSeat(rows, Terms(pool="p", study=name, owner=name), Wants(gang if name == "a" else 1), kind)
        for name in names
    }


def all_held(rows: MemoryPools) -> list[str]:
    return [name for row in rows.all() for name in row.grant.held]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12), st.floats(0.0, 1.0)), max_size=40),
    st.sampled_from([1, 2, 4]),
)
def test_whoever_looks_when_no_slot_is_held_twice_and_running_jobs_keep_theirs(
    looks: list[tuple[str, int, float]], gang: int
) -> None:
    rows = MemoryPools()
    seats = seats_of(rows, "abcd", gang=gang)
    for moment, (name, demand, part) in enumerate(looks):
        for other, seat in seats.items():
            held = len(seat.grant.held)
            used = int(held * part) if other == name else held
            seat._study.wanted = max(used, demand if other == name else used)  # type: ignore[attr-defined]
            seat.exchange(float(moment), Use(SLOTS, used, used))
            assert used <= len(seat.grant.held), "what running jobs use is kept"
            assert len(all_held(rows)) == len(set(all_held(rows))) <= SLOTS


@settings(max_examples=40)
@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.permutations("abcd"))
def test_once_jobs_have_ended_a_round_of_looks_brings_everybody_to_its_share(
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


@settings(max_examples=60)
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


@settings(max_examples=12)  # each of them is 300 looks
@given(
    st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True), min_size=3, max_size=3),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
    st.permutations(STUDIES),
    st.sampled_from([2.0, 5.0]),
)
def test_whatever_each_can_use_nothing_is_held_twice_and_nobody_starves(
    usable_of: list[list[str]], lasting: list[int], order: list[str], patience: float
) -> None:
    """Each is due a name, and keeps every one on which it may begin busy with one job after the other."""
    usable, rows = dict(zip(STUDIES, usable_of, strict=True)), MemoryPools()
    seats = seats_of(rows, "abc", Kind(word="device", patience=patience))
    left: dict[str, dict[str, int]] = {name: {} for name in STUDIES}
    since = dict.fromkeys(STUDIES, 0)
    number = idle = 0
    for now in range(100):
        for name in order:
            seat, busy = seats[name], list(left[name])
            seat._study.wanted = 1  # type: ignore[attr-defined]
            seat.look_soon()
            most = max(len(busy), len(seat.grant.held))
            seat.exchange(now + 0.3 * order.index(name), Use(4, len(busy), most, usable[name], busy))
            held = all_held(rows)
            assert len(held) == len(set(held))
            for device in sorted(seat.open(now + 1.0)):
                if device not in left[name]:
                    left[name][device] = lasting[number % 12]
                    number += 1
            assert set(left[name]) <= set(seat.grant.held)
            since[name] = now if seat.grant.held else since[name]
            left[name] = {device: time - 1 for device, time in left[name].items() if time > 1}
        free = {name for one in STUDIES if not seats[one].grant.held for name in usable[one]} - set(held)
        idle = idle + 1 if free else 0
        assert idle <= 2, "a name that is due to somebody is free for two rounds of looks at most"
        assert max(now - since[name] for name in STUDIES) <= 3 * (patience + 8), "and nobody waits for ever"
