"""A budget for checkpoints in a real study: files of real children, measured on disk all the time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from hpo_core import Study
from hpo_core.model.events import CheckpointRemoved, JobGranted
from tests.faults.test_real_study import Real
from tests.methods import facts

SIZE = 300_000
LIMIT = 8 * SIZE


class Watcher(threading.Thread):
    """Measures the bytes of a study's checkpoints, again and again."""

    def __init__(self, real: Real) -> None:
        super().__init__(daemon=True)
        self.base = real.spec.checkpoint_base
        self.folder = real.home.study_folder("real") / self.base
        self.most = 0
        self.samples = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.002):
            try:
                first, second = self._files(), self._files()
            except FileNotFoundError:
                continue
            if first.keys() == second.keys():  # else files came or went meanwhile: no picture of one moment
                self.most = max(self.most, sum(first.values()))
                self.samples += 1

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _files(self) -> dict[tuple[str, int], int]:
        found = {}
        if "://" in self.base:
            filesystem, path = url_to_fs(self.base)
            filesystem.invalidate_cache()
            return {(name, 0): facts["size"] for name, facts in filesystem.find(path, detail=True).items()}
        for path in self.folder.glob("*/*"):
            status = path.stat()
            found[str(path), status.st_ino] = status.st_size
        return found


@pytest.mark.slow
@pytest.mark.usefixtures("storage")
def test_disk_use_stays_below_the_limit(tmp_path: Path) -> None:
    real = Real(tmp_path, "heavy", checkpoints={"max_bytes": LIMIT})
    watcher = Watcher(real)
    watcher.start()
    study = real.finish()
    watcher.stop()
    assert watcher.samples > 100 and 0.6 * LIMIT < watcher.most <= LIMIT, (watcher.most, watcher.samples)
    entries = list(real.home.open_journal().entries("real"))
    assert len(facts(entries, CheckpointRemoved)) > 10, "without a limit there would be 30 of them at least"
    for grant in facts(entries, JobGranted):
        gone = grant.trial in {event.trial for event in facts(entries, CheckpointRemoved)}
        assert grant.rung == 0 or grant.checkpoint is not None or gone
    assert real.checkpoint_files() == study.checkpoints.uris
    assert study.state.best_checkpoint() is not None


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
