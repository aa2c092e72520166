"""What people see of seed repeats: spread in terminal, story, report, MLflow and Prefect; refusals; costs."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.cli.output import best_line
from hpo_core.execution.virtual import VirtualClock
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.judged_results import best_repeat, mean_curve, mean_metrics, spread
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Point
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.report import write_report
from hpo_core.retraining.repeated_studies import repeats_spec
from hpo_core.simulation import AnalyticCurves, Simulation
from hpo_core.simulation.past import PastCurves, read_past
from hpo_core.tracking.mlflow_runs import description, study_params, study_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.trial_story import trial_story
from hpo_flows.deployed.form import FilledIn
from hpo_flows.prefect_pages.artifacts import best_markdown
from hpo_flows.progress import remaining_units

LADDER = {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


def spec_with(**changes: Any) -> StudySpec:
    return StudySpec.from_plain({
        "study": "s", "metric": {"name": "acc", "mode": "max"}, "seed": 3,
        "space": {"x": {"type": "float", "low": 0.1, "high": 1.0}}, "search": LADDER, "repeats": 3,
    } | changes)  # fmt: skip


def single(study: Study, job: Job) -> list[dict[str, float]]:
    seeds = [study.spec.training_seed(job.trial, repeat) for repeat in range(study.spec.repeats)]
    return [{"acc": job.params["x"] + job.target / 10 + Stream(seed, "acc", job.target).uniform()} for seed in seeds]


@pytest.fixture
def study() -> Study:
    clock = VirtualClock(1e9)
    found = Study.create(spec_with(), MemoryJournal(), clock=clock)
    while (job := found.ask()) is not None:
        clock.now += 10
        found.tell(job, single(found, job))
    found.check()
    return found


def test_terminal_story_and_prefect_show_the_spread(study: Study) -> None:
    best = study.best
    assert best is not None
    result = next(r for r in study.state.trials[best.trial].results if r.resource == best.resource)
    assert isinstance(result.repeats, tuple)
    values = [one["acc"] for one in result.repeats]
    std = statistics.stdev(values)
    assert f"± {std:.3g} over 3 repeats (trial {best.trial} at {best.resource})" in best_line(study)
    listed = ", ".join(f"{value:.5g}" for value in values)
    assert any(f"acc ± {std:.3g} over 3 repeats ({listed})" in line for line in trial_story(study, best.trial))
    assert f"± {std:.3g} over 3 repeats**" in best_markdown(study)
    assert "over" not in best_line(Study.create(spec_with(repeats=1)))


def test_the_report_has_columns_and_error_bars(study: Study, tmp_path: Path) -> None:
    page = write_report(study.journal.entries("s"), tmp_path / "report.html").read_text()
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(found)
    trials = data["trials"]
    std, repeats = trials["columns"].index("std"), trials["columns"].index("repeats")
    best = next(row for row in trials["rows"] if row[0] == trials["winner"])
    values = [float(value) for value in best[repeats].split(", ")]
    assert len(values) == 3 and best[std] == pytest.approx(statistics.stdev(values), rel=1e-3)
    bars = trials["details"][str(trials["winner"])]["spread"]
    assert set(bars) == {"1", "3", "9"} and bars["9"] == pytest.approx(best[std], rel=1e-3)
    assert "3 repeats of each trial, ranked by their mean" in page


def test_mlflow_has_the_mean_the_spread_and_each_repeat(study: Study) -> None:
    fold = TrackedStudy()
    for entry in study.journal.entries("s"):
        fold.add(entry)
    best = study.best
    assert best is not None
    points = {(point.key, point.step): point.value for point in fold.trials[best.trial].points}
    values = [points[f"acc_repeat_{repeat}", best.resource] for repeat in range(3)]
    assert points["final_acc", 0] == -best.loss == pytest.approx(statistics.fmean(values))
    assert points["acc_std", best.resource] == statistics.stdev(values)
    assert study_params(study.spec)["repeats"] == "3" and "repeats" not in study_params(spec_with(repeats=1))
    assert "over 3 repeats" in description(fold, "finished")
    assert "over 3 repeats" in study_tags(fold, "finished", None)["mlflow.note.content"]


def test_each_repeat_counts_in_the_resource_used_and_in_the_stop_rule(study: Study) -> None:
    trained = sum(trial.resource for trial in study.state.trials)
    assert study.state.resource_used == 3 * trained and remaining_units(study) == 0
    limited = Study.create(spec_with(stop={"total_resource": 20}))
    while (job := limited.ask()) is not None:
        limited.tell(job, single(limited, job))
    assert 20 <= limited.state.resource_used < 20 + 3 * 9
    assert limited.state.resource_used == 3 * sum(trial.resource for trial in limited.state.trials)


def test_the_journal_keeps_the_single_values_and_is_audited(study: Study) -> None:
    lines = [encode_entry(entry) for entry in study.journal.entries("s")]
    entries = list(map(decode_entry, lines))
    assert [encode_entry(entry) for entry in entries] == lines and audit(entries).clean
    again = Study.from_entries(entries)
    assert again.state.trials == study.state.trials
    alone = Study.create(spec_with(repeats=1), MemoryJournal())
    job = alone.ask()
    assert job is not None
    alone.tell(job, {"acc": 1.0})
    told = [encode_entry(entry) for entry in alone.journal.entries("s")][-1]
    assert "repeats" not in told, "without repeats an entry is what it was"


def test_a_rerun_keeps_repeats_and_a_retraining_trains_single_models(study: Study) -> None:
    entries = list(study.journal.entries("s"))
    again = rerun_spec(entries, "again")
    assert again.repeats == 3
    assert [again.training_seed(trial, 2) for trial in range(9)] == [study.spec.training_seed(t, 2) for t in range(9)]
    assert repeats_spec(entries, "new", trial=0, repeats=4, changes={}).repeats == 1


def test_a_job_of_a_simulation_takes_so_many_times_as_long(study: Study) -> None:
    ends = {}
    for repeats in (1, 3):
        clock = VirtualClock()
        spec = spec_with(repeats=repeats)
        simulated = Study.create(spec, MemoryJournal(), clock=clock)
        curves = AnalyticCurves(spec, noise=0.0, overhead=2.0)
        Simulation(simulated, clock, workers=2, train=curves.train, seconds=curves.seconds).run()
        ends[repeats] = clock.now
    assert ends[3] == pytest.approx(3 * ends[1])
    past = read_past(study.journal.entries("s"))
    job = Job(0, 0, study.state.trials[0].results[0].stage, 1, study.state.trials[0].params)
    assert PastCurves(past, spec_with()).seconds(job) == 10.0
    assert PastCurves(past, spec_with(repeats=6)).seconds(job) == 20.0


def test_noise_of_a_simulation_shrinks_with_the_repeats() -> None:
    job = Study.create(spec_with()).set_capacity(1)[0]
    spreads = []
    for repeats in (1, 100):
        spec = spec_with(repeats=repeats)
        off = [AnalyticCurves(spec, seed, noise=1.0) for seed in range(60)]
        sure = [AnalyticCurves(spec, seed, noise=0.0) for seed in range(60)]
        errors = [a.train(job)["acc"] - b.train(job)["acc"] for a, b in zip(off, sure, strict=True)]
        spreads.append(statistics.pstdev(errors))
    assert 0.6 < spreads[0] < 1.4 and 0.06 < spreads[1] < 0.14


def test_tell_takes_each_repeat_or_the_means(study: Study) -> None:
    other = Study.create(spec_with())
    job = other.ask()
    assert job is not None
    with pytest.raises(ObjectiveError, match="metrics of 2 repeats.*repeats: 3"):
        other.tell(job, [{"acc": 1.0}] * 2)
    with pytest.raises(ObjectiveError, match="metric 'acc' is None"):
        other.tell(job, [{"acc": 1.0}, {"acc": 1.0}, {"loss": 1.0}])
    other.tell(job, {"acc": 0.5})
    assert other.best is not None and other.best.metrics == {"acc": 0.5}


@pytest.mark.parametrize(
    ("repeats", "message"),
    [(0, "greater than or equal to 1"), (-2, "greater than or equal to 1"), (101, "100"), (10**12, "100"),
     (1.5, "integer"), ("many", "integer")],
)  # fmt: skip
def test_what_is_no_number_of_repeats_is_refused(repeats: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"repeats.*{message}"):
        spec_with(repeats=repeats)


def test_the_form_has_repeats_and_constraints() -> None:
    schema = FilledIn.model_json_schema()
    further = next(one for name, one in schema["$defs"].items() if name.startswith("Further"))
    assert further["properties"]["repeats"]["type"] == "integer" and further["properties"]["repeats"]["default"] == 1
    assert further["properties"]["constraints"]["type"] == "string"
    filled = FilledIn.model_validate({
        "objective": "train:train", "method": {"method": "asha", "configs": 9, "max_resource": 9},
        "numbers": [{"name": "x", "low": 0, "high": 1}], "further": {"repeats": 4, "constraints": "[size, seconds]"},
    })  # fmt: skip
    spec = StudySpec.from_plain(filled.plain() | {"study": "s"})
    assert spec.repeats == 4 and spec.constraints == ["size", "seconds"]


def test_means_are_exact_and_what_is_missing_is_left_out() -> None:
    assert mean_metrics([{"a": 1e308}, {"a": 1e308}, {"a": 1e308}]) == {"a": 1e308}, "no sum overflows"
    assert mean_metrics([{"a": 0.1}] * 3) == {"a": 0.1}
    assert mean_metrics([{"a": 1e16}, {"a": 1.0}, {"a": -1e16}]) == {"a": 1 / 3}
    infinite = mean_metrics([{"a": float("inf")}, {"a": float("-inf")}])["a"]
    assert infinite != infinite
    curves = [[Point(1, {"a": 1.0}), Point(2, {"a": 2.0})], [Point(2, {"a": 4.0, "b": 1.0}), Point(3, {"a": 0.0})]]
    assert mean_curve(curves) == (Point(2, {"a": 3.0}),)
    assert spread([{"a": 1.0}], "a") is None and spread([{"a": 1.0}, {"a": float("nan")}], "a") is None
    assert spread([{"a": 1.7e308}, {"a": -1.7e308}], "a") == float("inf"), "no page ends for a large value"
    values = [{"a": 1.0, "c": 0.5}, {"a": 2.0, "c": -1.0}, {"a": 3.0, "c": -1.0}]
    assert best_repeat(values, ("a", 1)) == 0 and best_repeat(values, ("a", 1), ["c"]) == 1
    assert best_repeat(values, ("a", -1), ["c"]) == 2
