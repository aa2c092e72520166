"""The table of a study's trials that a link opens on MLflow's page of the experiment."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.trial import Job, Point, Report
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.mlflow_runs import trial_table
from tests.mlflow.test_mlflow import NAME, Clock, Tracker, entries_of, good, play, start, tracker  # noqa: F401 - a fixture


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
    assert page.count("[all trials in a table") == page.count("compareRunsMode=CHART") == 1
    order = f"{table['orderByKey']} {'ASC' if table['orderByAsc'] else 'DESC'}"
    experiment = tracker.parent().info.experiment_id
    assert table["orderByKey"] == "metrics.`final_val_loss`" and table["orderByAsc"] == (mode == "min")
    runs = tracker.client.search_runs([experiment], table["searchFilter"], order_by=[order])
    values = [run.data.metrics["final_val_loss"] for run in runs]
    assert len(runs) == 6 and values == sorted(values, reverse=mode == "max")
    for column in table["selectedColumns"]:
        kind, _, name = column.partition(".")
        assert name.strip("`") in getattr(runs[0].data, kind), column


def over_decades(job: Job, clock: Clock) -> Report:
    report = good(job, clock)
    curve = tuple(Point(point.resource, {"val_loss": 10.0 ** (4 - 2 * point.resource)}) for point in report.curve)
    return msgspec.structs.replace(report, curve=curve, metrics={**report.metrics, **curve[-1].metrics})


@pytest.mark.parametrize(("train", "axis"), [(good, "linear"), (over_decades, "log")])
def test_the_curve_has_a_logarithmic_axis_where_losses_span_decades(tracker: Tracker, train: Any, axis: str) -> None:  # noqa: F811
    """Found out while the study runs: the first entries know no loss."""
    study, clock = start(MemoryJournal())
    projection = tracker.projection()
    projection.project(entries_of(study))
    assert [chart["scaleType"] for chart in shown(tracker)[0]["compareRunCharts"]] == ["linear"]
    projection.project(entries_of(play(study, clock, train)))
    (chart,) = shown(tracker)[0]["compareRunCharts"]
    assert (chart["type"], chart["metricKey"], chart["scaleType"]) == ("LINE", "val_loss", axis)
    projection.close()


def test_several_objectives_are_drawn_against_each_other_and_the_front_stands_out(tracker: Tracker) -> None:  # noqa: F811
    metrics = [{"name": "val_loss"}, {"name": "acc", "mode": "max"}]
    search = {"method": "random", "configs": 12, "max_resource": 2}
    low_high = {"low": 1e-4, "high": 1.0}
    space = {"lr": {"type": "float", **low_high}, "width": {"type": "int", "low": 8, "high": 64}}
    clock = Clock()
    spec = {"study": NAME, "metrics": metrics, "space": space, "search": search, "seed": 3}
    study = play(Study.create(spec, MemoryJournal(), clock=clock), clock)
    projection = tracker.projection()
    projection.project(entries_of(study))
    projection.finish()
    projection.close()
    view, _ = shown(tracker)
    scatter = view["compareRunCharts"][0]
    assert (scatter["type"], scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == (
        "SCATTER",
        "final_val_loss",
        "final_acc",
    )
    assert view["runsHiddenMode"] == "SHOW_ALL"
    colors: dict[str, set[str]] = {}
    for run in tracker.runs():
        colors.setdefault(run.data.tags["hpo.pareto"], set()).add(run.data.tags["mlflow.runColor"])
    assert set(colors) == {"front", "dominated"} and len(colors["front"]) == len(colors["dominated"]) == 1
    assert colors["front"] != colors["dominated"]


def test_what_is_longer_than_a_tag_has_no_charts() -> None:
    metrics = [{"name": f"{'very' * 40}_{number}"} for number in range(5)]
    space = {"lr": {"type": "float", "low": 0.0, "high": 1.0}}
    spec = StudySpec.model_validate(
        {
            "study": "s",
            "metrics": metrics,
            "space": space,
            "search": {"method": "random", "configs": 2, "max_resource": 1},
        }
    )
    text = trial_table(spec, {"hpo.study": "s"})
    assert len(text) <= 5000 and "compareRunCharts" not in json.loads(text) and json.loads(text)["selectedColumns"]
