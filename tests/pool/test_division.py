import math
from fractions import Fraction

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.pool.division import Member, divide, ideal_shares

WEIGHTS = st.sampled_from([0.001, 0.3, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0, 1000.0])


@st.composite
def claims(draw: st.DrawFn, *, gangs: bool = False, priorities: bool = True) -> list[Member]:
    return [
        Member(
            study=f"study-{number}",
            demand=draw(st.integers(0, 40)),
            weight=draw(WEIGHTS),
            priority=draw(st.integers(-1, 1)) if priorities else 0,
            job_slots=draw(st.sampled_from([1, 1, 2, 4])) if gangs else 1,
        )
        for number in range(draw(st.integers(0, 7)))
    ]


def uniform_and_repeated(capacity: int, claims: list[Member]) -> dict[str, Fraction]:
    """The source's text: allocate by weight to all; what is above a job's maximum goes to the remaining jobs."""
    shares = {claim.study: Fraction(0) for claim in claims}
    left = Fraction(capacity)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        remaining = [claim for claim in claims if claim.priority == priority]
        while remaining and left > 0:
            weights = sum(Fraction(str(claim.weight)) for claim in remaining)
            spread, left = left, Fraction(0)
            for claim in remaining:
                shares[claim.study] += spread * Fraction(str(claim.weight)) / weights
            for claim in remaining:
                if shares[claim.study] >= claim.demand:
                    left += shares[claim.study] - claim.demand
                    shares[claim.study] = Fraction(claim.demand)
            remaining = [claim for claim in remaining if shares[claim.study] < claim.demand]
    return shares


@settings(max_examples=40)
@given(st.integers(0, 100), claims())
def test_ideal_shares_are_those_of_the_sources_text(capacity: int, claims: list[Member]) -> None:
    assert ideal_shares(capacity, claims) == uniform_and_repeated(capacity, claims)


@settings(max_examples=40)
@given(st.integers(0, 100), claims())
def test_each_gets_its_ideal_share_rounded_down_or_up(capacity: int, claims: list[Member]) -> None:
    ideal, shares = ideal_shares(capacity, claims), divide(capacity, claims)
    for study, share in shares.items():
        assert math.floor(ideal[study]) <= share <= math.ceil(ideal[study])


@settings(max_examples=40)
@given(st.integers(-3, 100), claims(gangs=True))
def test_nothing_is_given_twice_and_nobody_gets_more_than_it_can_use(capacity: int, claims: list[Member]) -> None:
    shares = divide(capacity, claims)
    assert sum(shares.values()) <= max(0, capacity)
    for claim in claims:
        assert 0 <= shares[claim.study] <= claim.demand
        assert shares[claim.study] % claim.job_slots == 0


@settings(max_examples=40)
@given(st.integers(0, 100), claims(gangs=True))
def test_no_slot_stays_unused_that_a_whole_job_could_use(capacity: int, claims: list[Member]) -> None:
    shares = divide(capacity, claims)
    left = capacity - sum(shares.values())
    for claim in claims:
        assert claim.job_slots > min(left, claim.demand - shares[claim.study])


@settings(max_examples=40)
@given(st.integers(0, 100), claims(gangs=True), st.randoms(use_true_random=False))
def test_the_order_of_claims_does_not_matter(capacity: int, claims: list[Member], random: object) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert divide(capacity, shuffled) == divide(capacity, claims)


@settings(max_examples=40)
@given(st.integers(0, 30), claims(gangs=True), st.integers(0, 40))
def test_a_lower_priority_takes_nothing_from_a_higher_one(capacity: int, claims: list[Member], demand: int) -> None:
    low = Member(study="low", demand=demand, weight=1000.0, priority=-100)
    assert {study: share for study, share in divide(capacity, [*claims, low]).items() if study != "low"} == divide(
        capacity, claims
    )


@settings(max_examples=40)
@given(st.integers(1, 12), claims(gangs=True, priorities=False))
def test_nobody_starves_where_studies_take_turns(capacity: int, claims: list[Member]) -> None:
    """Every study whose job fits into the pool gets one sooner or later, however small its weight."""
    fitting = [
        msgspec.structs.replace(claim, weight=min(3.0, max(0.3, claim.weight)))
        for claim in claims
        if 0 < claim.job_slots <= min(capacity, claim.whole_jobs)
    ]
    served = {study for turn in range(400) for study, share in divide(capacity, fitting, turn).items() if share}
    assert served == {claim.study for claim in fitting}


@settings(max_examples=20)
@given(st.integers(1, 30), claims(priorities=False))
def test_over_many_turns_each_has_its_ideal_share(capacity: int, claims: list[Member]) -> None:
    turns, ideal = 200, ideal_shares(capacity, claims)
    found = [divide(capacity, claims, turn) for turn in range(turns)]
    for study, share in ideal.items():
        assert abs(sum(one[study] for one in found) / turns - share) < 0.05


def test_example_of_the_source() -> None:
    alone = Member(study="first", demand=8 * 4, job_slots=4)
    assert divide(32, [alone]) == {"first": 32}
    assert divide(32, [alone, Member(study="second", demand=64)]) == {"first": 16, "second": 16}


def test_weights_1_1_2_on_8_slots() -> None:
    three = [Member(study=name, demand=99, weight=weight) for name, weight in (("a", 1), ("b", 1), ("c", 2))]
    assert divide(8, three) == {"a": 2, "b": 2, "c": 4}
    assert [divide(8, [three[0], three[2]], turn)["a"] for turn in range(4)] == [2, 3, 2, 3]


def test_a_gang_that_is_larger_than_its_ideal_share_gets_its_slots_in_its_turn() -> None:
    """Its ideal share is 8/3 of 8 slots: it has four of them in two turns of three."""
    members = [*(Member(study=name, demand=9) for name in "ab"), Member(study="gang", demand=8, job_slots=4)]
    found = [divide(8, members, turn) for turn in range(300)]
    assert {sum(shares.values()) for shares in found} == {8}
    assert abs(sum(shares["gang"] == 4 for shares in found) - 200) <= 3


def test_a_gang_gets_more_jobs_where_nobody_else_can_use_the_slots() -> None:
    gang = Member(study="gang", demand=8, job_slots=2)
    large = Member(study="large", demand=9, job_slots=3, weight=1000)
    found = [divide(7, [gang, large], turn) for turn in range(50)]
    assert [shares for shares in found if shares not in ({"gang": 4, "large": 3}, {"gang": 0, "large": 6})] == []
