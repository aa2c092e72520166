"""Retraining with a real Prefect API, Dask, child processes and MLflow's registry."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.flows.conftest import ROOT, Runner
from tests.flows.test_tune import api


def test_a_champion_over_five_data_sets(hpo: Runner) -> None:
    file = hpo.study(
        study="line",
        objective="tests.flows.retrain_objectives:train",
        space={
            "offset": {"type": "float", "low": -1.0, "high": 1.0},
            "rate": {"type": "float", "low": 0.1, "high": 1.0},
        },
        search={"method": "asha", "configs": 8, "min_resource": 2, "max_resource": 8, "reduction_factor": 2},
        tracking={},
    )  # fmt: skip
    hpo("tune", file)
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.retraining", str(hpo.folder)],
        env=hpo.environment | {"PYTHONPATH": str(ROOT)}, cwd=hpo.folder, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert "study=NAME" in found["nobody"]["error"]

    similar = found["similar"]
    assert not similar["drifted"] and similar["branches"] == ["trained again"] and not similar["promoted"]
    assert similar["champion"] == 1 and similar["challenger"] == 2

    assert "these data are broken" in found["broken"]["error"]
    assert found["broken"]["studies"] == similar["studies"], "the evaluation failed before anything was trained"
    assert "repeat 1 has no finite result" in found["fragile"]["error"]

    crashed, drifted = found["crashed"], found["drifted"]
    assert "MLflow went away" in crashed["error"]
    assert drifted["drifted"] and drifted["branches"] == ["tuned"] and drifted["promoted"]
    assert drifted["studies"] == crashed["studies"], "the decision stood; it was only carried out"
    assert drifted["champion"] == drifted["challenger"] == 3 and not drifted["done_before"]

    again = found["again"]
    assert again["done_before"] and again["studies"] == drifted["studies"]
    assert again["champion"] == 3 and again["mlflow_run"] == drifted["mlflow_run"]

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{hpo.home / 'mlflow.db'}")
    versions = client.search_model_versions("name = 'line'")
    assert sorted(int(version.version) for version in versions) == [1, 2, 3]
    assert client.get_model_version_by_alias("line", "champion").version == "3"
    files = {item.path for item in client.list_artifacts(drifted["mlflow_run"], "model")}
    assert files == {"model/model.json", *(f"model/repeat-{k}.safetensors" for k in range(3))}

    shown = [item for item in api(hpo, "artifacts/filter", {"limit": 200}) if item["key"] == "line-decision"]
    texts = [item["data"] for item in shown]
    assert any("version 1 stays champion" in text and "not proven better" in text for text in texts)
    assert any("the challenger became champion" in text and "drift: Kolmogorov" in text for text in texts)
    pictures = [item for item in api(hpo, "artifacts/filter", {"limit": 200}) if item["key"] == "line-compared"]
    assert pictures and all(item["data"].startswith("data:image/svg+xml;base64,") for item in pictures)

    tuned = hpo.json("show", drifted["study"].replace("-best", "-tune"))
    assert "clean" in hpo("audit", drifted["study"].replace("-best", "-tune")) and tuned["trials"] == 8
