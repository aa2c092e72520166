from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.pool.division import Member, numbers_of, shares_of
from hpo_core.pool.seat import LEASE_SECONDS, PoolSeat, Terms
from hpo_core.pool.store import PoolRow
from hpo_core.pool.words import standing_of
from tests.sharing.in_memory import MemoryPools, Wants

NAMES = ["v", "w", "x", "y"]
STUDIES = ["a", "b", "c"]
SLOTS = 8


def seats_of(rows: MemoryPools, names: str, gang: int = 1) -> dict[str, PoolSeat]:
    return {
        name: PoolSeat(rows, Terms(pool="p", study=name, owner=name), Wants(gang if name == "a" else 1))
        for name in names
    }


def all_held(rows: MemoryPools) -> list[str]:
    return [name for row in rows.all() if row.member is not None for name in row.member.held]


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
            held = sorted(seat.held)
            busy = held[: int(len(held) * part)] if other == name else held
            seat._study.wanted = max(len(busy), demand if other == name else 0)  # type: ignore[attr-defined]
            seat.exchange(float(moment), range(SLOTS), busy)
            assert set(busy) <= set(seat.held), "what running jobs use is kept"
            assert seat.closing <= set(busy)
            assert len(all_held(rows)) == len(set(all_held(rows))) <= SLOTS


@settings(max_examples=12)
@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.permutations("abcd"))
def test_once_jobs_have_ended_rounds_of_looks_bring_everybody_to_its_share(
    demands: list[int], order: list[str]
) -> None:
    rows = MemoryPools()
    seats = seats_of(rows, "abcd")
    seats["a"]._study.wanted = SLOTS  # type: ignore[attr-defined]
    seats["a"].exchange(0.0, range(SLOTS))
    assert len(seats["a"].held) == SLOTS, "it was alone"
    for name, demand in zip("abcd", demands, strict=True):
        seats[name]._study.wanted = demand  # type: ignore[attr-defined]
    for moment in (2.0, 3.5, 4.9):
        for name in order:
            seats[name].exchange(moment, range(SLOTS))
    assert len(all_held(rows)) == min(SLOTS, sum(demands))
    shares = shares_of([row.member for row in rows.all() if row.member is not None])
    assert {name: len(seat.held) for name, seat in seats.items()} == shares


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
    shares = shares_of(members)
    lent = {study: number - shares[study] for study, number in numbers_of(members).items()}
    assert sum(lent.values()) == min(SLOTS - sum(shares.values()), sum(member.spare for member in members))
    assert all(0 <= lent[member.study] <= member.spare for member in members)


@pytest.mark.parametrize("seed", range(4))
def test_with_fewer_names_than_studies_nothing_is_held_twice_and_nobody_starves(seed: int) -> None:
    """Each wants a name, and keeps every one on which it may begin busy with one job after the other."""
    draw, rows = random.Random(seed), MemoryPools()
    names = NAMES[: draw.randint(1, 2)]
    seats = {
        name: PoolSeat(rows, Terms(pool="p", study=name, owner=name, unit="worker"), Wants(wanted=1))
        for name in STUDIES
    }
    busy: dict[str, dict[str, int]] = {name: {} for name in STUDIES}
    since = dict.fromkeys(STUDIES, 0)
    order = draw.sample(STUDIES, 3)
    for now in range(400):
        for name in order:
            seat = seats[name]
            seat.look_soon()
            seat.exchange(now + 0.3 * order.index(name), names, list(busy[name]))
            assert len(all_held(rows)) == len(set(all_held(rows)))
            for device in sorted(seat.open(now + 1.0)):
                busy[name].setdefault(device, draw.randint(1, 5))
            assert set(busy[name]) <= set(seat.held)
            since[name] = now if seat.held else since[name]
            busy[name] = {device: time - 1 for device, time in busy[name].items() if time > 1}
        assert max(now - since[name] for name in STUDIES) <= 150, "nobody waits for ever"


def test_studies_of_different_units_in_a_pool_of_one_name_share_nothing() -> None:
    rows = MemoryPools()
    slots, workers = (
        PoolSeat(rows, Terms(pool="p", study=unit, owner=unit, unit=unit), Wants(wanted=4))
        for unit in ("slot", "worker")
    )
    slots.exchange(0.0, range(4))
    workers.exchange(0.0, NAMES)
    slots.exchange(3.0, range(4))
    assert len(slots.held) == len(workers.held) == 4
    assert standing_of(slots.row, [workers.row]).why == ""


def test_jobs_begin_for_as_long_as_others_count_the_last_sign_of_life() -> None:
    """A look that writes no sign prolonged it: a stopped controller that went on began a job on another one's slot."""
    rows = MemoryPools()
    a = PoolSeat(rows, Terms(pool="p", study="a", owner="a"), Wants(wanted=2))
    a.exchange(0.0, range(2))
    signed = a.mine.beat
    a.exchange(4.0, range(2))
    assert a.mine.beat == signed
    assert a.open(LEASE_SECONDS) and not a.open(LEASE_SECONDS + 1.0)


def test_a_gang_that_collects_its_slots_keeps_them_over_its_turn() -> None:
    gang = Member(study="g", seen=4, demand=4, job_slots=4, held=("0",))
    others = [Member(study=name, seen=4, demand=4, beat=beat) for beat, name in enumerate("ab")]
    for beat in range(40):
        members = [msgspec.structs.replace(gang, beat=beat), *others]
        assert numbers_of(members)["g"] == 4
    shares = [numbers_of([msgspec.structs.replace(gang, beat=beat, held=()), *others])["g"] for beat in range(40)]
    assert min(shares) == 0, "one that has begun none waits for its turn"


def test_a_look_at_planted_rows_without_measure_takes_seconds_at_most() -> None:
    """Whoever may write to the database can plant rows; a look must not take minutes for that."""
    rows = MemoryPools()
    for place in range(20):
        held = tuple(f"{place}-{name}" for name in range(4_000))
        member = Member(study=f"p{place:02}", owner="x", unit="worker", usable=held, held=held, demand=1_000_000,
                        seen=1_000_000, job_slots=place + 1)  # fmt: skip
        rows.change("p", member.study, lambda found, member=member: [PoolRow("p", member.study, member)])  # type: ignore[misc]
    seat = PoolSeat(rows, Terms(pool="p", study="mine", owner="me", unit="worker"), Wants(wanted=2))
    seat.exchange(0.0, "xy")
    assert seat.held == ("x", "y")
