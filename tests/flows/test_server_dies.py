"""The Prefect server ends in mid-study: the study goes on, and its process ends with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hpo_flows.prefect_pages.prefect_process import WAIT_SECONDS

from hpo_flows.prefect_api.shared_server import SharedServer
from tests.flows.conftest import LIMIT, Runner, at_load, wait_for_entries
from tests.flows.prefect_api import ask

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SharedServer]:
    """One that may be ended."""
    made = SharedServer(tmp_path / "prefect")
    try:
        made.start()
        made.wait()
        yield made
    finally:
        made.close()


def test_a_study_outlives_the_prefect_server(server: SharedServer, tmp_path: Path) -> None:
    hpo = Runner(tmp_path, server.client_settings(), prefect="auto")
    gate = tmp_path / "gate"
    gate.write_text("8")
    search = {"method": "random", "configs": 60, "max_resource": 2}
    process = hpo.start("tune", hpo.study("held", search=search, constants={"gate": str(gate)}))
    wait_for_entries(hpo, "toy", 6, process)
    while [run["state_type"] for run in ask(server.client_settings(), "flow_runs/filter", {})] != ["RUNNING"]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    server.close()
    gate.unlink()
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and hpo.json("status", "toy")["status"] != "finished":
        assert time.monotonic() < deadline
    finished = time.monotonic()
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    took = time.monotonic() - finished
    assert took < WAIT_SECONDS + at_load(15), f"the process ended {took:.0f} s after its study"
    assert process.returncode == 0, out + err
    assert "toy finished: 60 trials, 60 jobs" in out
    assert "The Prefect server does not answer" in err
    assert "Traceback (most recent" not in out
    assert "clean" in hpo("audit", "toy")
