"""Laws of the one rule of a pool, judged by trying every assignment, one name at a time, and by looks in any order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.arbiter import Pool, capacity_of, longest_asking, match_free
from hpo_core.pool.seat import COUNTED, Kind, PoolSeat, Terms, Use
from tests.sharing.in_memory import MemoryPools

NAMES = ["v", "w", "x", "y"]
STUDIES = ["a", "b", "c"]
SLOTS = 8


def device_member(study: str, usable: Sequence[str], **more: object) -> Member:
    return Member(study=study, kind="device", usable=tuple(usable), **{"demand": len(usable), **more})  # type: ignore[arg-type]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Three studies on four names: any demand, any that they can use, any that they hold or give back soon."""
    holders = draw(st.lists(st.sampled_from([None, *STUDIES]), min_size=4, max_size=4))
    members, grants = [], {}
    for study in STUDIES:
        held = tuple(name for name, holder in zip(NAMES, holders, strict=True) if holder == study)
        ending = tuple(name for name in held if draw(st.integers(0, 3)) == 0)
        others = [name for name in draw(st.permutations(NAMES)) if name not in held]
        usable = [*(name for name in held if name not in ending), *others[: draw(st.integers(0, 4))]]
        grants[study] = Grant(held=held)
        members.append(
            device_member(
                study,
                usable,
                demand=draw(st.integers(0, 4)),
                ending=ending,
                any_will_do=draw(st.booleans()),
                weight=draw(st.sampled_from([1.0, 3.0])),
                priority=draw(st.integers(0, 1)),
                waited=draw(st.sampled_from([0.0, 5.0, 30.0])),
                stated=draw(st.sampled_from([None, None, 2, 3])),
            )
        )
    return Pool(members, grants, patience=draw(st.sampled_from([0.0, 10.0])))


def every_assignment(
    pool: Pool, held: Mapping[str, Sequence[str]], wants: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, str]]:
    """All ways to give free names to members that want them."""
    taken = {name for names in held.values() for name in names}
    free = [name for name in NAMES if name not in taken]
    choices = [[None, *(study for study in STUDIES if name in wants[study])] for name in free]
    for owners in itertools.product(*choices):
        yield {name: owner for name, owner in zip(free, owners, strict=True) if owner is not None}


@settings(max_examples=60)
@given(pools())
def test_no_other_assignment_serves_earlier_members_better_or_leaves_less_unused(pool: Pool) -> None:
    held, shares, order = pool.held, pool.shares, [member.study for member in pool.members]
    demand = {member.study: member.demand for member in pool.members}
    taken = {name for names in held.values() for name in names}
    found = match_free(pool.members, held, pool.wants, shares, capacity=pool.capacity, taken=taken)
    room = max(0, pool.capacity - sum(map(len, held.values())))

    def gains(owner: Mapping[str, str]) -> dict[str, int]:
        return {study: list(owner.values()).count(study) for study in order}

    def served(owner: Mapping[str, str]) -> list[int]:
        return [min(gain, max(0, shares[study] - len(held[study]))) for study, gain in gains(owner).items()]

    def is_allowed(owner: Mapping[str, str]) -> bool:
        within = all(not gain or len(held[study]) + gain <= demand[study] for study, gain in gains(owner).items())
        return within and len(owner) <= room

    allowed = [owner for owner in every_assignment(pool, held, pool.wants) if is_allowed(owner)]
    assert found in allowed
    assert served(found) == max(served(owner) for owner in allowed)
    assert len(found) == max(len(owner) for owner in allowed)


