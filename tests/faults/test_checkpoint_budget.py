"""A budget for checkpoints in a real study: files of real children, measured on disk all the time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hpo_core import Study
from tests.faults.test_real_study import Real


@pytest.mark.slow
@pytest.mark.usefixtures("storage")
def test_files_left_by_a_killed_controller_are_removed(tmp_path: Path) -> None:
    real = Real(tmp_path, "heavy", checkpoints={"max_count": 7})
    process = real.start()
    real.wait_for_entries(14, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = f"{real.spec.checkpoint_base}/trial-00001/rung-0-attempt-7.safetensors"
    real.put_checkpoint_file(left, b"recorded as removed, but the controller died before it could unlink it")
    part = f"{left}.part"
    real.put_checkpoint_file(part, b"begun")
    before = real.entries()
    process = real.start()
    real.wait_for_entries(before + 2, process)
    deadline = time.monotonic() + 600
    while {left, part} & real.checkpoint_files():
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.05)
    assert process.poll() is None, "it was only swept at the end"
    assert process.wait(600) == 0, real.log.read_text()[-3000:]
    study: Study = real.assert_whole()
    assert real.checkpoint_files() == study.checkpoints.uris and len(study.checkpoints) <= 7
