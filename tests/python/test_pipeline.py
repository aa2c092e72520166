"""The example of a pipeline: as the page shows it, and served by Prefect's own runner on a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask

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
        deployment = until(served, tmp_path, lambda: next(iter(ask(prefect_api, "deployments/filter", wanted)), None))
        assert deployment["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
        for night in range(2):
            made = ask(prefect_api, f"deployments/{deployment['id']}/create_flow_run", {"parameters": {"configs": 3}})
            run = until(served, tmp_path, lambda made=made: ended(prefect_api, made["id"]))
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


def ended(environment: dict[str, str], run: str) -> Any:
    found = ask(environment, f"flow_runs/{run}")
    return found if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None


def until(served: subprocess.Popen[bytes], folder: Path, look: Any) -> Any:
    deadline = time.monotonic() + LIMIT
    while (found := look()) is None:
        assert served.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.5)
    return found
