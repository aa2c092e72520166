"""What a person filters, compares and reads in MLflow: numbers, costs, a trial's way, names. Asked of a real store."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.security.untrusted_text import markdown_text
from hpo_core.study import Study
from hpo_core.views.states import trial_story
from tests.mlflow.test_mlflow import NAME, Clock, Tracker, bad, entries_of, good, play, start, tracker  # noqa: F401

SEARCH = {"method": "asha", "configs": 9, "max_resource": 9, "reduction_factor": 3, "brackets": [0]}


def shown(tracker: Tracker, study: Study) -> None:  # noqa: F811
    projection = tracker.projection()
    projection.project(entries_of(study))
    projection.finish()
    projection.close()


def found(tracker: Tracker, wanted: str, order: str = "") -> list[Any]:  # noqa: F811
    experiment = tracker.parent().info.experiment_id
    wanted = f"tags.`hpo.kind` = 'trial' and {wanted}"
    return list(tracker.client.search_runs([experiment], wanted, order_by=[order] if order else None))


def test_trials_are_filtered_and_sorted_by_a_parameter_that_is_a_number(tracker: Tracker) -> None:  # noqa: F811
    study = play(*start(MemoryJournal(), configs=12))
    shown(tracker, study)
    rates = {trial.number: trial.params["lr"] for trial in study.state.trials}
    limit = sorted(rates.values())[6]
    runs = found(tracker, f"metrics.`param/lr` > {limit!r}", "metrics.`param/lr` DESC")
    assert [int(run.data.tags["hpo.trial"]) for run in runs] == sorted(
        (number for number, rate in rates.items() if rate > limit), key=lambda number: -rates[number]
    )
    both = found(tracker, f"metrics.`param/lr` > {limit!r} and metrics.`param/width` <= 36")
    assert len(both) == sum(rates[trial.number] > limit and trial.params["width"] <= 36 for trial in study.state.trials)


def test_the_run_of_a_study_says_what_it_cost(tracker: Tracker) -> None:  # noqa: F811
    study = play(*start(MemoryJournal(), search=SEARCH))
    shown(tracker, study)
    parent = tracker.parent()
    metrics = parent.data.metrics
    state = study.state
    assert metrics["cost/resource"] == state.resource_used
    assert metrics["cost/jobs"] == state.completed_jobs
    assert metrics["trials/all"] == 9
    by_state = {key: value for key, value in metrics.items() if key.startswith("trials/") and key != "trials/all"}
    assert sum(by_state.values()) == 9
    full = sum(trial.resource == 9 for trial in state.trials)
    assert by_state["trials/completed"] == full and by_state["trials/not_promoted"] == 9 - full
    entries = entries_of(study)
    assert metrics["cost/seconds"] == pytest.approx(entries[-1].time - entries[0].time)
    assert parent.info.end_time - parent.info.start_time == pytest.approx(metrics["cost/seconds"] * 1000, abs=1)


def test_the_page_of_a_trial_tells_its_way_rung_by_rung(tracker: Tracker) -> None:  # noqa: F811
    study = play(*start(MemoryJournal(), search=SEARCH))
    shown(tracker, study)
    runs = tracker.runs()
    pages = [run.data.tags["mlflow.note.content"] for run in runs]
    for trial in study.state.trials:
        page = pages[trial.number]
        state = runs[trial.number].data.tags["hpo.state"]
        assert page.startswith(f"**Trial {trial.number} of study digits**: {state}\n")
        assert page.splitlines()[2:] == [f"- {markdown_text(line)}" for line in trial_story(study, trial.number)]
    [winner] = [run for run in runs if run.data.tags["hpo.state"] == "winner"]
    assert winner.data.tags["hpo.trial"] == tracker.parent().data.tags["hpo.best_trial"]
