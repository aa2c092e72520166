"""The Prefect server ends in mid-study: the study goes on, and its process ends with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_flows.prefect_api.shared_server import SharedServer
from tests.flows.conftest import Runner, wait_for_entries

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
    hpo = Runner(tmp_path, server.client_settings())
    process = hpo.start("tune", hpo.study("slow", search={"method": "random", "configs": 60, "max_resource": 2}))
    wait_for_entries(hpo, "toy", 6, process)
    server.close()
    while hpo.json("status", "toy")["status"] != "finished":
        assert process.poll() is None
    ended = time.monotonic()
    try:
        out, err = process.communicate(timeout=75)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, out + err
    assert time.monotonic() - ended < 75
    assert "toy finished: 60 trials, 60 jobs" in out
    assert "The Prefect server does not answer" in err
    assert "Traceback (most recent" not in out
    assert "clean" in hpo("audit", "toy")
