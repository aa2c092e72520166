"""What Prefect shows of models that hop: the log of a job's task run lists its visits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.hops import Visit
from hpo_core.model.trial import Outcome, Report
from hpo_core.views.hop_views import PartitionNames
from hpo_flows.prefect_pages.study_tasks import EPOCHS_LISTED, visit_lines
from tests.flows.conftest import LIMIT, Runner
from tests.flows.test_tune import api, task_runs
from tests.hopping.hopping_objectives import write_partitions

NAMES = PartitionNames(("part-0", "part-1", "val-0"), 2)


def job(*visits: Visit) -> Report:
    return Report(trial=3, attempt=0, outcome=Outcome.COMPLETED, metrics={"loss": 1.0}, visits=visits)


def test_a_line_for_each_epoch() -> None:
    visits = [
        Visit(4, 1, "tcp://10.0.0.1:4000", 0.0, 2.5, 0),
        Visit(4, 0, "w\x1b[2Jb", 3.0, 4.0, 900),
        Visit(4, 2, "w1", 4.0, 4.5, 900),
        Visit(5, 0, "w1", 5.0, 6.0, 900),
    ]
    lines = list(visit_lines(job(*visits), NAMES))
    assert lines[0].startswith("epoch 4: part-1 on 10.0.0.1:4000 (2.5 s), part-0 on w")
    assert lines[0].endswith("b (1 s); validation val-0 on w1 (0.5 s); 4 s")
    assert lines[1] == "epoch 5: part-0 on w1 (1 s); 1 s"
    assert "\x1b" not in "".join(lines), "a worker's name cannot command a terminal"
    assert not [*visit_lines(job(), NAMES), *visit_lines(job(*visits), None)]
    many = list(visit_lines(job(*(Visit(epoch, 0, "w1", 0.0, 1.0, 0) for epoch in range(EPOCHS_LISTED + 7))), NAMES))
    assert len(many) == EPOCHS_LISTED + 1 and many[-1] == "and 7 epochs more"


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


def logs(hpo: Runner, run: str, wanted: int) -> list[str]:
    """Messages of a task run; Prefect's server has them a little later."""
    deadline = time.monotonic() + LIMIT
    body = {"logs": {"task_run_id": {"any_": [run]}}, "limit": 200}
    while len(found := api(hpo, "logs/filter", body)) < wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    return [line["message"] for line in sorted(found, key=lambda line: line["timestamp"])]


@pytest.mark.slow
@pytest.mark.parametrize("grain", ["jobs", "rungs"])
def test_logs_of_task_runs_list_the_visits(hpo: Runner, tmp_path: Path, grain: str) -> None:
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
    if grain == "jobs":
        lines = logs(hpo, runs["trial 0 -> 1"]["id"], 1)
        (line,) = [line for line in lines if line.startswith("epoch 0: ")]
        order = [visit["partition"].removesuffix(".npz") for visit in first]
        places = [line.index(f"{partition} on ") for partition in order]
        assert places == sorted(places) and "; validation val-0 on " in line
    hpo("project", name)  # on a busy machine the end of the study does not wait for all of it
    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    tracked = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=100)
    (parent,) = [run for run in tracked if run.data.tags["hpo.kind"] == "study"]
    table = Path(client.download_artifacts(parent.info.run_id, "visits.csv", str(tmp_path))).read_text().splitlines()
    assert table[0] == "trial,epoch,partition,worker,started,ended,bytes" and len(table) == 1 + 6 * 4
    moved = {run.data.tags["hpo.trial"]: run.data.metrics["bytes_moved"] for run in tracked if run is not parent}
    assert len(moved) == 4 and moved["0"] == sum(visit["bytes"] for visit in recorded) > 0
    assert "units of 6 epochs on " in hpo("status", name) and "hops moved" in hpo("status", name)
    assert "epoch 0: part-" in hpo("show", name, "--trial", "0")
    assert {"moved", "workers", "partitions"} == set(hpo.json("show", name)["hops"])
    assert "Units on workers: busy " in Path(facts["report"]).read_text()
