"""What lies in ``hops/`` while models hop: at each moment a controller that comes next can go on from it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.checkpoints.files import load
from hpo_core.execution.hopping.hopped_job import HoppedJob, JobProgress, ProgressFiles
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualAttempt
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from tests.checkpoints.saving import save
from tests.hopping.hopping_studies import VirtualHopping
from tests.virtual_units import VirtualUnits

SEARCH = {"method": "random", "max_resource": 4, "configs": 3}


class UnitsThatWrite(VirtualUnits):
    """Each unit leaves a state, as real ones do."""

    folder: Path

    def _result(self, attempt: VirtualAttempt) -> Report:
        report = super()._result(attempt)
        if report.checkpoint is not None:
            path = self.folder / report.checkpoint.uri
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"state")
        return report


def on_disk(folder: Path) -> VirtualHopping:
    world = VirtualHopping(search=SEARCH)
    world.units.__class__ = UnitsThatWrite
    world.units.folder = folder  # type: ignore[attr-defined]
    world.executor = HoppingExecutor(world.units, world.study.spec, folder)
    world.loop = Loop(world.study, world.executor)
    return world


def resumable(folder: Path) -> list[int]:
    """Trials whose progress is there; each of them names a state that is there."""
    found = []
    for path in folder.glob("hops/*/progress.msgpack"):
        progress = msgspec.msgpack.decode(path.read_bytes(), type=JobProgress)
        assert (folder / progress.state.uri).is_file(), "it could not be gone on from"
        found.append(int(path.parent.name.removeprefix("trial-")))
    return found


def test_saved_progress_names_a_state_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for name in ("save", "remove_state"):
        original = getattr(ProgressFiles, name)

        def checked(self: ProgressFiles, *words: Any, original: Any = original) -> None:
            seen.append(resumable(tmp_path))  # a kill -9 just before
            original(self, *words)
            seen.append(resumable(tmp_path))  # or just after

        monkeypatch.setattr(ProgressFiles, name, checked)
    on_disk(tmp_path).run().judge()
    assert any(seen) and not list(tmp_path.glob("hops/*"))


def test_a_full_disk_costs_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = on_disk(tmp_path)
    original = ProgressFiles.save

    def full(self: ProgressFiles, trial: int, progress: JobProgress) -> None:
        if progress.epoch >= 2:
            raise StorageError("the disk is full")
        original(self, trial, progress)

    monkeypatch.setattr(ProgressFiles, "save", full)
    world.loop.run()
    assert world.study.status == "halted"
    assert resumable(tmp_path)
    assert set(resumable(tmp_path)) <= set(world.study.state.waiting)


@pytest.mark.parametrize("often", [1, 2])
def test_a_state_that_is_lost_on_its_way_costs_an_epoch(tmp_path: Path, often: int) -> None:
    """The second time, the state at the end of the epoch may be the damaged one: the job begins again."""
    world = on_disk(tmp_path)
    original, lost, epochs = world.units._result, [], []

    def result(attempt: VirtualAttempt) -> Report:
        job = attempt.job
        if job.trial == 0:
            epochs.append(job.target)
            if job.target == 3 and job.unit.place == 1 and len(lost) < often:
                lost.append(job)
                return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.CHECKPOINT_BAD, message="gone")
        return original(attempt)

    world.units._result = result
    world.run().judge()
    assert len(lost) == often
    assert epochs.count(1) == 3 * often, "from the end of epoch 2 at first, then from the beginning"


def test_time_of_an_epoch_is_that_of_epochs_that_were_measured(tmp_path: Path) -> None:
    """A job that goes on from its eighth epoch has not been measured in the first eight."""
    training = HoppedJob(Job(0, 1, Rung(0, 0), 9, {}), lambda *_: None, names=["part-0"], weights=[1.0], trained_on=1)
    state = Checkpoint("hops/trial-00000/attempt-0-unit-000007.safetensors", "", 8, 5)
    training.go_on_from(JobProgress(origin=None, params={}, epoch=8, state=state, points=(), elapsed=80.0))
    job = training.unit_job(0, 0, base="checkpoints", cached=1)
    usage = Usage(memory=1, cores=1.0, startup_seconds=0.1, unit_seconds=10.0)
    training.take(job, Report(trial=0, attempt=1, outcome=Outcome.COMPLETED, checkpoint=state, usage=usage))
    training.end_epoch()
    found = training.failed(Outcome.PREEMPTED, "").usage
    assert isinstance(found, Usage) and found.unit_seconds == 10.0


def test_links_in_the_folder_of_hops_are_not_followed(tmp_path: Path) -> None:
    """Somebody who may write there must not have us read, write or remove files elsewhere."""
    study, outside = tmp_path / "study", tmp_path / "outside"
    for folder in (study / "hops" / "trial-00000", outside):
        folder.mkdir(parents=True, mode=0o700)
    precious = outside / "precious"
    precious.write_bytes(b"precious")
    files = ProgressFiles(study)
    own = study / "hops" / "trial-00000"
    job = Job(0, 1, Rung(0, 0), 9, {})
    state = Checkpoint("hops/trial-00000/state.safetensors", "", 8, 5)
    (study / state.uri).write_bytes(b"state")
    progress = JobProgress(origin=None, params={}, epoch=8, state=state, points=(), elapsed=80.0)

    partial = own / "progress.msgpack.part"
    partial.symlink_to(precious)
    with contextlib.suppress(StorageError):
        files.save(0, progress)
    assert precious.read_bytes() == b"precious"
    partial.unlink(missing_ok=True)
    files.save(0, progress)
    assert files.find(job) == progress

    there = own / "progress.msgpack"
    there.replace(outside / "progress.msgpack")
    there.symlink_to(outside / "progress.msgpack")
    assert files.find(job) is None
    there.unlink()
    os.mkfifo(there)
    assert files.find(job) is None, "and it does not wait for a writer"
    there.unlink()
    for uri in ("hops/../../outside/precious", "hops/trial-00001/precious", "hops/trial-00000/link"):
        led_out = msgspec.structs.replace(progress, state=msgspec.structs.replace(state, uri=uri))
        if not (study / "hops" / "trial-00001").exists():
            (study / "hops" / "trial-00001").symlink_to(outside)
            (own / "link").symlink_to(precious)
        there.unlink(missing_ok=True)
        files.save(0, led_out)
        assert files.find(job) is None
        files.remove_state(led_out.state)
        assert precious.read_bytes() == b"precious"
    files.remove(1, (1, 0))
    files.keep_only([])
    assert precious.read_bytes() == b"precious"

    with pytest.raises(StorageError, match="symbolic link"):
        save(study, "hops/trial-00001/state.safetensors", {}, resource=1, durable=False)
    with pytest.raises(CheckpointError, match="symbolic link"):
        load(study, msgspec.structs.replace(state, uri="hops/trial-00001/precious"), "hops")
