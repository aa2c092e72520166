"""The Pareto front where people and programs see it: terminal, report, MLflow's tags; and what a spec may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import plotly.graph_objects as go
import pytest

from hpo_core import Checkpoint, MemoryJournal, Study
from hpo_core.checkpoints.retention import LiveCheckpoints
from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import SpecError
from hpo_core.report.curves import front_figure, front_table
from hpo_core.report.series import read_series
from hpo_core.report.study_page import render
from hpo_core.terminal.output import best_line, print_study
from hpo_core.tracking.mlflow_runs import study_tags, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.summary import front_members, front_rows
from tests.conftest import fresh, make_spec
from tests.laws.test_pareto import METRICS, Tradeoff

SEARCH = {"method": "asha", "configs": 40, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}


def played(objectives: int, journal: Journal | None = None) -> Study:
    world = Tradeoff(3, workers=4, failures=0.05, nans=0.05)
    several = {"metrics": METRICS[:objectives]} if objectives > 1 else {}
    study = fresh(make_spec(metric=METRICS[0], search=SEARCH, **several), journal or MemoryJournal(), world)
    world.play(study)
    return study


def test_values_are_the_users_metrics() -> None:
    study = played(2)
    members = front_members(study.spec, study.state)
    facts = list(msgspec.to_builtins(members))
    assert len(facts) == len(study.front) > 2
    for found in facts:
        result = next(r for r in study.state.trials[found["trial"]].results if r.resource == found["resource"])
        assert found["values"] == {name: result.metrics[name] for name in ("error", "speed")}
        assert found["params"] == study.state.trials[found["trial"]].params
    assert [found["values"]["error"] for found in facts] == sorted(found["values"]["error"] for found in facts)
    assert json.loads(json.dumps(facts)) == facts
    columns = {tuple(row) for row in front_rows(members)}
    assert columns == {("trial", "trained to", "error", "speed", "x", "c", "d")}, "one shape, conditional or not"
    assert [next(iter(row.values())) for row in front_rows(members, 2)] == [found["trial"] for found in facts[:2]]


def test_hpo_show_prints_the_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    study = played(2, home.open_journal())
    assert best_line(study).endswith(f", front of {len(study.front)}")
    print_study(home, "world", None, False)
    text = capsys.readouterr().out
    assert f"Pareto front of error, speed: {len(study.front)} results" in text
    assert f"{study.front[-1].losses[0]:.5g}" in text
    print_study(home, "world", None, True)
    assert json.loads(capsys.readouterr().out)["front"] == list(
        msgspec.to_builtins(front_members(study.spec, study.state))
    )


def test_one_objective_shows_no_front() -> None:
    study = played(1)
    assert study.front == [study.best] and "front" not in best_line(study)
    series = read_series(list(study.journal.entries("world")))
    assert front_figure(series) is None and front_table(series) is None and "Pareto" not in render(series)


@pytest.mark.parametrize("objectives", [2, 3])
def test_report_marks_the_front_of_the_first_two_objectives(objectives: int) -> None:
    study = played(objectives)
    series = read_series(list(study.journal.entries("world")))
    figure = front_figure(series)
    assert figure is not None
    go.Figure(data=figure.data, layout=figure.layout)  # refuses what Plotly does not know
    fronts = [trace for trace in figure.data if trace["name"] == "Pareto front"]
    assert len(fronts) == 1, "of the first two objectives"
    finite = sum(result.loss is not None for trial in study.state.trials for result in trial.results)
    assert sum(len(trace["x"]) for trace in figure.data if trace not in fronts) == finite
    for i, trace in enumerate(fronts, 1):
        assert sorted(trace["y"]) == pytest.approx([m.losses[0] for m in study.front], rel=1e-5)
        low, high = figure.layout[f"xaxis{'' if i == 1 else i}"]["range"]
        assert low < min(trace["x"]) and max(trace["x"]) < high, "the whole front is in the picture"
    page = render(series)
    assert f"Pareto front: {len(study.front)} results" in page and "Results on the Pareto front" in page
    assert "minimize error, maximize speed" in page


def test_tags_follow_trials_into_the_front_and_out_of_it() -> None:
    study = played(2)
    fold, tags = TrackedStudy(), dict[int, str | None]()
    left = 0
    for entry in study.journal.entries("world"):
        fold.add(entry)
        for number in fold.touched:
            before, tags[number] = tags.get(number), trial_tags(fold, number, "run").get("hpo.pareto")
            left += before == "front" and tags[number] == "dominated"
        last = {point.key: point.value for point in fold.points}
        fold.clear_changes()
        if "front_size" in last:
            assert last["front_size"] == len(fold.state.front)
        if "best_speed" in last:
            assert last["best_speed"] == max(-member.losses[1] for member in fold.state.front)
    assert left > 0, "some were on the front for a while"
    assert tags == {n: trial_tags(fold, n, "run").get("hpo.pareto") for n in range(len(study.state.trials))}
    assert {n for n, tag in tags.items() if tag == "front"} == {member.trial for member in study.front}
    assert None in tags.values(), "without a finite result a trial is neither"
    shown = study_tags(fold, "finished", None)
    assert "tag `hpo.pareto`" in shown["mlflow.note.content"]
    assert fold.promotions and all(p.rank <= p.among // 3 for p in fold.promotions), "ranks are the rung's own"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"metrics": METRICS[:2], "sampler": {"name": "CmaEsSampler"}}, "CmaEsSampler cannot do 2 objectives"),
        ({"metrics": METRICS[1:]}, "metric 'error' is not the first of metrics 'speed'"),
        ({"metrics": [METRICS[0], METRICS[0]]}, "names one metric twice"),
        (
            {"metrics": METRICS[:2], "search": {"method": "pasha", "configs": 9, "max_resource": 9}},
            "pasha ranks by one",
        ),
    ],
)
def test_what_several_objectives_cannot_have(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        make_spec(metric=METRICS[0], **changes)


def test_every_result_of_the_front_keeps_its_checkpoint() -> None:
    study = fresh(make_spec(metric=METRICS[0], metrics=METRICS[:2], search=SEARCH | {"configs": 27}))
    while (job := study.ask()) is not None:  # errors grow with training, so the first results stay on the front
        metrics = {"error": 0.1 + job.target / 100 + job.trial, "speed": job.target / (1 + job.trial)}
        study.tell(job, metrics, checkpoint=Checkpoint(f"t{job.trial}/{job.target}", "0" * 64, job.target, 1))
        live = LiveCheckpoints(study.state, study.method)
        assert all(checkpoint.uri in live for _, checkpoint in study.state.front_checkpoints())
    study.check()
    assert [(member.trial, member.resource) for member in study.front] == [(0, 1), (0, 3), (0, 9), (0, 27)]
    assert len(study.state.front_checkpoints()) == 4
