"""Rows full of names hold up nobody: the work grows with the names, and names that nobody has are left out."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.devices.pool_member import MOST_DEVICES, Grant, Member
from hpo_core.pool.arbiter import Pool
from hpo_core.pool.division import Claim, divide, ideal_shares

STUDIES = 20


class Counted(str):
    """A name that counts how often it is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return str.__hash__(self)


def operations(call: Callable[[], Any]) -> int:
    """Lines that run, and names that are looked up."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    Counted.looked_up, before = 0, sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines + Counted.looked_up


def planted(shape: str, number: int) -> list[tuple[Member, Grant]]:
    """Twenty rows of so many names each."""
    draw, members = random.Random(0), []
    for place in range(STUDIES):
        some = [Counted(f"x{name}") for name in range(number)]
        draw.shuffle(some)
        devices: list[Counted] = []
        wants: list[Counted] = []
        demand = 2 * number
        if shape in ("held", "both"):
            devices = [Counted(f"{place}-{name}") for name in some]
        if shape in ("wanted", "both"):
            wants = [Counted(f"{place}+{name}") for name in some]
        if shape == "the same":
            wants = some
        if shape == "taken from earlier ones":  # who comes first takes what later ones need
            wants, demand = sorted(some)[: number * (STUDIES - place) // STUDIES], number // STUDIES
        if shape == "held beyond the share" and place < STUDIES // 2:
            devices, demand = [Counted(f"{place}-{name}") for name in range(number)], 0
        elif shape == "held beyond the share":
            wants = [Counted(f"{name % (STUDIES // 2)}-{name}") for name in range(number)]
        members.append(
            (
                Member(study=f"p{place:02}", kind="device", demand=demand, usable=(*devices, *wants), waited=place),
                Grant(held=tuple(devices)),
            )
        )
    return members


SHAPES = ["held", "wanted", "both", "the same", "taken from earlier ones", "held beyond the share"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_of_a_choice_grows_with_the_number_of_names(shape: str) -> None:
    def work(number: int) -> int:
        rows = planted(shape, number)
        names = list(dict.fromkeys(name for one, _ in rows for name in one.usable))[:number]
        mine = Member(study="a", kind="device", demand=number, usable=tuple(names))
        members = [mine, *(member for member, _ in rows)]
        grants = {"a": Grant(held=tuple(names[: number // 2])), **{member.study: grant for member, grant in rows}}
        return operations(lambda: Pool(members, grants).arbitrate())

    few, many = work(100), work(200)
    assert many <= 2.5 * few, "no square of it"
    assert few <= 100 * 100 * (STUDIES + 1), "so many for each name"


def test_between_equals_the_last_by_name_gives() -> None:
    due = Member(study="a", kind="device", demand=1, usable=("v", "w", "x", "y"))
    givers = [
        Member(study=study, kind="device", demand=2, usable=tuple(names)) for study, names in (("b", "vw"), ("c", "xy"))
    ]
    grants = Pool([due, *givers], {"b": Grant(held=("v", "w")), "c": Grant(held=("x", "y"))}).arbitrate()
    assert (grants["b"].closing, grants["c"].closing) == ((), ("y",))


def job_by_job(capacity: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Rounded down; then a job to each that lacks some; then one job after the other to who has least."""
    ideal = ideal_shares(capacity, claims)
    shares = {one.study: math.floor(ideal[one.study]) // one.job_slots * one.job_slots for one in claims}
    left = capacity - sum(shares.values())
    for one in sorted(claims, key=lambda one: (shares[one.study] - ideal[one.study], one.study)):
        if shares[one.study] < ideal[one.study] and one.job_slots <= left:
            shares[one.study] += one.job_slots
            left -= one.job_slots
    while fitting := [one for one in claims if one.job_slots <= min(left, one.demand - shares[one.study])]:
        least = min(
            fitting, key=lambda one: ((shares[one.study] - ideal[one.study]) / Fraction(str(one.weight)), one.study)
        )
        shares[least.study] += least.job_slots
        left -= least.job_slots
    return shares


@settings(max_examples=60)
@given(
    st.sampled_from([7, 300, 1500]),
    st.lists(
        st.tuples(st.integers(0, 2000), st.sampled_from([1, 1, 2, 7, 400]), st.sampled_from([0.001, 0.3, 1.0, 1000.0])),
        min_size=1, max_size=5,
    ),
)  # fmt: skip
def test_large_steps_give_what_one_job_after_the_other_gives(
    capacity: int, wishes: list[tuple[int, int, float]]
) -> None:
    claims = [
        Claim(study=f"s{place}", demand=demand, job_slots=job, weight=weight)
        for place, (demand, job, weight) in enumerate(wishes)
    ]
    assert divide(capacity, claims) == job_by_job(capacity, claims)


def test_a_division_of_a_million_slots_takes_few_steps() -> None:
    """Jobs of many slots do not fit, and one study takes a million one by one."""
    claims = [Claim(study="a", demand=1_000_000), Claim(study="b", demand=1_000_000, job_slots=7)]
    claims += [Claim(study=f"p{place:02}", demand=900_000, job_slots=300_000 + place) for place in range(STUDIES)]
    found: dict[str, int] = {}
    assert operations(lambda: found.update(divide(1_000_000, claims))) < 200_000
    assert sum(found.values()) == 1_000_000


def test_names_of_devices_that_a_study_does_not_see_count_up_to_a_limit() -> None:
    """Another study may see more devices, and what it holds there counts; thousands of them are no devices."""
    there = ["d0", "d1", "d2", "d3"]
    mine = Member(study="a", kind="device", demand=2, usable=tuple(there))
    real = Member(study="b", kind="device", demand=2, usable=("d0", "elsewhere", "d1"))
    held = {"b": Grant(held=("d0", "elsewhere"))}
    assert Pool([mine, real], held, there=there).held["b"] == 2
    many = tuple(f"x{number}" for number in range(MOST_DEVICES - 1))
    full = Member(study="c", kind="device", demand=9, usable=(*many, "d0"))
    pool = Pool([mine, real, full], held | {"c": Grant(held=many)}, there=there)
    assert (pool.held["b"], pool.held["c"]) == (1, 0)
    grants = pool.arbitrate()
    assert grants["b"].held[-1] == "elsewhere" and grants["c"].held[-len(many) :] == many, "nothing is taken from them"
    assert len(grants["a"].held) == 2 and "d0" not in grants["a"].held
