"""`hpo worker` told to end, killed, and lost with all its processes: on a real server, with real flow processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

from hpo_flows.deployed.register import NO_HEARTBEAT
from tests.deployed.deployment_server import Deployed, gone
from tests.flows.conftest import LIMIT

pytestmark = pytest.mark.slow
COMPOSE_SECONDS = 60.0
BUSY = 10.0
"""Load above which nothing is said about seconds."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, deployments_api: dict[str, str]) -> Deployed:
    made = Deployed(tmp_path_factory.mktemp("alone"), deployments_api)
    for _ in range(2):  # twice changes nothing
        done = made.hpo("deploy")
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@contextlib.contextmanager
def worker_of(deployed: Deployed) -> Iterator[subprocess.Popen[bytes]]:
    with (deployed.folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "hpo_flows", "worker"],
            env=deployed.environment, cwd=deployed.folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.terminate()
        worker.wait(LIMIT)


def retried(deployed: Deployed, run: str) -> None:
    """Retry in the UI, with a worker that is there again."""
    deployed.release()
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True})
    with worker_of(deployed):
        deployed.wait(run, lambda found: found["state_type"] == "RUNNING")
        assert deployed.ended(run)["state_type"] == "COMPLETED", deployed.logs(run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_a_worker_that_is_told_to_end_halts_its_studies_first(alone: Deployed, number: signal.Signals) -> None:
    alone.hold()
    run = alone.start("tune-file", file="slow.yaml", name=f"told-{number}")
    with worker_of(alone) as worker:
        study, processes = alone.begun(run, 3)
        for _ in range(2 if number is signal.SIGINT else 1):  # Ctrl-C, and again: a terminal tells the whole group
            (worker.send_signal if number is signal.SIGTERM else partial(os.killpg, worker.pid))(number)
            time.sleep(1.0)
        told = time.monotonic()
        assert worker.wait(LIMIT) == 0
        took = time.monotonic() - told
        assert took < COMPOSE_SECONDS or os.getloadavg()[0] > BUSY, f"{took:.0f} s are more than Compose gives it"
        assert gone(processes), processes
    # told at once, or by missing heartbeats where the API did not answer a flow that had to end
    alone.wait(run, lambda found: found["state_type"] == "CRASHED")
    halted = alone.status(study)
    assert halted["status"] == "halted" and halted["reason"] == "interrupted"
    retried(alone, run)
    after = alone.status(study)
    assert after["status"] == "finished" and after["jobs"] == 24
    assert "clean" in alone.hpo("audit", study).stdout


def test_flow_processes_end_with_a_killed_worker(alone: Deployed) -> None:
    """By the kernel: the run is Crashed once its heartbeats are missing, and nothing of its study is lost."""
    alone.hold()
    run = alone.start("tune-file", file="slow.yaml", name="orphan")
    with worker_of(alone) as worker:
        study, processes = alone.begun(run, 3)
        worker.kill()
        assert gone(processes), processes
    found = alone.wait(run, lambda found: found["state_type"] == "CRASHED")
    assert found["state"]["message"] == NO_HEARTBEAT
    retried(alone, run)
    after = alone.status(study)
    assert after["status"] == "finished" and after["jobs"] == 24 and "clean" in alone.hpo("audit", study).stdout
