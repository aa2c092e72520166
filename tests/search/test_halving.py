"""Successive halving, Hyperband and ASHA against the tables; promotion and stopping case by case."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Study
from hpo_core.model.events import TrialCreated, TrialStopped
from hpo_core.search.asha import Asha, AshaSearch
from hpo_core.search.method import Promote
from hpo_core.search.rungs import default_min_resource, rung_levels
from hpo_core.search.sha import Tournament
from hpo_core.views.states import trial_story
from tests.conftest import completed, failed, fresh, make_spec
from tests.methods import facts

FIGURE_1 = {"method": "sha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


def run(search: dict[str, Any], workers: int, losses: dict[int, float] | None = None) -> Study:
    """Jobs report in the order of their grants; the loss is the trial's number unless told."""
    study = fresh(make_spec(search=search))
    running = list(study.set_capacity(workers))
    while running:
        job = running.pop(0)
        running += study.tell_report(completed(job, (losses or {}).get(job.trial, float(job.trial))))
        study.check()
    return study


@pytest.mark.parametrize(("s", "table"), [(0, [(9, 1), (3, 3), (1, 9)]), (1, [(9, 3), (3, 9)]), (2, [(9, 9)])])
@pytest.mark.parametrize("workers", [1, 4, 9])
def test_figure_1(s: int, table: list[tuple[int, int]], workers: int) -> None:
    study = run(FIGURE_1 | {"min_resource": 3**s}, workers)
    assert [(rung.results, rung.level) for rung in study.method.rungs()] == table


def test_while_a_bracket_waits_the_next_one_begins() -> None:
    study = fresh(make_spec(search=FIGURE_1 | {"rounds": 2}))
    running = list(study.set_capacity(9))
    (fresh_job,) = study.tell_report(completed(running[0], 0.0))
    assert (fresh_job.bracket, fresh_job.rung) == (1, 0)


def test_abandoned_and_diverged_trials_count_at_the_barrier_and_rank_last() -> None:
    from hpo_core import Outcome

    study = fresh(make_spec(search=FIGURE_1 | {"configs": 3, "max_resource": 3}))
    first, second, third = study.set_capacity(3)
    study.tell_report(failed(first, Outcome.ERROR))
    study.tell_report(completed(second, float("nan")))
    (promoted,) = study.tell_report(completed(third, 5.0))
    assert promoted.trial == 2
    all_bad = Tournament(3, [1, 3], 3)
    for trial in range(3):
        all_bad.created += 1
        all_bad.add(0, trial, None)
    assert not all_bad.wanted and not all_bad.chosen


def test_hyperband_runs_every_bracket() -> None:
    study = run({"method": "hyperband", "min_resource": 1, "max_resource": 81, "reduction_factor": 3}, 4)
    rows: dict[int | None, list[tuple[int, int]]] = {}
    for rung in study.method.rungs():
        rows.setdefault(rung.bracket, []).append((rung.results, rung.level))
    assert rows == {  # Li et al. 2018, Table 1, with ceil for the base rungs
        0: [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        1: [(34, 3), (11, 9), (3, 27), (1, 81)],
        2: [(15, 9), (5, 27), (1, 81)],
        3: [(8, 27), (2, 81)],
        4: [(5, 81)],
    }


STOPPING = {
    "method": "asha", "variant": "stopping", "configs": 6, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
}  # fmt: skip


def test_stopping_judges_each_result_when_it_comes() -> None:
    study = fresh(make_spec(search=STOPPING))
    decisions = []
    (job,) = study.set_capacity(1)
    for loss in (0.5, 0.9, 0.6, 0.1, 0.4):  # trials 0 to 4 at rung 0, whatever they do above it
        while job.rung:
            (job,) = study.tell_report(completed(job, 0.0))
        trial = job.trial
        (job,) = study.tell_report(completed(job, loss))
        decisions.append(job.trial == trial)
    # fewer than 3 results: goes on; 0.6 is 2nd of 3; 0.1 is 1st of 4; 0.4 is 2nd of 5
    assert decisions == [True, True, False, True, False]
    stops = facts(study.journal.entries("world"), TrialStopped)
    assert [(e.trial, e.rung, e.rank, e.results) for e in stops if e.rung == 0] == [(2, 0, 2, 3), (4, 0, 2, 5)]
    assert study.state.trials[2].status == "stopped"
    assert "stopped at rung 0 (place 2 of 3)" in trial_story(study, 2)


def test_a_trial_that_may_go_on_and_is_abandoned_loses_its_turn_and_ranks_last() -> None:
    study = fresh(make_spec(search=STOPPING | {"configs": 50}))
    first, second, third = study.set_capacity(3)
    study.set_capacity(0)
    assert study.tell_report(completed(first, 0.1)) == study.tell_report(completed(second, 0.5)) == []
    study.abandon(first.trial)
    study.tell_report(completed(third, 0.3))
    study.check()
    (job,) = study.set_capacity(1)
    assert (job.trial, job.rung) == (second.trial, 1), "it had passed, and the abandoned one before it is gone"
    (job,) = study.set_capacity(2)
    assert (job.trial, job.rung) == (third.trial, 1), "the best of the three that count"


def test_who_goes_on_has_the_slot_before_new_configurations() -> None:
    study = fresh(make_spec(search=STOPPING | {"configs": 50}))
    (job,) = study.set_capacity(1)
    (job,) = study.tell_report(completed(job, 0.5))
    assert (job.trial, job.rung, job.target) == (0, 1, 3)


def test_production_default_is_at_most_five_rungs() -> None:
    assert default_min_resource(256, 4) == 1
    assert rung_levels(default_min_resource(1024, 4), 1024, 4) == [4, 16, 64, 256, 1024]
    assert rung_levels(default_min_resource(9, 3), 9, 3) == [1, 3, 9]
    for top in range(1, 300):
        for eta in (2, 3, 4, 2.5):
            assert len(rung_levels(default_min_resource(top, eta), top, eta)) <= 5


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
