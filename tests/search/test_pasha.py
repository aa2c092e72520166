from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_core import Job, Outcome, Study
from hpo_core.model.events import CeilingRaised, JobCompleted, JobGranted
from hpo_core.model.trial import Point, Report
from hpo_core.replay.audit import audit
from hpo_core.search.method import DONE
from hpo_core.search.pasha import Pasha, SoftRanking, Tolerance
from tests.conftest import World, completed, failed, fresh, make_spec, played

Curve = Callable[[int, int], float]
"""(trial, resource) to loss."""


def new(configs: int, max_resource: int = 8, **more: Any) -> Study:
    search = {"method": "pasha", "configs": configs, "max_resource": max_resource, "reduction_factor": 2}
    return fresh(make_spec(search=search | more))


def report(job: Job, curve: Curve, *, points: bool = True) -> Report:
    start = job.checkpoint.resource if job.checkpoint else 0
    loss = curve(job.trial, job.target)
    told = tuple(Point(at, {"loss": curve(job.trial, at)}) for at in range(start + 1, job.target + 1))
    return completed(job, loss, curve=told if points else ())


def play(study: Study, curve: Curve, workers: int = 1, **how: Any) -> Study:
    running = study.set_capacity(workers)
    while running:
        running = running[1:] + study.tell_report(report(running[0], curve, **how))
        study.check()
    assert study.status == "finished" and study.method.next_action() == DONE
    return study


def rungs_of(study: Study) -> dict[int, int]:
    return {status.level: status.results for status in study.method.rungs()}


def rising(table: Mapping[int, float]) -> Curve:
    """The same order at all resources."""
    return lambda trial, at: table[trial] + 1 / at


def test_a_stable_ranking_leaves_the_ceiling_and_the_study_drains() -> None:
    study = play(new(16), rising({trial: trial * 7 % 16 for trial in range(16)}))
    assert rungs_of(study) == {1: 16, 2: 8, 4: 0, 8: 0}
    assert [status.is_open for status in study.method.rungs()] == [True, True, False, False]
    assert study.state.ceilings == []


def test_a_swap_raises_the_ceiling_once_and_says_why() -> None:
    losses = {1: [0.1, 0.2, 0.3, 0.4], 2: [0.6, 0.5], 3: [0.6, 0.5], 4: [0.6, 0.5]}
    study = play(new(4), lambda trial, at: losses[at][trial])
    (raised,) = study.state.ceilings
    assert raised == CeilingRaised(0, 2, 4, tolerance=0.0, place=1, trial=1, expected=(0,))
    assert rungs_of(study) == {1: 4, 2: 2, 4: 1, 8: 0}, "the best of the second rung went on to the one that opened"
    kinds = [[type(event) for event in entry.events] for entry in study.journal.entries("world")]
    assert [JobCompleted, CeilingRaised, JobGranted] in kinds, "the raise stands in its result's entry, before grants"


def test_rankings_that_always_turn_open_every_rung_and_no_more() -> None:
    study = play(new(64), lambda trial, at: trial * 37 % 64 * (-1.0 if at in (2, 8) else 1.0), workers=4)
    assert [(raised.rung, raised.level) for raised in study.state.ceilings] == [(2, 4), (3, 8)]
    assert rungs_of(study)[8] > 0


def test_a_ladder_of_one_or_two_rungs_has_no_ceiling_to_raise() -> None:
    for top in (1, 2):
        study = play(new(8, top), lambda trial, at: trial * (-1.0) ** at)
        assert study.state.ceilings == [] and all(status.is_open for status in study.method.rungs())


CRISS_CROSS = {0: {1: 0.5, 2: 0.7, 3: 0.4}, 1: {1: 0.6, 2: 0.6, 3: 0.45}}
"""Trial 0 is better, worse, better: the curves cross twice, and end 0.05 apart."""


@pytest.mark.parametrize(("swap", "raises"), [(0.04, 0), (0.06, 1)])
def test_a_swap_within_the_tolerance_of_crossing_curves_raises_nothing(swap: float, raises: int) -> None:
    """Levels 1, 3, 9; trials 0 and 1 set the tolerance, trials 2 and 3 change places by ``swap`` of rung 0."""
    low = 0.1
    curves = CRISS_CROSS | {2: {1: low, 2: low, 3: 0.02}, 3: {1: low - swap, 2: low, 3: 0.03}}
    study = new(12, 9, reduction_factor=3)
    method = study.method
    assert isinstance(method, Pasha)
    running = study.set_capacity(12)
    while running:
        running.sort(key=lambda job: (job.rung, job.trial))  # so trials 0 and 1 reach the second rung first
        job = running.pop(0)
        running += study.tell_report(report(job, lambda trial, at: curves[trial][at] if trial in curves else 5.0))
        if study.state.ceilings:
            break
    assert method.tolerance == pytest.approx(0.05)
    assert len(study.state.ceilings) == raises
    if raises:
        (raised,) = study.state.ceilings
        assert (raised.place, raised.trial, raised.expected) == (1, 2, (3,))


