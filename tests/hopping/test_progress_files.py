"""What is on the disk while models hop: at each moment, what a later controller can go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.execution.executor import OnReport
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.hopping.progress_files import ProgressFiles
from hpo_core.execution.loop import Loop
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.errors import StorageError
from hpo_core.model.trial import Checkpoint, Job, Report
from tests.hopping.hopping_studies import VirtualHopping


class OnDisk(VirtualHopping):
    """Virtual units whose states are files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(search={"method": "random", "max_resource": 4, "configs": 3})
        self.folder = folder
        self.units.submit = self._writing(self.units.submit)  # type: ignore[method-assign]
        self.executor = HoppingExecutor(self.units, self.study.spec, folder)
        self.loop = Loop(self.study, self.executor)

    def _writing(self, submit: Any) -> Any:
        def written(job: Job, slot: Slot, on_report: OnReport) -> None:
            def noted(of: Job, report: Report) -> None:
                if report.checkpoint is not None:
                    path = self.folder / report.checkpoint.uri
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
                on_report(of, report)

            submit(job, slot, noted)

        return written

    def named(self) -> dict[int, bool]:
        """By trial whose progress is on the disk: whether the state that it names is there."""
        files = ProgressFiles(self.folder)
        return {
            trial.number: files.find(Job(trial.number, 0, trial.rung, 4, trial.params)) is not None
            for trial in self.study.state.trials
            if (self.folder / f"hops/trial-{trial.number:05d}/progress.msgpack").exists()
        }


def test_progress_names_no_state_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is killed between any two files goes on from the last epoch that ended."""
    hopping = OnDisk(tmp_path)
    looked = 0
    remove = ProgressFiles.remove_state

    def looking(files: ProgressFiles, state: Checkpoint) -> None:
        nonlocal looked
        remove(files, state)
        there = hopping.named()
        looked += len(there)
        assert all(there.values())

    monkeypatch.setattr(ProgressFiles, "remove_state", looking)
    hopping.run().judge()
    assert looked > 9


def test_progress_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk halts the study; what was reached before it is not repeated."""
    hopping = OnDisk(tmp_path)
    save = ProgressFiles.save

    def full(files: ProgressFiles, trial: int, progress: Any) -> None:
        if progress.epoch == 3:
            raise StorageError("no space left")
        save(files, trial, progress)

    monkeypatch.setattr(ProgressFiles, "save", full)
    hopping.run()
    assert hopping.study.status != "finished"
    there = hopping.named()
    assert there and all(there.values())
