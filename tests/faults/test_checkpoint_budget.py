"""A budget for checkpoints in a real study: files of real children, measured on disk all the time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.model.events import CheckpointRemoved, JobGranted
from tests.faults.test_real_study import Real
from tests.methods import facts

SIZE = 300_000
LIMIT = 8 * SIZE


class Watcher(threading.Thread):
    """Measures the bytes below a folder, again and again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
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
        for path in self.folder.glob("*/*"):
            status = path.stat()
            found[str(path), status.st_ino] = status.st_size
        return found


def test_disk_use_stays_below_the_limit(tmp_path: Path) -> None:
    real = Real(tmp_path, "heavy", checkpoints={"max_bytes": LIMIT})
    watcher = Watcher(real.home.folder / "studies" / "real" / "checkpoints")
    watcher.start()
    study = real.finish()
    watcher.stop()
    assert watcher.samples > 100 and 0.6 * LIMIT < watcher.most <= LIMIT, (watcher.most, watcher.samples)
    entries = list(real.home.open_journal().entries("real"))
    assert len(facts(entries, CheckpointRemoved)) > 10, "without a limit there would be 30 of them at least"
    for grant in facts(entries, JobGranted):
        gone = grant.trial in {event.trial for event in facts(entries, CheckpointRemoved)}
        assert grant.rung == 0 or grant.checkpoint is not None or gone
    assert files_of(real) == study.checkpoints.uris
    assert study.state.best_checkpoint() is not None


@pytest.mark.slow
def test_files_left_by_a_killed_controller_are_removed(tmp_path: Path) -> None:
    real = Real(tmp_path, "heavy", checkpoints={"max_count": 7})
    process = real.start()
    real.wait_for_entries(14, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = real.home.study_folder("real") / "checkpoints" / "trial-00001" / "rung-0-attempt-7.safetensors"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"recorded as removed, but the controller died before it could unlink it")
    part = left.with_name(left.name + ".part")
    part.write_bytes(b"begun")
    before = real.entries()
    process = real.start()
    real.wait_for_entries(before + 2, process)
    deadline = time.monotonic() + 600
    while left.exists() or part.exists():
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.01)
    assert process.poll() is None, "it was only swept at the end"
    assert process.wait(600) == 0, real.log.read_text()[-3000:]
    study: Study = real.assert_whole()
    assert files_of(real) == study.checkpoints.uris and len(study.checkpoints) <= 7


def files_of(real: Real) -> set[str]:
    folder = real.home.study_folder("real")
    return {path.relative_to(folder).as_posix() for path in (folder / "checkpoints").glob("*/*")}


@pytest.mark.slow
def test_disk_use_of_a_population_does_not_grow_with_its_generations(tmp_path: Path) -> None:
    """Two generations to meet, the one that fills, the best, and what two jobs write."""
    members, generations = 4, 15
    search = {"method": "pbt", "population": members, "generations": generations}
    real = Real(tmp_path, "heavy", search=search)
    watcher = Watcher(real.home.folder / "studies" / "real" / "checkpoints")
    watcher.start()
    study = real.finish(members * generations)
    watcher.stop()
    assert watcher.samples > 100 and 4 * SIZE < watcher.most <= 15 * SIZE, (watcher.most, watcher.samples)
    best = study.best
    assert best is not None
    left = {path.parent.name for path in (real.home.folder / "studies" / "real" / "checkpoints").glob("*/*")}
    assert f"trial-{best.trial:05d}" in left and len(left) <= 13, left
