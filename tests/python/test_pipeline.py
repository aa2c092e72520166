"""The example of a pipeline: as the page shows it, and served by Prefect's own runner on a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_core import load
from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "pipeline" / "nightly.py"


def test_the_page_shows_the_flow_of_the_example() -> None:
    section = (ROOT / "docs" / "how-to" / "tune-inside-my-own-flow.md").read_text()
    code = section.partition("```python\n")[2].partition("```")[0]
    assert "hpo.tune(" in code and code in PROGRAM.read_text()


@pytest.mark.slow
def test_it_is_served_on_a_schedule_and_its_runs_promote_a_model(prefect_api: dict[str, str], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = os.environ | prefect_api | {"HOME": str(tmp_path), "MLFLOW_TRACKING_URI": uri}
    with (tmp_path / "log").open("w") as log:
        served = subprocess.Popen([sys.executable, str(PROGRAM)], cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wanted = {"deployments": {"name": {"any_": ["digits"]}}}
        deployment = eventually(
            lambda: next(iter(ask(prefect_api, "deployments/filter", wanted)), None),
            process=served,
            said=(tmp_path / "log").read_text,
        )
        assert deployment["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
        for night in range(2):
            made = ask(prefect_api, f"deployments/{deployment['id']}/create_flow_run", {"parameters": {"configs": 3}})
            run = eventually(
                lambda made=made: ended(prefect_api, made["id"]), process=served, said=(tmp_path / "log").read_text
            )
            said = (tmp_path / "log").read_text()
            assert run["state_name"] == "Completed", said
            found = ask(prefect_api, "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [made["id"]]}}})
            assert [sub["name"] for sub in found] == [f"tune-nightly-{run['name']}"]
            tasks = ask(prefect_api, "task_runs/filter", {"flow_runs": {"id": {"any_": [made["id"]]}}})
            promoted = any(task["name"].startswith("promote") for task in tasks)
            assert promoted or night, "the first model is the champion"
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(LIMIT)
    from hpo_core.tracking.mlflow_client import open_client

    champion = open_client(uri).get_model_version_by_alias("digits", "champion")
    assert champion.name == "digits" and int(champion.version) >= 1


OWN_FLOW = """
from pathlib import Path

from prefect import flow

import hpo_core as hpo
from own_loss import loss


def train(trial):
    for _ in trial.steps():
        trial.report(loss=loss(trial.params["x"]))


@flow
def search(name: str) -> float:
    home, method = Path(__file__).parent / "home", hpo.Random(configs=2, max_resource=2)
    off = {"tracking": {"mlflow": "off"}, "workers": 1, "progress": False}
    return hpo.tune(train, {"x": hpo.Float(0, 1)}, metric="loss", method=method, name=name, home=home, **off).best.value


if __name__ == "__main__":
    search.from_source(str(Path(__file__).parent), "own.py:search").deploy("by-deploy", work_pool_name="own")
"""


@pytest.mark.slow
def test_it_is_deployed_to_a_process_worker(prefect_api: dict[str, str], tmp_path: Path) -> None:
    """By ``flow.from_source(...).deploy`` and by ``prefect deploy``; the worker starts each run in a process."""
    (tmp_path / "own.py").write_text(OWN_FLOW)
    (tmp_path / "own_loss.py").write_text("def loss(x):\n    return x + 1\n")
    environment = os.environ | prefect_api | {"HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    for command in (
        [*prefect, "work-pool", "create", "own", "--type", "process"],
        [sys.executable, "own.py"],
        [*prefect, "deploy", "own.py:search", "-n", "by-command", "-p", "own"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with (tmp_path / "log").open("w") as log:
        command = [*prefect, "worker", "start", "--pool", "own"]
        worker = subprocess.Popen(command, cwd=elsewhere, env=environment, stdout=log, stderr=log)
    try:
        wanted = {"deployments": {"name": {"any_": ["by-deploy", "by-command"]}}}
        deployments = ask(prefect_api, "deployments/filter", wanted)
        assert len(deployments) == 2
        for deployment in deployments:
            form = {"parameters": {"name": deployment["name"]}}
            made = ask(prefect_api, f"deployments/{deployment['id']}/create_flow_run", form)
            run = eventually(
                lambda made=made: ended(prefect_api, made["id"]), process=worker, said=(tmp_path / "log").read_text
            )
            assert run["state_name"] == "Completed", (tmp_path / "log").read_text()
            found = ask(prefect_api, "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [made["id"]]}}})
            assert [(sub["name"], sub["state_name"]) for sub in found] == [(f"tune-{deployment['name']}", "Completed")]
            assert load(deployment["name"], tmp_path / "home").best.resource == 2
    finally:
        worker.send_signal(signal.SIGINT)
        worker.wait(LIMIT)


def ended(environment: dict[str, str], run: str) -> Any:
    found = ask(environment, f"flow_runs/{run}")
    return found if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None
