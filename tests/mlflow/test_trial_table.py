"""The table of a study's trials that a link opens on MLflow's page of the experiment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpo_core.journal.memory import MemoryJournal
from tests.mlflow.test_mlflow import Tracker, entries_of, play, start, tracker  # noqa: F401 - a fixture


def shown(tracker: Tracker) -> tuple[dict[str, Any], str]:  # noqa: F811
    """What the link on the page of the study leads to, and the page."""
    page = tracker.parent().data.tags["mlflow.note.content"]
    experiment = tracker.client.get_experiment(tracker.parent().info.experiment_id)
    link = page.partition("(#/experiments/")[2].partition(")")[0]
    assert link.startswith(f"{experiment.experiment_id}/runs?") and "workflowType=machine_learning" in link
    key = link.partition("viewStateShareKey=")[2].partition("&")[0]
    return json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"]), page


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_has_the_trials_of_this_study_best_first(tracker: Tracker, mode: str) -> None:  # noqa: F811
    study = play(*start(MemoryJournal(), configs=6, metric={"name": "val_loss", "mode": mode}))
    for _ in range(2):  # the second time changes nothing
        projection = tracker.projection()
        projection.project(entries_of(study))
        projection.finish()
        projection.close()
    table, page = shown(tracker)
    assert page.count("[all trials in a table") == 1
    order = f"{table['orderByKey']} {'ASC' if table['orderByAsc'] else 'DESC'}"
    experiment = tracker.parent().info.experiment_id
    assert table["orderByKey"] == "metrics.`final_val_loss`" and table["orderByAsc"] == (mode == "min")
    runs = tracker.client.search_runs([experiment], table["searchFilter"], order_by=[order])
    values = [run.data.metrics["final_val_loss"] for run in runs]
    assert len(runs) == 6 and values == sorted(values, reverse=mode == "max")
    for column in table["selectedColumns"]:
        kind, _, name = column.partition(".")
        assert name.strip("`") in getattr(runs[0].data, kind), column
