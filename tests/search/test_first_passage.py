"""The chance of promotion in ASHA: first passage against enumeration, a plain recursion, and played studies."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import MemoryJournal, Study
from hpo_core.model.events import JobGranted
from hpo_core.model.trial import Job
from hpo_core.search.halving import promotion_chance as chance
from hpo_core.search.halving.promotion_chance import first_passage
from tests.conftest import completed, fresh, make_spec
from tests.methods import facts


def promoted(place: int, results: int, positions: tuple[int, ...], eta: float) -> bool:
    """ASHA's rule, result by result: each takes one of the gaps between those before it, counted from the best."""
    if place <= int(results // eta):
        return True
    for gap in positions:
        results += 1
        place += gap < place
        if place <= int(results // eta):
            return True
    return False


def judge(results: int, total: int, eta: float) -> list[float]:
    """The same probability for each place, backwards over every state; slow, and plainly the rule."""
    later = [1.0 * (place <= int(total // eta)) for place in range(1, total + 2)]
    for size in range(total - 1, results - 1, -1):
        here, sure = np.arange(1, size + 1), int(size // eta)
        better = here / (size + 1)
        now = better * np.array(later[1 : size + 1]) + (1 - better) * np.array(later[:size])
        now[:sure] = 1.0
        later = now.tolist()
    return later[:results]


@pytest.mark.parametrize("eta", [2, 3, 4, 2.5, 1.5])
@pytest.mark.parametrize(("results", "total"), [(1, 7), (2, 8), (3, 8), (4, 9), (6, 6)])
def test_every_order_of_arrival_counted(eta: float, results: int, total: int) -> None:
    orders = list(product(*(range(size + 1) for size in range(results, total))))
    for place in range(1, results + 1):
        share = sum(promoted(place, results, order, eta) for order in orders) / len(orders)
        assert first_passage(place, results, total, eta) == pytest.approx(share, abs=1e-12)


def test_place_8_of_30_with_60_expected_is_promoted_in_8_of_10_cases() -> None:
    dice, rounds = random.Random(3), 20_000
    seen = sum(promoted(8, 30, tuple(dice.randrange(size + 1) for size in range(30, 60)), 4) for _ in range(rounds))
    assert seen / rounds == pytest.approx(0.796, abs=0.012)
    study = fresh(make_spec(search={"method": "asha", "configs": 60, "max_resource": 16, "min_resource": 1}))
    (job,) = study.set_capacity(1)
    for number in range(30):
        while job.rung:  # a promotion; the base rung is what counts here
            (job,) = study.tell_report(completed(job, 5.0))
        (job,) = study.tell_report(completed(job, float(number)))
    found = study.method.contest(0, 0)
    assert found is not None and (found.rung.size, found.chance(7)) == (30, 1.0)
    assert found.chance(8) == pytest.approx(0.79634, abs=1e-4), "0.50 is the chance to be among the best in the end"


@pytest.mark.parametrize("eta", [2, 3, 4, 7, 2.5, 1.3])
def test_it_agrees_with_the_recursion_where_it_is_exact(eta: float) -> None:
    for results in (1, 2, 5, 11, 40, 60):
        for total in (results, results + 1, results + 5, results + int(15 * eta)):
            found = [first_passage(place, results, total, eta) for place in range(1, results + 1)]
            assert found == pytest.approx(judge(results, total, eta), abs=1e-10)


@pytest.mark.parametrize(("eta", "error"), [(2, 0.01), (3, 0.01), (4, 0.01), (16, 0.01), (2.5, 0.02), (1.5, 0.05)])
def test_many_results_to_come_are_near_the_recursion(eta: float, error: float) -> None:
    for results, total in ((3, 900), (20, 600), (100, 1400), (400, 1500)):
        low, high = int(results // eta) + 1, min(results, int(results / eta + 4 * results**0.5))
        places = sorted({*range(low, high + 1, max(1, (high - low) // 6)), high})
        near = [first_passage(place, results, total, eta) for place in places]
        every = judge(results, total, eta)
        exact = [every[place - 1] for place in places]
        assert near == pytest.approx(exact, abs=error)
        assert near == sorted(near, reverse=True), "a worse place has no better chance"


def test_the_end_may_be_unknown() -> None:
    for place, results in ((3, 10), (30, 100), (40, 100), (260, 1000)):
        assert first_passage(place, results, None, 4) == pytest.approx(
            first_passage(place, results, 10**9, 4), abs=1e-6
        )
        assert first_passage(place, results, None, 4) >= first_passage(place, results, 2 * results, 4)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**5), st.integers(0, 10**6), st.floats(1.1, 50), st.booleans(), st.data())
def test_never_0_where_promotion_is_possible_and_never_else(
    results: int, coming: int, eta: float, whole: bool, data: st.DataObject
) -> None:
    eta = max(2, round(eta)) if whole else eta
    place, total = data.draw(st.integers(1, results)), results + coming
    found = first_passage(place, results, total, eta)
    assert 0.0 <= found <= 1.0
    assert (found == 0.0) == (place > int(total // eta))
    assert (found == 1.0) or place > int(results // eta)


@pytest.mark.parametrize("eta", [2, 3, 4, 64, 5000, 1.1, 2.5])
def test_the_work_is_bounded(eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    horizons: list[int] = []
    for name in ("_ballot_sum", "_walk"):
        work = getattr(chance, name)

        def counting(place: int, results: int, total: int, eta: float, work: object = work) -> float:
            horizons.append(total - results)
            return float(work(place, results, total, eta))  # type: ignore[operator]

        monkeypatch.setattr(chance, name, counting)
    for results, total in ((10, 10**6), (10**5, 10**7), (10**5, None)):
        first_passage.__wrapped__(int(results // eta) + 1, results, total, eta)
    assert max(horizons) <= chance.EXACT_ARRIVALS


class Looking(Study):
    """Notes the chance of every trial that waits outside the best 1/eta, whenever a result came."""

    def look(self) -> list[tuple[int, int, float]]:
        found = []
        for trial in self.state.trials:
            if trial.running or not trial.results:
                continue
            rung = trial.results[-1].rung
            contest = self.method.contest(trial.bracket, rung)
            if contest is not None and (place := contest.rung.rank(trial.number)) > contest.sure:
                found.append((trial.number, rung, contest.chance(place)))
        return found


@pytest.mark.parametrize(
    "search",
    [
        {"configs": 90, "reduction_factor": 3},
        {"configs": 90, "reduction_factor": 4},
        {"configs": 90, "reduction_factor": 3, "brackets": [0, 1], "rung_system": "shared"},
    ],
    ids=["eta 3", "eta 4", "shared rungs"],
)
def test_predicted_and_observed_agree_in_played_studies(search: dict[str, object]) -> None:
    """Losses in random order, at every rung anew: what the chance assumes. Early looks count most."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    dice = random.Random(5)
    for _ in range(40):
        spec = make_spec(search={"method": "asha", "min_resource": 1, "max_resource": 27} | search)
        study = Looking.create(spec, MemoryJournal(), clock=lambda: 0.0)
        running: list[Job] = list(study.set_capacity(4))
        looks: list[tuple[int, int, float]] = []
        while running:
            job = running.pop(dice.randrange(len(running)))
            running += study.tell_report(completed(job, dice.random()))
            if study.seq % 5 == 0:
                looks += study.look()
        went = {(event.trial, event.rung) for event in facts(study.journal.entries("world"), JobGranted)}
        for trial, rung, said in looks:
            later = (trial, rung + 1) in went
            assert said > 0 or not later, f"trial {trial} was promoted from rung {rung} although its chance was 0"
            bins.setdefault(min(9, int(said * 10)), []).append((said, later))
    assert {0, 1, 2, 3, 4, 5, 6, 7} <= set(bins)
    for rows in bins.values():
        if len(rows) >= 300:
            predicted, observed = (sum(column) / len(rows) for column in zip(*rows, strict=True))
            assert predicted == pytest.approx(observed, abs=0.12)
    everything = [row for rows in bins.values() for row in rows]
    assert sum(p for p, _ in everything) == pytest.approx(sum(o for _, o in everything), rel=0.2)
