"""Models that hop in Prefect: an epoch is a task; the visits of a job are in MLflow, the commands and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import Runner
from tests.flows.test_tune import task_runs
from tests.hopping.hopping_objectives import write_partitions


def study(hpo: Runner, folder: Path, **changes: Any) -> Path:
    write_partitions(folder / "data", [0, 1, 2], validation=1)
    return hpo.study(
        objective="tests.hopping.hopping_objectives:train",
        metric={"name": "val_loss", "mode": "min"},
        space={"lr": {"type": "float", "low": 0.001, "high": 0.05, "log": True}},
        search={"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 2, "reduction_factor": 2},
        data={
            "partitions": "part-*.npz",
            "validation": "val-*.npz",
            "folder": str(folder / "data"),
            "load": "tests.hopping.hopping_objectives:load",
        },
        cluster={"kind": "local", "workers": 2},
        tracking={},
        **changes,
    )


@pytest.mark.slow
@pytest.mark.parametrize("grain", ["jobs", "rungs"])
def test_a_hopping_study_has_a_task_for_each_epoch(hpo: Runner, tmp_path: Path, grain: str) -> None:
    import mlflow

    name = f"hops-{grain}"
    facts = hpo.json("tune", study(hpo, tmp_path, study=name, prefect=grain))
    assert facts["status"] == "finished" and facts["jobs"] == 6
    found = task_runs(hpo, name, 10 if grain == "jobs" else 4)
    runs = {run["name"]: run for run in found}
    for epoch, models, of in (
        (1, "4 models", "rung 0 of bracket 0, to 1"),
        (2, "2 models", "rung 1 of bracket 0, to 2"),
    ):
        shown = runs[f"epoch {epoch}"]
        assert shown["state"]["message"] == models and shown["task_inputs"]["__parents__"][0]["id"] == runs[of]["id"]
    recorded = hpo.json("show", name, "--trial", "0")["visits"]
    first = [visit for visit in recorded if visit["epoch"] == 0]
    assert sorted(visit["partition"] for visit in first) == ["part-0.npz", "part-1.npz", "part-2.npz", "val-0.npz"]
    hpo("project", name)  # on a busy machine the end of the study does not wait for all of it
    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    tracked = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=100)
    (parent,) = [run for run in tracked if run.data.tags["hpo.kind"] == "study"]
    moved = {run.data.tags["hpo.trial"]: run.data.metrics["bytes_moved"] for run in tracked if run is not parent}
    assert len(moved) == 4 and moved["0"] == sum(visit["bytes"] for visit in recorded) > 0
    assert "units of 6 epochs on " in hpo("status", name) and "hops moved" in hpo("status", name)
    assert "epoch 0: part-" in hpo("show", name, "--trial", "0")
    assert {"moved", "workers"} == set(hpo.json("show", name)["hops"])
    assert "Units on workers: busy " in Path(facts["report"]).read_text()
