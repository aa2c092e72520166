"""`hpo worker` told to end, killed, and lost with all its processes: on a real server, with real flow processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from hpo_flows.deployed.flow_run_heartbeats import NO_HEARTBEAT
from tests.deployed.deployment_server import Deployed, gone
from tests.flows.conftest import LIMIT

pytestmark = pytest.mark.slow
COMPOSE_SECONDS = 60.0
BUSY = 10.0
"""Load above which nothing is said about seconds."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, deployments_api: dict[str, str]) -> Deployed:
    """Deployments without a worker."""
    made = Deployed(tmp_path_factory.mktemp("alone"), deployments_api)
    long = json.loads((made.folder / "studies" / "slow.yaml").read_text())
    long["search"] = {"method": "random", "configs": 2, "max_resource": 2000}
    (made.folder / "studies" / "long.yaml").write_text(json.dumps(long))
    for _ in range(2):  # twice changes nothing
        done = made.hpo("deploy")
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@contextlib.contextmanager
def worker_of(deployed: Deployed) -> Iterator[subprocess.Popen[bytes]]:
    with (deployed.folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "hpo_flows", "worker"],
            env=deployed.environment, cwd=deployed.folder, stdout=log, stderr=log,
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
        worker.send_signal(number)
        told = time.monotonic()
        assert worker.wait(LIMIT) == 0
        took = time.monotonic() - told
        assert took < COMPOSE_SECONDS or os.getloadavg()[0] > BUSY, f"{took:.0f} s are more than Compose gives it"
        state = alone.run(run)["state"]
        assert state["type"] == "CRASHED", state
        assert gone(processes), processes
    halted = alone.status(study)
    assert halted["status"] == "halted" and halted["reason"] == "interrupted"
    retried(alone, run)
    after = alone.status(study)
    assert after["status"] == "finished" and after["jobs"] == 24
    assert "clean" in alone.hpo("audit", study).stdout


def test_flow_processes_end_with_a_killed_worker(alone: Deployed) -> None:
    """Trials of five minutes: nothing is logged meanwhile, which would end the process at the broken pipe."""
    run = alone.start("tune-file", file="long.yaml", name="orphan")
    with worker_of(alone) as worker:
        study, processes = alone.begun(run, 0)
        while alone.status(study)["status"] != "running":
            time.sleep(0.5)
        worker.kill()
        assert gone(processes), processes
    assert alone.run(run)["state_type"] == "CRASHED"
    halted = alone.status(study)
    assert halted["status"] == "halted" and halted["reason"] == "interrupted"


def test_a_run_whose_processes_vanished_is_called_crashed(alone: Deployed) -> None:
    """As in a power cut: nobody is left who could report it, and its study is open in the journal."""
    alone.hold()
    run = alone.start("tune-file", file="slow.yaml", name="vanished")
    with worker_of(alone) as worker:
        study, flow = alone.begun(run, 3)
        processes = [*psutil.Process(worker.pid).children(), *flow]  # Prefect's worker, too
        for process in processes:  # none may notice the others' end
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        worker.kill()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert gone(processes)
    state = alone.wait(run, lambda found: found["state_type"] != "RUNNING")["state"]  # Prefect's server tells
    assert (state["type"], state["message"]) == ("CRASHED", NO_HEARTBEAT)
    assert alone.status(study)["status"] == "interrupted"
    retried(alone, run)
    assert alone.status(study)["status"] == "finished"


def test_a_run_called_crashed_that_lives_is_running_again(alone: Deployed) -> None:
    """As after a server that was away for long: it heard nothing either."""
    run = alone.start("tune-file", file="long.yaml", name="alive")
    with worker_of(alone):
        _, processes = alone.begun(run, 0)
        while alone.status("alive")["status"] != "running":
            time.sleep(0.5)
        alone.api(f"flow_runs/{run}/set_state", {"state": {"type": "CRASHED", "message": NO_HEARTBEAT}, "force": True})
        alone.wait(run, lambda found: found["state_type"] == "RUNNING")
        assert all(process.is_running() for process in processes)
