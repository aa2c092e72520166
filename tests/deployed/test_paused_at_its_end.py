"""Pause is pressed when nothing is left to train: the run of the finished study ends Completed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import LIMIT
from tests.flows.prefect_api import ask

SCRIPT = """
import json
import sys
import time
from datetime import UTC, datetime, timedelta

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run

from hpo_core.execution.loop import Observer
from hpo_core.home import Home
from hpo_core.spec import StudySpec
from hpo_flows.study_run import study_flow as driven
from hpo_flows.deployed.study_runs import drive_to_end
from hpo_flows.study_run.session import Session
from tests.deployed.deployment_server import TOY


class Presses(Observer):
    '''Presses Pause as the UI does, after the last job, and goes on once the study's own thread has heard of it.'''

    def __init__(self, study):
        self.study = study

    def on_report(self, report, granted):
        if self.study.finished:
            with get_client(sync_client=True) as client:
                until = datetime.now(UTC) + timedelta(seconds=float(sys.argv[1]))
                details = {"pause_reschedule": True, "pause_timeout": until.isoformat()}
                state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
                client.request("POST", "/flow_runs/{id}/set_state", path_params={"id": flow_run.id},
                               json={"state": state, "force": True})
            while not heard:
                time.sleep(0.05)
            time.sleep(max(0.0, float(sys.argv[1]) + 1) if float(sys.argv[1]) < 5 else 0)


heard = []
heed = driven.PagesThread._heed


def hear(pages, state):
    heed(pages, state)
    if state.is_paused():
        heard.append(state)


driven.PagesThread._heed = hear


@flow(name="tune", persist_result=False)
def tune():
    session = Session(Home(), "toy", spec=StudySpec.from_plain(TOY))
    session.add_observer(Presses)
    return drive_to_end(session, "tune")


with get_client(sync_client=True) as client:
    deployment = client.create_deployment(client.create_flow(tune), name="paused-at-its-end")
    run = client.create_flow_run_from_deployment(deployment)
print(run.id, flush=True)
run_flow(tune, flow_run=run, parameters={}, return_type="state")
"""


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [300, 1], ids=["in time", "whose limit is over"])
def test_a_finished_study_ends_completed(timeout: int, prefect_api: dict[str, str], tmp_path: Path) -> None:
    environment = os.environ | prefect_api | {"HPO_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(timeout)],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.stdout, done.stderr
    state = ask(prefect_api, f"flow_runs/{done.stdout.split()[0]}")["state"]
    assert state["type"] == "COMPLETED", (state, done.stderr)
    assert "best loss" in state["message"]
