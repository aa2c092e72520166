"""Several runs on a machine that has far too much to do, with a server that stands still for a minute."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from hpo_flows.deployed.flow_run_heartbeats import LIMIT_SECONDS
from tests.deployed.deployment_server import FINAL, Deployed
from tests.deployed.test_worker_ends import alone, worker_of
from tests.flows.conftest import LIMIT

__all__ = ["alone"]

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(3600)]
LOAD = 21.0
STILL_SECONDS = 60.0


@contextlib.contextmanager
def load_above(load: float) -> Iterator[None]:
    """Processes that only compute, enough for the load without any help; it is above the limit when this returns."""
    burners: list[subprocess.Popen[bytes]] = []
    try:
        burners += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(load) + 3)]
        deadline = time.monotonic() + LIMIT
        while os.getloadavg()[0] < load:
            assert time.monotonic() < deadline, os.getloadavg()
            time.sleep(2.0)
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait(60)


def server_of(deployed: Deployed) -> psutil.Process:
    """The process that serves the API."""
    port = urlsplit(deployed.environment["PREFECT_API_URL"]).port
    return next(
        psutil.Process(known.pid)
        for known in psutil.net_connections("tcp")
        if known.status == psutil.CONN_LISTEN and known.laddr.port == port and known.pid is not None
    )


def history(deployed: Deployed, run: str) -> list[str]:
    """Types of all states that a run has had, the oldest first."""
    states = deployed.api(f"flow_run_states/?flow_run_id={run}", method="GET")
    return [state["type"] for state in sorted(states, key=lambda state: state["timestamp"])]


def test_no_run_that_ended_is_rewritten_and_none_that_lives_is_called_dead(alone: Deployed, tmp_path: Path) -> None:
    with worker_of(alone):
        longer = json.loads((alone.folder / "studies" / "long.yaml").read_text())
        longer["search"]["max_resource"] = 40_000  # 100 minutes: it outlives this test
        (alone.folder / "studies" / "longer.yaml").write_text(json.dumps(longer))
        assert alone.hpo("deploy").returncode == 0
        long = alone.start("tune-file", file="longer.yaml", name="lives-on")
        alone.begun(long, 0)
        alone.release()
        with load_above(LOAD):
            short = [alone.start("tune-file", file="slow.yaml", name=f"short-{n}") for n in range(3)]
            alone.wait(short[0], lambda found: found["state_type"] == "RUNNING", seconds=LIMIT)
            server = server_of(alone)
            server.send_signal(signal.SIGSTOP)
            try:
                time.sleep(STILL_SECONDS)
            finally:
                server.send_signal(signal.SIGCONT)
            for run in short:
                alone.wait(run, lambda found: found["state_type"] in FINAL, seconds=2 * LIMIT)
            load = os.getloadavg()[0]
            time.sleep(LIMIT_SECONDS + 30)  # whoever judges by what came late would have done it by now
        past = {run: history(alone, run) for run in (long, *short)}
        (tmp_path / "history.txt").write_text(f"load {load}: {past}")
        assert load > LOAD - 1.0
        for run in short:
            assert past[run][-1] == "COMPLETED", (past[run], alone.logs(run)[-5:])
            assert not set(past[run][:-1]) & set(FINAL), past[run]
        assert alone.run(long)["state_type"] == "RUNNING" and not set(past[long]) & set(FINAL), past[long]
