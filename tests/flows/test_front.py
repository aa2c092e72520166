"""Several objectives end to end: training, the front in the summary, Prefect's artifact and MLflow's tags."""

from __future__ import annotations

import mlflow
import pytest

from tests.flows.conftest import Runner
from tests.flows.test_tune import api

METRICS = [{"name": "loss"}, {"name": "speed", "mode": "max"}]


@pytest.mark.slow
def test_a_study_with_two_objectives(hpo: Runner) -> None:
    facts = hpo.json("tune", hpo.study("trade", study="two", metrics=METRICS, tracking={}, prefect="auto"))
    front = facts["front"]
    assert facts["status"] == "finished" and len(front) > 1
    assert front[0]["values"]["loss"] == facts["best"]["value"]
    losses, speeds = [[member["values"][name] for member in front] for name in ("loss", "speed")]
    assert losses == sorted(losses) and speeds == sorted(speeds), "better in one is worse in the other"
    assert hpo.json("show", "two")["front"] == front
    assert f"Pareto front of loss, speed: {len(front)} results" in hpo("show", "two")
    assert "clean" in hpo("audit", "two")
    assert "Results on the Pareto front" in (hpo.home / "studies/two/report.html").read_text()

    artifacts = api(hpo, "artifacts/filter", {"artifacts": {"key": {"any_": ["two-study"]}}, "limit": 5})
    assert f"### Pareto front of loss, speed: {len(front)} results" in artifacts[0]["data"]
    assert artifacts[0]["data"].count(f"| {front[-1]['trial']} | {front[-1]['resource']} |") == 1

    hpo("project", "two")  # on a busy machine the end of the study does not wait for all of it
    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], "tags.`hpo.pareto` = 'front'")
    assert {int(run.data.tags["hpo.trial"]) for run in runs} == {member["trial"] for member in front}
    assert all("final_speed" in run.data.metrics for run in runs)
    parent = client.search_runs([e.experiment_id for e in client.search_experiments()], "tags.`hpo.kind` = 'study'")[0]
    assert parent.data.metrics["front_size"] == len(front) and parent.data.metrics["best_speed"] == max(speeds)
    assert "front.json" in {item.path for item in client.list_artifacts(parent.info.run_id)}