def test_a_tolerance_holds_until_the_next_rung_has_crossing_curves() -> None:
    tolerance = Tolerance(100)
    tolerance.add([(1, 1.0), (2, 3.0)], 3, 1.0)
    tolerance.add([(1, 2.0), (2, 2.0)], 3, 1.5)
    tolerance.begin()
    tolerance.add([(1, 0.0)], 9, 7.0)
    assert tolerance.value == 0.5
    tolerance.add([(1, 1.0), (4, -3.0)], 9, 7.125)
    tolerance.add([(1, 0.5), (4, 9.0)], 9, 7.0)
    assert tolerance.value == 0.125


losses = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 5.0]) | st.floats(-10, 10) | st.just(math.nan)


@given(st.lists(st.lists(losses, min_size=4, max_size=4), max_size=12), st.floats(0, 100))
def test_tolerance_is_the_percentile_over_all_pairs(curves: list[list[float]], percent: float) -> None:
    """Against the definition of section 4.2, pair by pair; unequal resources, NaN and ties among them."""
    tolerance = Tolerance(percent)
    for curve in curves:
        tolerance.add([(at, loss) for at, loss in enumerate(curve[:-1], 1) if loss != 0.25], 4, curve[-1])
    told = [{at: c for at, c in enumerate(curve, 1) if at == 4 or (c == c and c != 0.25)} for curve in curves]
    distances = []
    for a, b in combinations([curve for curve in told if curve[4] == curve[4]], 2):
        order = [np.sign(a[at] - b[at]) for at in sorted(a.keys() & b.keys())]
        signs = [sign for sign in order if sign]
        turns = sum(x != y for x, y in pairwise(signs))
        if order[-1] and turns >= 2:
            distances.append(abs(a[4] - b[4]))
    expected = float(np.percentile(distances, percent)) if distances else 0.0
    assert tolerance.value == pytest.approx(expected, rel=1e-12, abs=1e-300)


def groups_by_definition(below: list[tuple[float, int]], tolerance: float) -> list[set[int]]:
    return [{trial for other, trial in below if abs(loss - other) <= tolerance} for loss, _ in sorted(below)]


pairs = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, 2.0, 4.0]), losses), min_size=1, max_size=9)


@given(pairs, st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=9, max_size=9))
def test_soft_ranking_is_the_paper_s(results: list[tuple[float, float]], tolerances: list[float]) -> None:
    """Against the definition, place by place; the tolerance grows and shrinks."""
    ranking = SoftRanking()
    for n, (below, above) in enumerate(results):
        above = math.inf if math.isnan(above) else above
        found = ranking.add(n, below=below, above=above, tolerance=tolerances[n])
        seen = [(b, math.inf if math.isnan(a) else a) for b, a in results[: n + 1]]
        groups = groups_by_definition([(b, t) for t, (b, _) in enumerate(seen)], tolerances[n])
        order = sorted(range(n + 1), key=lambda t: (seen[t][1], seen[t][0], t))
        wrong = [place for place, trial in enumerate(order) if trial not in groups[place]]
        assert found == (wrong[0] if wrong else None)
        if found is not None:
            assert ranking.trial_at(found) == order[found]
            assert set(ranking.exchangeable(found, tolerances[n])) == groups[found]


def test_a_diverged_trial_ranks_last_and_an_abandoned_one_is_not_compared() -> None:
    for outcome, raises in ((Outcome.DIVERGED, 1), (Outcome.ERROR, 0)):
        study = new(4)
        running = study.set_capacity(4)
        while running:
            job = running.pop(0)
            if (job.trial, job.target) == (0, 2):  # the best of the base rung
                bad = failed(job, Outcome.ERROR) if outcome is Outcome.ERROR else completed(job, math.nan)
                running += study.tell_report(bad)
            else:
                running += study.tell_report(completed(job, float(job.trial)))
            study.check()
        assert study.status == "finished" and len(study.state.ceilings) == raises
        assert study.best is not None and study.best.trial == 0, "its result at rung 0 still counts"


def test_audit_explains_every_raise() -> None:
    search = {"method": "pasha", "configs": 60, "max_resource": 27, "reduction_factor": 3}
    study = played(make_spec(search=search), World(5, failures=0.05, nans=0.05))
    entries = list(study.journal.entries("world"))
    (at,) = [k for k, e in enumerate(entries) if any(isinstance(event, CeilingRaised) for event in e.events)][:1]
    assert study.state.ceilings and audit(entries).clean

    def told(change: Callable[[CeilingRaised], list[Any]]) -> list[Any]:
        events = [f for e in entries[at].events for f in (change(e) if isinstance(e, CeilingRaised) else [e])]
        return [*entries[:at], msgspec.structs.replace(entries[at], events=tuple(events)), *entries[at + 1 :]]

    assert audit(told(lambda e: [])).findings[0].seq == at
    assert audit(told(lambda e: [msgspec.structs.replace(e, tolerance=e.tolerance + 1)])).findings[0].seq == at
    assert audit(told(lambda e: [e, e])).findings[0].seq == at
