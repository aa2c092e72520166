"""Retraining with a real Prefect API, Dask, child processes and MLflow's registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from hpo_core.home import Home
from hpo_core.spec import load_spec
from hpo_core.study import Study
from tests.dask_processes import DaskProcesses
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.flows.test_tune import api


@pytest.mark.slow
@pytest.mark.timeout(3600)  # sixteen retrainings in a row
def test_a_champion_over_many_data_sets(hpo: Runner, dask_processes: DaskProcesses) -> None:
    for name in ("one", "two"):
        dask_processes.add_worker(name)
    asha = {"method": "asha", "min_resource": 2, "max_resource": 8, "reduction_factor": 2}
    line: dict[str, Any] = {
        "study": "line",
        "objective": "tests.retraining.retrain_objectives:train",
        "space": {
            "offset": {"type": "float", "low": -1.0, "high": 1.0},
            "rate": {"type": "float", "low": 0.1, "high": 1.0},
        },
        "search": asha | {"configs": 8},
        "cluster": dask_processes.cluster,
    }
    elsewhere = {"experiment": "elsewhere"}
    hpo.study(**line | {"study": "aaa", "tracking": elsewhere}).rename(hpo.folder / "aaa.json")
    urls = {"folder": (hpo.folder / "far away").as_uri()}
    endless = {"study": "endless", "search": asha, "stop": {"total_resource": 60}, "checkpoints": urls}
    journal = Home(hpo.home).open_journal()
    unchanged = {"study": "unchanged", "style": "optuna"}
    for changes in ({}, endless, unchanged):
        first = Study.create(load_spec(hpo.study(**line | changes)), journal)  # by hand: the record is trained again
        while (job := first.ask()) is not None:
            first.tell(job, {"loss": (job.params["offset"] - 0.2) ** 2 + 0.01 / job.target})
    journal.close()
    registry = {"MLFLOW_TRACKING_URI": f"sqlite:///{hpo.home / 'mlflow.db'}"}  # the studies themselves are not tracked
    done = subprocess.run(
        [sys.executable, "-m", "tests.retraining.retrain_on_files", str(hpo.folder)],
        env=hpo.environment | registry | {"PYTHONPATH": str(ROOT)},
        cwd=hpo.folder, capture_output=True, text=True, timeout=4 * LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert "study=NAME" in found["nobody"]["error"]

    assert "checkpoints hold no model" in found["optuna"]["error"]
    assert "returned 0 losses per example" in found["bare"]["error"]

    similar = found["similar"]
    assert not similar["drifted"] and similar["branches"] == ["trained again"] and not similar["promoted"]
    assert similar["champion"] == 1 and similar["challenger"] == 2

    assert "these data are broken" in found["broken"]["error"]
    assert found["broken"]["studies"] == similar["studies"], "the evaluation failed before anything was trained"
    assert "repeat 1 has no finite, feasible result" in found["fragile"]["error"]

    failed, stopped, drifted = found["crashed"], found["stopped"], found["drifted"]
    assert "MLflow went away" in failed["error"] and "KeyboardInterrupt" in stopped["error"]
    assert drifted["drifted"] and drifted["branches"] == ["tuned"] and drifted["promoted"]
    assert len(stopped["studies"]) == len(failed["studies"]) + 2, "a failed one is begun anew: search and seeds"
    assert drifted["studies"] == stopped["studies"], "an interrupted one goes on"
    assert drifted["champion"] == drifted["challenger"] == 4 and not drifted["done_before"]

    again = found["again"]
    assert again["done_before"] and again["studies"] == ["aaa", *drifted["studies"]]
    assert again["champion"] == 4 and again["mlflow_run"] == drifted["mlflow_run"]

    assert "changed while champion and challengers were compared" in found["unstable"]["error"]
    stable = found["stable"]
    assert not stable["done_before"] and not set(found["unstable"]["studies"]) >= set(stable["studies"]), "begun anew"

    assert "Leave `evaluate` empty" in found["measure"]["error"], "losses of two functions compare with nothing"
    other, ruled = found["other"], found["ruled"]
    assert other["champion"] > stable["challenger"], "a study after the alias was taken away"
    assert ruled["drifted"] and ruled["branches"] == ["tuned"] and ruled["promoted"], (
        "a stop rule is an end like others"
    )

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    versions = client.search_model_versions("name = 'line'")
    assert int(client.get_model_version_by_alias("line", "champion").version) == ruled["challenger"]
    assert len(versions) == ruled["challenger"]
    experiment = client.get_experiment_by_name("retrain-line")
    assert experiment is not None
    statuses = Counter(run.info.status for run in client.search_runs([experiment.experiment_id]))
    assert statuses["RUNNING"] == 0 and statuses["FINISHED"] == len(versions) - 1, "one failed at the last step"
    files = {item.path for item in client.list_artifacts(drifted["mlflow_run"], "model")}
    assert files == {"model/model.json", "model/params.json"}

    shown = [item for item in api(hpo, "artifacts/filter", {"limit": 200}) if item["key"] == "line-decision"]
    texts = [item["data"] for item in shown]
    assert any("version 1 stays champion" in text and "not proven better" in text for text in texts)
    assert any("the challenger became champion" in text and "drift: Kolmogorov" in text for text in texts)
    assert len(texts) == len(set(texts)), "what was done before is not published again"

    tuned = hpo.json("show", drifted["study"].replace("-best", "-tune"))
    assert "clean" in hpo("audit", drifted["study"].replace("-best", "-tune")) and tuned["trials"] == 8
