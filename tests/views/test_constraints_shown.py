"""What MLflow, the report, Prefect and a simulation make of constraints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.execution.virtual import VirtualClock
from hpo_core.report import write_report
from hpo_core.tracking.mlflow_runs import description, study_tags, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.states import trial_story

PLAIN: dict[str, Any] = {
    "study": "s", "metric": {"name": "loss"}, "constraints": ["size", "seconds"], "seed": 3,
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "search": {"method": "asha", "configs": 27, "max_resource": 9, "reduction_factor": 3},
}  # fmt: skip


@pytest.fixture
def study() -> Study:
    """The larger x, the smaller the loss; above 0.5 it is too large: the best loss is infeasible."""
    clock = VirtualClock(1e9)
    found = Study.create(StudySpec.from_plain(PLAIN), MemoryJournal(), clock=clock)
    while (job := found.ask()) is not None:
        clock.now += 10
        x = job.params["x"]
        found.tell(job, {"loss": 1 - x + 0.1 / job.target, "size": x - 0.5, "seconds": -1.0})
    found.check()
    return found


def test_mlflow_has_values_tags_and_words(study: Study) -> None:
    fold = TrackedStudy()
    for entry in study.journal.entries("s"):
        fold.add(entry)
    for trial in study.state.trials:
        tags = trial_tags(fold, trial.number, "parent")
        off = trial.params["x"] - 0.5
        assert tags["hpo.feasible"] == ("true" if off <= 0 else "false")
        values = {point.key: point.value for point in fold.trials[trial.number].points}
        assert values["final_size"] == off and values["final_seconds"] == -1.0
    infeasible = sum(len(trial.results) for trial in study.state.trials if trial.params["x"] > 0.5)
    assert infeasible > 5
    tags = study_tags(fold, "finished", None)
    best = study.best
    assert best is not None and tags["hpo.best_trial"] == str(best.trial)
    assert study.state.trials[best.trial].params["x"] <= 0.5
    words = f"constraints: size, seconds at most 0; {infeasible} results violate them"
    assert words in description(fold, "finished").replace("\\", "")


def test_the_report_counts_what_is_infeasible_and_its_winner_is_not(study: Study, tmp_path: Path) -> None:
    page = write_report(study.journal.entries("s"), tmp_path / "report.html").read_text()
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    trials = json.loads(found)["trials"]
    best = study.best
    assert best is not None and trials["winner"] == best.trial
    assert f'<div class="value">{study.state.infeasible_results}</div>' in page
    assert "size, seconds should be at most 0" in page
    worst = max(study.state.trials, key=lambda trial: trial.params["x"])
    line = f"; infeasible: size = {worst.params['x'] - 0.5:.6g}"
    assert any(line in told for told in trial_story(study, worst.number))
    assert any(line in told for told in trials["details"][str(worst.number)]["story"])
