"""Kills in a real study: the controller at random moments, a Dask worker, a training child."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
from fsspec.core import url_to_fs

from hpo_core import Study, StudySpec
from hpo_core.home import Home
from hpo_core.model.errors import JournalError, StudyNotFoundError
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.replay.audit import audit
from tests.dask_processes import DaskProcesses, trainings_of
from tests.flows.conftest import LIMIT, at_load
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
CONFIGS = 30


class Real:
    """A study in a folder, and the controllers started on it."""

    url = ""
    """Where the checkpoints of all studies lie (fixture ``storage``); empty: below the study's folder."""

    def __init__(self, folder: Path, function: str = "slow", *, configs: int = CONFIGS, **changes: Any) -> None:
        self.home = Home(folder / "home")
        plain: dict[str, Any] = {
            "study": "real",
            "objective": f"tests.flows.objectives:{function}",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
            "search": {
                "method": "asha", "configs": configs, "min_resource": 1, "max_resource": 9, "reduction_factor": 3,
            },
            "seed": 3,
            "cluster": {"kind": "local", "workers": 2},
            "tracking": {"mlflow": "off"},
        }  # fmt: skip
        if self.url:
            changes["checkpoints"] = {"folder": f"{self.url}/{folder.name}"} | changes.get("checkpoints", {})
        self.spec = StudySpec.from_plain(plain | changes)
        self.file = folder / "study.json"
        self.file.write_text(json.dumps(plain | changes))
        self.log = folder / "log"

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.controller", str(self.home.folder), str(self.file)],
                stdout=log, stderr=log, cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    def entries(self) -> int:
        journal = self.home.open_journal()
        try:
            return journal.info("real").entries
        except (StudyNotFoundError, JournalError):
            return 0
        finally:
            journal.close()

    def wait_for_entries(self, count: int, process: subprocess.Popen[bytes], seconds: float = LIMIT) -> None:
        deadline = time.monotonic() + seconds
        while self.entries() < count and process.poll() is None:
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def until(self, condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
        """Wait for something while the controller lives."""
        return eventually(condition, process=process, said=lambda: self.log.read_text()[-3000:])

    def finish(self, trials: int | None = None) -> Study:
        process = self.start()
        assert process.wait(LIMIT) == 0, self.log.read_text()[-3000:]
        return self.assert_whole(trials)

    def assert_whole(self, trials: int | None = None) -> Study:
        """Check the record; ``trials``: how many there must be, where the search does not say so."""
        entries = list(self.home.open_journal().entries("real"))
        report = audit(entries)
        assert report.clean, report.findings
        study = Study.from_entries(entries)
        study.check()
        assert study.status == "finished"
        wanted = trials or getattr(study.spec.search, "configs", None)
        assert wanted is None or len(study.state.trials) == wanted
        assert all(trial.results for trial in study.state.trials), "a trial was lost"
        counted = Counter(
            (event.trial, event.rung) for entry in entries for event in entry.events if isinstance(event, JobCompleted)
        )
        assert set(counted.values()) == {1}, "a result was counted twice"
        return study

    def checkpoint_files(self) -> set[str]:
        folder, base = self.home.study_folder("real"), self.spec.checkpoint_base
        if "://" not in base:
            return {path.relative_to(folder).as_posix() for path in (folder / base).glob("*/*")}
        filesystem, path = url_to_fs(base)
        filesystem.invalidate_cache()
        return {f"{base}/{name.removeprefix(path).lstrip('/')}" for name in filesystem.find(path)}

    def put_checkpoint_file(self, uri: str, content: bytes) -> None:
        where = uri if "://" in uri else (self.home.study_folder("real") / uri).as_uri()
        with fsspec.open(where, "wb", auto_mkdir=True) if "://" not in uri else fsspec.open(where, "wb") as file:
            file.write(content)

    def read_checkpoint_file(self, uri: str) -> bytes:
        with fsspec.open(uri if "://" in uri else (self.home.study_folder("real") / uri).as_uri(), "rb") as file:
            return bytes(file.read())

    def metrics(self) -> dict[tuple[int, int], float]:
        entries = self.home.open_journal().entries("real")
        return {
            (event.trial, event.resource): event.metrics["loss"]
            for entry in entries
            for event in entry.events
            if isinstance(event, JobCompleted)
        }


def descendants(process: subprocess.Popen[bytes], word: str) -> list[psutil.Process]:
    """Processes below ``process`` whose command line holds ``word``, youngest first."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any(word in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return sorted(found, key=lambda child: -child.create_time())


@pytest.mark.slow
@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("kills", [3, 20])
def test_controller_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    (tmp_path / "calm").mkdir()
    configs = 12 + kills
    undisturbed = Real(tmp_path / "calm", configs=configs)
    calm = undisturbed.start()
    dice = random.Random(kills)
    (tmp_path / "stormy").mkdir()
    real = Real(tmp_path / "stormy", configs=configs)
    left: list[psutil.Process] = []
    for _ in range(kills):
        before = real.entries()
        process = real.start()
        real.wait_for_entries(before + 1, process)
        time.sleep(dice.uniform(0.0, 0.6))
        assert process.poll() is None, "the study ended before it was killed so often; make it longer"
        left += psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(left, timeout=at_load(20))
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], "orphans outlive their controller"
    real.finish()
    assert calm.wait(LIMIT) == 0
    undisturbed.assert_whole()
    # What both trained, whatever was lost in between, is the same to the last bit.
    stormy, peaceful = real.metrics(), undisturbed.metrics()
    shared = stormy.keys() & peaceful.keys()
    assert len(shared) >= configs
    assert {key: stormy[key] for key in shared} == {key: peaceful[key] for key in shared}


@pytest.mark.usefixtures("storage")
def test_a_killed_dask_worker_and_a_killed_child_are_recovered(tmp_path: Path, dask_processes: DaskProcesses) -> None:
    for name in ("one", "two"):
        dask_processes.add_worker(name)
    real = Real(tmp_path, configs=20, cluster=dask_processes.cluster)
    process = real.start()
    real.wait_for_entries(6, process)

    def kill_one(find: Callable[[], list[psutil.Process]]) -> None:
        def killed() -> bool:  # between two jobs a zygote trains nothing; and processes end while they are looked at
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if found := find():
                    os.kill(found[0].pid, signal.SIGKILL)
                    return True
            return False

        real.until(killed, process)

    def that_train() -> list[tuple[psutil.Process, psutil.Process]]:
        """A worker and the child of its zygote, whose job cannot end any more before they do."""
        for worker in dask_processes.training():
            for child in (child for zygote in worker.children() for child in trainings_of(zygote)):
                child.suspend()
                if child.status() == psutil.STATUS_STOPPED:
                    return [(worker, child)]
                child.resume()  # it has not stopped yet, or ends: else it would stand still to the end of the test
        return []

    kill_one(lambda: [child for _, child in that_train()])
    real.wait_for_entries(10, process)
    kill_one(lambda: [worker for worker, _ in that_train()])
    assert process.wait(LIMIT) == 0, real.log.read_text()[-3000:]
    real.assert_whole()
    entries = real.home.open_journal().entries("real")
    outcomes = Counter(
        str(event.outcome) for entry in entries for event in entry.events if isinstance(event, AttemptFailed)
    )
    assert outcomes["lost"] >= 1, outcomes
    assert outcomes["out_of_memory"] + outcomes["crashed"] == 1, outcomes


@pytest.mark.slow
@pytest.mark.usefixtures("storage")
def test_second_controller_is_refused_and_a_forced_one_fences_the_first(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.write_text("6")  # on a busy machine the study would end before the second one has started
    real = Real(tmp_path, "held", configs=12, constants={"gate": str(gate)})
    first = real.start()
    real.wait_for_entries(5, first)
    second = real.start()
    assert second.wait(LIMIT) != 0
    assert f"is being driven by process {first.pid}" in real.log.read_text()
    assert first.poll() is None, "the refused one must not disturb the first"
    from hpo_core.journal.protocol import Owner

    journal = real.home.open_journal()
    journal.claim("real", Owner("elsewhere", 1, 0.0), force=True)
    journal.close()
    gate.unlink()
    assert first.wait(LIMIT) != 0
    told = real.log.read_text()  # by its next entry, or by the renewal of its claim
    assert "took the study over" in told or "was taken over by another controller" in told
    journal = real.home.open_journal()
    epoch = journal.info("real").epoch
    journal.release("real", epoch)
    journal.close()
    real.finish()


@pytest.mark.slow
@pytest.mark.usefixtures("storage")
def test_a_corrupt_checkpoint_makes_the_trial_start_earlier(tmp_path: Path) -> None:
    real = Real(tmp_path, configs=12)
    process = real.start()
    real.wait_for_entries(8, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    files = sorted(real.checkpoint_files())
    assert files
    for file in files:
        real.put_checkpoint_file(file, real.read_checkpoint_file(file)[:-3])
    study = real.finish()
    assert any(trial.condemned for trial in study.state.trials)


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
    real.until(lambda: not {left, part} & real.checkpoint_files(), process)
    assert process.poll() is None, "it was only swept at the end"
    assert process.wait(600) == 0, real.log.read_text()[-3000:]
    study: Study = real.assert_whole()
    assert real.checkpoint_files() == study.checkpoints.uris and len(study.checkpoints) <= 7
