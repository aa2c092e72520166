"""A population whose members measure different things (PBT, Li et al. 2019, 3.5.1): one metric of several suffices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.events import Reproduced
from hpo_core.replay.audit import audit
from hpo_core.search.evolution import by_dominance, by_priority
from tests.flows.conftest import Runner
from tests.methods import facts

pytestmark = pytest.mark.timeout(900)  # several commands each, on a machine that may be busy

METRICS = [{"name": "loss"}, {"name": "speed", "mode": "max"}]


@pytest.mark.slow
@pytest.mark.parametrize("fitness", ["priority", "pareto"])
def test_members_that_report_one_metric_take_part(hpo: Runner, fitness: str) -> None:
    search: dict[str, Any] = {"method": "pbt", "population": 5, "generations": 3, "fitness": fitness}
    plain = {"metric": METRICS[0], "metrics": METRICS, "search": search, "tracking": {"mlflow": None}}
    summary = hpo.json("tune", hpo.study("gaps", **plain))
    assert summary["status"] == "finished" and summary["trials"] == 15

    journal = Home(hpo.home).open_journal()
    entries = list(journal.entries("toy"))
    assert audit(entries).clean
    study = Study.from_entries(entries)
    study.check()
    assert study.state.abandoned_trials == study.state.failed_attempts == 0
    results = {trial.number: trial.results[-1] for trial in study.state.trials}
    lacking = [set(result.metrics) for result in results.values() if len(result.metrics) < 2]
    assert {"loss"} in lacking and {"speed"} in lacking, "every member measured both: nothing was tested"
    for result in results.values():
        assert [math.isnan(loss) for loss in result.losses] == [m["name"] not in result.metrics for m in METRICS]
        assert result.checkpoint is not None

    compare = by_priority if fitness == "priority" else by_dominance
    met = [born for born in facts(entries, Reproduced) if born.opponent is not None]
    assert met
    for born in met:
        wins = compare(results[born.initiator].losses, results[born.opponent].losses) <= 0
        assert born.parent == (born.initiator if wins else born.opponent)
    assert all(len(member.metrics) == 2 for member in study.front), "the front holds a result with a gap"

    hpo("report", "toy")
    hpo("show", "toy")
    hpo("rerun", "toy", "--as", "again")
    again = Study.open("again", journal, reading=True)
    assert again.finished and again.state.abandoned_trials == 0
    assert [trial.results[-1].metrics for trial in again.state.trials] == [r.metrics for r in results.values()]

    import mlflow

    hpo("project", "toy")  # on a busy machine the end of the study does not wait for all of it
    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "hpo"]
    runs = client.search_runs([experiment.experiment_id], "tags.`hpo.kind` = 'trial' and tags.`hpo.study` = 'toy'")
    assert len(runs) == 15
    for run in runs:
        shown = {name for name in ("loss", "speed") if f"final_{name}" in run.data.metrics}
        assert shown == set(results[int(run.data.tags["hpo.trial"])].metrics)
        assert run.data.tags["hpo.state"] != "diverged"


@pytest.mark.slow
def test_other_methods_need_every_metric(hpo: Runner) -> None:
    search = {"method": "random", "configs": 5, "max_resource": 2}
    plain = {"metric": METRICS[0], "metrics": METRICS, "search": search, "training": {"fail_fast": None}}
    hpo("tune", hpo.study("gaps", **plain), code=9)  # most trials failed
    study = Study.open("toy", Home(hpo.home).open_journal(), reading=True)
    reasons = [trial.abandoned.reason for trial in study.state.trials if trial.abandoned is not None]
    assert reasons and all("was not reported at the target" in reason for reason in reasons)
