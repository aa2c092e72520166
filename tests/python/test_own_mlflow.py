"""Studies inside one's own MLflow run: parent, experiment and tracking URI are those of the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from typer.testing import CliRunner

import hpo_core as hpo
from hpo_core.result import Result
from hpo_core.spec import StudySpec
from hpo_flows.command import app
from tests.flows.conftest import ROOT
from tests.python.training import train

PARENT = "mlflow.parentRunId"


def run(**changes: Any) -> Result:
    given = {"method": hpo.Asha(configs=3, max_resource=3), "workers": 1, "progress": False, "prefect": "off"}
    return hpo.tune(train, {"x": hpo.Float(0, 1)}, metric="loss", **(given | changes))


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "")  # MLflow sets them; they are put back after the test
        monkeypatch.delenv(name)
    (tmp_path / "own.db").write_bytes(empty_store.read_bytes())
    uri = f"sqlite:///{tmp_path / 'own.db'}"
    monkeypatch.chdir(tmp_path)  # where MLflow keeps the files of its first experiment
    mlflow.set_tracking_uri(uri)
    yield uri
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
    mlflow.tracking.fluent._active_experiment_id = None


@pytest.mark.slow
def test_the_active_run_is_the_parent_and_stays_as_it_was(store: str, tmp_path: Path) -> None:
    mlflow.set_experiment("mine")
    mlflow.autolog(silent=True)
    with mlflow.start_run() as outer, mlflow.start_run(nested=True, run_name="inner") as inner:
        mlflow.log_param("owner", "me")
        before = mlflow.get_run(inner.info.run_id).to_dictionary()
        result = run(home=tmp_path / "home", name="child")
        assert mlflow.active_run().info.run_id == inner.info.run_id
        assert mlflow.get_run(inner.info.run_id).to_dictionary() == before, "nothing is logged to the user's run"
    mlflow.autolog(disable=True)
    # On a busy machine the end of the study does not wait for all of it.
    assert CliRunner().invoke(app, ["project", "child", "--home", str(tmp_path / "home")]).exit_code == 0
    result = result.refresh()
    study = mlflow.get_run(result.mlflow_run_id)
    assert study.data.tags[PARENT] == inner.info.run_id != outer.info.run_id
    assert study.info.experiment_id == inner.info.experiment_id and study.info.status == "FINISHED"
    best = mlflow.get_run(result.best.mlflow_run_id)
    assert best.data.tags[PARENT] == result.mlflow_run_id and best.data.tags["hpo.trial"] == str(result.best.trial)
    settings = result.spec.tracking
    assert (settings.mlflow, settings.experiment, settings.parent_run) == (None, "mine", inner.info.run_id)
    assert StudySpec.from_plain(result.spec.plain(), "again") == result.spec


@pytest.mark.slow
def test_the_page_runs_as_it_stands(store: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "compare-runs-in-mlflow.md").read_text()
    (tmp_path / "page.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    told = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    study, best = told.stdout.split()[-2:]
    parent = mlflow.get_run(mlflow.get_run(study).data.tags[PARENT])
    assert mlflow.get_run(best).data.tags[PARENT] == study
    assert parent.data.metrics == {"best_loss": mlflow.get_run(best).data.metrics["final_loss"]}
    assert mlflow.get_experiment(parent.info.experiment_id).name == "digits"
