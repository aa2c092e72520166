"""The Prefect server ends in mid-study: the study goes on, and its process ends with it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import TemporaryPrefectServer
from tests.flows.conftest import Runner, wait_for_entries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[TemporaryPrefectServer, dict[str, str]]]:
    """One that may be ended, and the environment that names it."""
    before = dict(os.environ)
    made = TemporaryPrefectServer(tmp_path / "prefect")
    made.start()
    changed = {key: value for key, value in os.environ.items() if before.get(key) != value}
    os.environ.clear()
    os.environ.update(before)
    made.wait()
    yield made, changed
    made.stop()


def test_a_study_outlives_the_prefect_server(
    server: tuple[TemporaryPrefectServer, dict[str, str]], tmp_path: Path
) -> None:
    hpo = Runner(tmp_path, server[1])
    process = hpo.start("tune", hpo.study("slow", search={"method": "random", "configs": 60, "max_resource": 2}))
    wait_for_entries(hpo, "toy", 6, process)
    server[0].stop()
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
    assert "The Prefect server is gone" in err
    assert "Traceback (most recent" not in out
    assert "clean" in hpo("audit", "toy")
