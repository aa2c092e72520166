"""Laws of the division of slots between studies, and a judge written from the text of section 5.3."""

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.pool.division import Claim, divide, ideal_shares

WEIGHTS = st.sampled_from([0.001, 0.3, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0, 1000.0])


@st.composite
def claims(draw: st.DrawFn, *, gangs: bool = False, priorities: bool = True) -> list[Claim]:
    return [
        Claim(
            study=f"study-{number}",
            demand=draw(st.integers(0, 40)),
            weight=draw(WEIGHTS),
            priority=draw(st.integers(-1, 1)) if priorities else 0,
            job_slots=draw(st.sampled_from([1, 1, 2, 4])) if gangs else 1,
            precedence=draw(st.integers(-2, 3)),
        )
        for number in range(draw(st.integers(0, 7)))
    ]


def uniform_and_repeated(capacity: int, claims: list[Claim]) -> dict[str, Fraction]:
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
def test_ideal_shares_are_those_of_the_sources_text(capacity: int, claims: list[Claim]) -> None:
    assert ideal_shares(capacity, claims) == uniform_and_repeated(capacity, claims)


@settings(max_examples=40)
@given(st.integers(0, 100), claims())
def test_each_gets_its_ideal_share_rounded_down_or_up(capacity: int, claims: list[Claim]) -> None:
    ideal, shares = ideal_shares(capacity, claims), divide(capacity, claims)
    for study, share in shares.items():
        assert math.floor(ideal[study]) <= share <= math.ceil(ideal[study])


@settings(max_examples=40)
@given(st.integers(-3, 100), claims(gangs=True))
def test_nothing_is_given_twice_and_nobody_gets_more_than_it_can_use(capacity: int, claims: list[Claim]) -> None:
    shares = divide(capacity, claims)
    assert sum(shares.values()) <= max(0, capacity)
    for claim in claims:
        assert 0 <= shares[claim.study] <= claim.demand
        assert shares[claim.study] % claim.job_slots == 0


@settings(max_examples=40)
@given(st.integers(0, 100), claims(gangs=True))
def test_no_slot_stays_unused_that_a_whole_job_could_use(capacity: int, claims: list[Claim]) -> None:
    shares = divide(capacity, claims)
    left = capacity - sum(shares.values())
    for claim in claims:
        assert claim.job_slots > min(left, claim.demand - shares[claim.study])


@settings(max_examples=40)
@given(st.integers(0, 100), claims(gangs=True), st.randoms(use_true_random=False))
def test_the_order_of_claims_does_not_matter(capacity: int, claims: list[Claim], random: object) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert divide(capacity, shuffled) == divide(capacity, claims)


@settings(max_examples=40)
@given(
    st.integers(0, 100), claims(), st.integers(0, 6), st.sampled_from(["demand", "weight", "priority", "precedence"])
)
def test_who_asks_for_more_never_gets_less(capacity: int, claims: list[Claim], place: int, what: str) -> None:
    if place >= len(claims):
        return
    claim = claims[place]
    more = {
        "demand": {"demand": claim.demand + 3},
        "weight": {"weight": min(1000.0, 2 * claim.weight)},
        "priority": {"priority": claim.priority + 1},
        "precedence": {"precedence": claim.precedence + 1},
    }[what]
    changed = [*claims[:place], msgspec.structs.replace(claim, **more), *claims[place + 1 :]]
    assert divide(capacity, changed)[claim.study] >= divide(capacity, claims)[claim.study]


@settings(max_examples=40)
@given(st.integers(0, 100), claims())
def test_a_larger_pool_gives_nobody_a_smaller_ideal_share(capacity: int, claims: list[Claim]) -> None:
    before, after = ideal_shares(capacity, claims), ideal_shares(capacity + 1, claims)
    assert all(before[study] <= after[study] for study in before)


@settings(max_examples=40)
@given(st.integers(0, 30), claims(gangs=True), st.integers(0, 40))
def test_a_lower_priority_takes_nothing_from_a_higher_one(capacity: int, claims: list[Claim], demand: int) -> None:
    low = Claim(study="low", demand=demand, weight=1000.0, priority=-100, precedence=9)
    assert {study: share for study, share in divide(capacity, [*claims, low]).items() if study != "low"} == divide(
        capacity, claims
    )


@settings(max_examples=40)
@given(st.integers(1, 12), claims(gangs=True, priorities=False))
def test_nobody_starves_where_who_waits_takes_turns(capacity: int, claims: list[Claim]) -> None:
    """Every study that fits into the pool gets a job within as many precedence as there are studies, and once more."""
    fitting = [claim for claim in claims if 0 < claim.job_slots <= min(capacity, claim.usable)]
    precedence = {claim.study: 0 for claim in fitting}
    served: set[str] = set()
    for _ in range(2 * len(fitting) + 2):
        now = [msgspec.structs.replace(claim, precedence=precedence[claim.study]) for claim in fitting]
        shares, ideal = divide(capacity, now), ideal_shares(capacity, now)
        served |= {study for study, share in shares.items() if share}
        precedence = {study: 0 if shares[study] >= ideal[study] else turn + 1 for study, turn in precedence.items()}
    assert served == {claim.study for claim in fitting}


def test_example_of_the_source() -> None:
    alone = Claim(study="first", demand=8 * 4, job_slots=4)
    assert divide(32, [alone]) == {"first": 32}
    assert divide(32, [alone, Claim(study="second", demand=64)]) == {"first": 16, "second": 16}


def test_weights_1_1_2_on_8_slots() -> None:
    three = [Claim(study=name, demand=99, weight=weight) for name, weight in (("a", 1), ("b", 1), ("c", 2))]
    assert divide(8, three) == {"a": 2, "b": 2, "c": 4}
    assert divide(8, [three[0], three[2]]) == {"a": 3, "c": 5}


def test_a_gang_that_rounding_left_out_gets_its_slots_once_it_waited() -> None:
    singles = [Claim(study=name, demand=9) for name in "ab"]
    gang = Claim(study="gang", demand=8, job_slots=4)
    waited = msgspec.structs.replace(gang, precedence=1)
    assert divide(8, [*singles, waited]) == {"a": 2, "b": 2, "gang": 4}
    assert sum(divide(8, [*singles, gang]).values()) == 8


def test_a_gang_that_waited_gets_more_jobs_where_nobody_else_can_use_the_slots() -> None:
    gang = Claim(study="gang", demand=8, job_slots=2, precedence=30)
    large = Claim(study="large", demand=9, job_slots=3, weight=1000)
    assert divide(7, [gang, large]) == {"gang": 4, "large": 3}
    below = Claim(study="below", demand=9, priority=-1)
    assert divide(7, [gang, large, below]) == {"gang": 4, "large": 3, "below": 0}, "a lower class comes last"


@pytest.mark.parametrize(
    "wrong",
    [
        {"demand": -1},
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": math.nan},
        {"weight": math.inf},
        {"priority": 101},
        {"job_slots": 0},
    ],
)
def test_a_claim_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Claim of study 'a'"):
        Claim(**({"study": "a", "demand": 1} | wrong))


def test_two_claims_of_one_study_are_refused() -> None:
    with pytest.raises(ValueError, match="two claims"):
        divide(3, [Claim(study="a", demand=1), Claim(study="a", demand=2)])
