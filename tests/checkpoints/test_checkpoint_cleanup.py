"""The driver's housekeeping with real files, which its executor writes in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.storage import files_of_attempt
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.loop import CheckpointCleanup, Loop, Takeover
from hpo_core.journal.protocol import Owner
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.trial import Checkpoint, Job, Rung
from tests.checkpoints.saving import save
from tests.conftest import completed, failed, make_spec
from tests.methods import SEARCHES

NAME = "checkpoints/trial-{0.trial:05d}/rung-{0.rung}-attempt-{0.attempt}.safetensors"


class Here:
    """Runs each job as soon as it is submitted, its report waits; measures the folder after each write."""

    def __init__(self, folder: Path, size: int, crash_every: int = 0) -> None:
        self.folder = folder
        self.size = size
        self.crash_every = crash_every
        self.jobs = 0
        self.most = 0
        self.reported: set[tuple[int, int]] = set()

    def inventory(self) -> Inventory:
        return Inventory.of(3)

    poll_seconds = 1.0

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        inbox.wait(until - time.monotonic())
        return True

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Of a trial that a search stops at a rung, the process may wait; it has reported."""
        assert self.reported.issuperset(attempts), "an attempt was cancelled although the study wants it"

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self.jobs += 1
        self.reported.add(job.key)
        if job.checkpoint is not None:
            owner = job.trial if job.parent is None else job.parent
            assert checkpoints.load(self.folder, job.checkpoint)["trial"] == owner
        written = self._write(job)
        self.most = max(self.most, sum(path.stat().st_size for path in self.folder.glob("checkpoints/*/*")))
        if self.crash_every and self.jobs % self.crash_every == 0:  # it was written, but nobody heard of it
            (self.folder / written.uri).with_suffix(".safetensors.part").write_bytes(b"begun again")
            on_report(job, failed(job, Outcome.CRASHED))
            return
        report = completed(job, float(job.params["x"]) + 1 / job.target, checkpoint=written)
        on_report(job, report)
        if self.jobs % 5 == 0:
            on_report(job, report)  # told twice

    def _write(self, job: Job) -> Checkpoint:
        tree: dict[str, Any] = {"trial": job.trial, "ballast": "x" * self.size}
        return save(self.folder, NAME.format(job), tree, resource=job.target)


def drive(folder: Path, executor: Here, **changes: Any) -> Study:
    study = Study.create(make_spec(training={"retries": {"crashed": 5}}, **changes), MemoryJournal())
    for name in ("study", "checkpoints"):
        (folder / name).mkdir(exist_ok=True)
    takeover = Takeover(owner=Owner("here", 1, 0.0))
    assert Loop(study, executor, checkpoints=CheckpointCleanup(study, folder), takeover=takeover).run() == "finished"
    return study


@pytest.mark.parametrize("method", ["asha", "sha", "stopping"])
def test_files_stay_below_the_limit_whatever_attempts_leave_behind(method: str, tmp_path: Path) -> None:
    executor = Here(tmp_path, 50_000, crash_every=7)
    study = drive(tmp_path, executor, search=SEARCHES[method], checkpoints={"max_bytes": 400_000})
    assert 250_000 < executor.most <= 400_000
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("checkpoints/*/*")}
    assert files == study.checkpoints.uris and study.state.failed_attempts > 2


def test_the_pattern_of_an_attempt_names_its_files_and_no_others(tmp_path: Path) -> None:
    for attempt in (1, 11):
        for end in ("", ".part"):
            path = tmp_path / (NAME.format(Job(7, attempt, Rung(0, 2), 9, {})) + end)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    assert sorted(path.name for path in tmp_path.glob(files_of_attempt(7, 1))) == [
        "rung-2-attempt-1.safetensors", "rung-2-attempt-1.safetensors.part",
    ]  # fmt: skip


class Slow(Here):
    cancelled: list[tuple[int, int]]

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        if job.trial == 0:
            self.cancelled = []
            self._end = lambda: on_report(job, failed(job, Outcome.PREEMPTED))
        else:
            super().submit(job, slot, on_report)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        self.cancelled += attempts
        self._end()


def test_a_trial_that_the_search_stops_while_it_trains_is_cancelled(tmp_path: Path) -> None:
    executor = Slow(tmp_path, 100)
    search = {"method": "pbt", "population": 3, "generations": 6, "stragglers": 3}
    study = drive(tmp_path, executor, search=search)
    assert set(executor.cancelled) == {(0, 0)}
    assert study.state.trials[0].status == "stopped" and study.state.ignored_reports >= 1
    assert len(study.state.trials) == 18, "its member went on"
