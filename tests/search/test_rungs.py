"""Rules of successive halving against the tables of ASHA (Figure 1, Algorithm 2) and the drafts' figures."""

from __future__ import annotations

import pytest

from hpo_core.model.events import TrialCreated
from hpo_core.search.asha import Asha, AshaSearch
from hpo_core.search.method import Promote
from hpo_core.search.rungs import LossRung, default_min_resource, rung_levels
from tests.conftest import fresh, make_spec


def test_production_default_is_at_most_five_rungs() -> None:
    assert default_min_resource(256, 4) == 1
    assert rung_levels(default_min_resource(1024, 4), 1024, 4) == [4, 16, 64, 256, 1024]
    assert rung_levels(default_min_resource(9, 3), 9, 3) == [1, 3, 9]
    for top in range(1, 300):
        for eta in (2, 3, 4, 2.5):
            assert len(rung_levels(default_min_resource(top, eta), top, eta)) <= 5


def figure_1(bracket: int) -> list[tuple[int, int]]:
    """Promotions of synchronous order: fill the base rung, then promote until nothing is left."""
    n, top, eta = 9, 9, 3
    search = {"method": "asha", "configs": n, "max_resource": top, "min_resource": 1, "reduction_factor": eta}
    study = fresh(make_spec(search=search | {"brackets": [bracket]}))
    jobs = [study.ask() for _ in range(n)]
    while any(jobs):
        for job in filter(None, jobs):
            study.tell(job, {"loss": float(job.trial)})
        jobs = [study.ask()]
    study.method.check()
    return [(rung.results, rung.level) for rung in study.method.rungs()]


@pytest.mark.parametrize(
    ("bracket", "table", "budgets"),
    [(0, [(9, 1), (3, 3), (1, 9)], [9, 9, 9]), (1, [(9, 3), (3, 9)], [27, 27]), (2, [(9, 9)], [81])],
)
def test_figure_1(bracket: int, table: list[tuple[int, int]], budgets: list[int]) -> None:
    rows = figure_1(bracket)
    assert rows == table
    assert [count * level for count, level in rows] == budgets


@pytest.mark.parametrize(
    ("losses", "promoted", "candidate"),
    [
        ([0.5, 0.4], [], None),  # fewer than eta results: nobody
        ([0.5, 0.4, 0.3], [], 2),  # the best of three
        ([0.3, 0.3, 0.3], [], 0),  # a tie goes to the lower number
        ([0.5, 0.4, 0.3], [2], None),  # the only candidate left already
        ([0.5, 0.4, 0.3, 0.2], [2], 3),  # a better one arrived: it is the top 1 of 4 now
        ([0.5, 0.4, 0.3, 0.9, 0.9], [2], None),  # floor(5/3) = 1, still trial 2
        ([0.5, 0.4, 0.3, 0.9, 0.9, 0.9], [2], 1),  # floor(6/3) = 2: the second best
        ([None, None, None], [], None),  # diverged ones are never promoted
        ([None, None, 0.7], [], 2),
        ([1e300, -1e300, 5.0], [], 1),  # outliers disturb nothing
    ],
)
def test_promotion_rule(losses: list[float | None], promoted: list[int], candidate: int | None) -> None:
    rung = LossRung(1, 3)
    for trial, loss in enumerate(losses):
        rung.add(trial, loss)
        if trial in promoted and rung.size >= 3:
            rung.promote(trial)
    for trial in promoted:
        rung.promote(trial)
    rung.check()
    assert rung.candidate() == candidate


def test_scan_is_top_down() -> None:
    asha = Asha(AshaSearch(max_resource=9, min_resource=1, reduction_factor=3).plan(), None)
    ladder = asha.ladders[0]
    for trial in range(10):
        asha.apply(TrialCreated(trial, 0, {}))
    for trial in range(9):
        ladder.rungs[0].add(trial, float(trial))
    for trial in range(3):
        ladder.rungs[0].promote(trial)
        ladder.rungs[1].add(trial, float(trial))
    ladder.rungs[0].add(9, -1.0)  # a candidate in the base rung, too
    assert asha.next_action() == Promote(0, 0, 2, 9)
    ladder.rungs[1].promote(0)
    assert asha.next_action() == Promote(9, 0, 1, 3)