def gives_one_by_one(pool: Pool) -> dict[str, set[str]]:
    """Which names each gives up by rules 3 to 5: every step looks at all anew."""
    shares, wants = pool.shares, pool.wants
    ending = {name for one in pool.members for name in one.ending}
    lasting = {study: [name for name in names if name not in ending] for study, names in pool.held.items()}
    taken = {name for names in pool.held.values() for name in names}
    gets = match_free(pool.members, lasting, wants, shares, capacity=pool.capacity, taken=taken)
    then = {study: [*names, *(name for name, to in gets.items() if to == study)] for study, names in lasting.items()}
    soon = {study: [name for name in names if name in ending] for study, names in wants.items()}
    if ending:
        taken = {name for names in then.values() for name in names}
        gets |= match_free(pool.members, then, soon, shares, capacity=pool.capacity, taken=taken)
    held = {study: len(names) + list(gets.values()).count(study) for study, names in lasting.items()}
    had = dict(held)
    spare = {name for names in wants.values() for name in names} - set(gets)
    spare -= {name for names in lasting.values() for name in names}
    given: dict[str, set[str]] = {study: set() for study in held}
    usable = {one.study: one.usable for one in pool.members}
    for due in pool.members:
        wanted = set(wants[due.study])
        is_limited = bool(spare & wanted)
        for _ in range(min(len(wanted), shares[due.study] - had[due.study])):
            others = [one for one in pool.members if one is not due and held[one.study] > 0]
            others = [one for one in others if is_limited or set(lasting[one.study]) & wanted]
            above = [(held[one.study] - shares[one.study], one.study) for one in others]
            above = [each for each in above if each[0] > 0]
            moving = [one for one in others if one.any_will_do and spare & set(wants[one.study])]
            willing = [
                (one.study in gets.values(), held[one.study] / one.weight, one.study)
                for one in others
                if one.study in gets.values() or (one.priority <= due.priority and one.waited < due.waited)
            ]
            if above:
                giver = max(above)[-1]
            elif moving and not is_limited:
                giver = max(one.study for one in moving)
                spare.remove(next(name for name in wants[giver] if name in spare))
            elif willing and due.waited >= pool.patience and not is_limited:
                giver = max(willing)[-1]
            else:
                break
            held[giver] -= 1
            will_do = [name for name in usable[giver] if name in lasting[giver] and name not in given[giver]]
            given[giver].update([name for name in will_do if is_limited or name in wanted][-1:])
    return given


@settings(max_examples=150)
@given(pools())
def test_what_the_arbiter_may_do(pool: Pool) -> None:
    grants = pool.arbitrate()
    gives = gives_one_by_one(pool)
    holders = [name for grant in grants.values() for name in grant.held]
    assert len(holders) == len(set(holders)), "no name is held twice"
    for member in pool.members:
        before, after = set(pool.held[member.study]), grants[member.study]
        assert before <= set(after.held), "what a study holds it gives back itself"
        assert set(after.held) - before <= set(pool.wants[member.study]), "and it gets what it wants"
        lasting = before.difference(member.ending)
        assert len(set(after.held) - set(member.ending)) <= max(len(lasting), member.demand)
        assert set(after.closing) <= set(after.held) and set(after.instead) <= set(after.held) - set(after.closing)
        asked = set(after.closing) & set(member.usable)
        assert asked == gives[member.study], "each gives up what it would give one by one"
        assert set(after.closing) - asked == set(after.held) - set(member.usable), "and what it cannot use"
    if sum(map(len, pool.held.values())) < len(holders):
        assert len(holders) <= pool.capacity
    assert Pool(pool.members, grants, patience=pool.patience).arbitrate() == grants or set(holders) > {
        name for names in pool.held.values() for name in names
    }, "once nothing is free, the same again"


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
    assert late["a"] == Grant(held=("x",), closing=("x",)), "it begins nothing there, and gets y once x is given back"
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
    """`b` could use either, and will have `x` in a moment."""
    hops = device_member("a", "y", demand=1, ending=("x",), seen=2)
    plain = device_member("b", "yx", demand=9, seen=2)
    assert grants_of([hops, plain], {"a": "x", "b": "y"}, patience=60.0)["b"].closing == ("y",)
    kept = msgspec.structs.replace(hops, ending=(), usable=("x", "y"))
    assert grants_of([kept, plain], {"a": "x", "b": "y"}, patience=60.0)["b"].closing == ()


@pytest.mark.parametrize(("moves", "free", "gives"), [(True, "z", True), (True, "", False), (False, "z", False)])
def test_a_study_that_has_enough_moves_at_once_where_another_name_is_free(moves: bool, free: str, gives: bool) -> None:
    due = device_member("a", "x", waited=1.0, seen=2)
    mine = device_member("b", "x" + free, demand=1, any_will_do=moves, seen=2)
    assert (grants_of([due, mine], {"b": "x"}, patience=20.0)["b"].closing == ("x",)) is gives


def test_no_two_move_for_one_spare_name() -> None:
    due = device_member("a", "xy", seen=4)
    both = [device_member(study, name + "z", demand=1, any_will_do=True) for study, name in (("b", "x"), ("c", "y"))]
    grants = grants_of([due, *both], {"b": "x", "c": "y"}, patience=20.0)
    assert sorted(bool(grants[study].closing) for study in "bc") == [False, True]


def test_a_job_begins_on_none_of_those_that_one_waits_for() -> None:
    """Whichever job ends first, its name is the one that is given back."""
    due, mine = device_member("b", "xy", demand=1), device_member("a", "xyz")
    grant = grants_of([mine, due], {"a": "xyz"})["a"]
    assert (grant.closing, grant.instead) == (("y",), ("x",)), "nobody waits for z"


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
            for device in sorted(seat.startable(now + 1.0)):
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
