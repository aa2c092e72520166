"""An attempt that exceeds a limit of time, by a clock that the training function moves: right on any machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from tests.job_requests import make_request

HERE = str(Path(__file__).parent)
OBJECTIVE = "limit_objectives:train"
BEYOND = 3600.0
"""What a step lasts, and what a file takes, in seconds of that clock. The limits are between it and what is real."""
LIMIT = 1000.0


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    trainer = Trainer(OBJECTIVE, (HERE,))
    yield trainer
    trainer.close()


@dataclasses.dataclass
class Bench:
    trainer: Trainer
    folder: Path

    def run(self, *, target: int = 1, attempt: int = 0, checkpoint: Checkpoint | None = None, **options: Any) -> Report:
        names = ("timeout", "stall_timeout", "storage_timeout", "checkpoint_base", "log_limit")
        limits = {name: options.pop(name) for name in names if name in options}
        job = Job(0, attempt, Rung(0, 0), target, {"lasts": BEYOND, **options}, checkpoint)
        return self.trainer.run(
            make_request(
                job=job, objective=OBJECTIVE, folder=str(self.folder),
                pythonpath=(HERE,), grace=300.0, **limits,
            )
        )  # fmt: skip

    @property
    def far(self) -> str:
        return f"slow://{self.folder}/far"


@pytest.fixture
def bench(trainer: Trainer, tmp_path: Path) -> Bench:
    return Bench(trainer, tmp_path)


def test_an_attempt_beyond_its_timeout_is_ended(bench: Bench) -> None:
    report = bench.run(target=9, at=4, timeout=LIMIT)
    assert report.outcome is Outcome.TIMEOUT
    assert "training.timeout = 1000 s; it had done 4 of 9 steps" in report.message
    assert "in sleeps" in report.detail  # the stack when it was ended


def test_time_in_which_the_watching_process_stood_still_counts_for_no_limit(bench: Bench) -> None:
    """It, and what it watches, may have been stopped: by Slurm, by a person, by a lid that was closed."""
    report = bench.run(target=3, stands_still_at=1, timeout=LIMIT, stall_timeout=LIMIT, storage_timeout=LIMIT)
    assert report.outcome is Outcome.COMPLETED, report
    assert BEYOND - 10 < report.stood_still <= BEYOND
    assert 0.0 <= report.seconds < LIMIT


def test_a_limit_goes_on_after_a_standstill(bench: Bench) -> None:
    report = bench.run(target=9, stands_still_at=1, at=4, timeout=LIMIT)
    assert report.outcome is Outcome.TIMEOUT


def test_an_attempt_without_steps_is_hung(bench: Bench) -> None:
    report = bench.run(target=9, at=2, stall_timeout=LIMIT)
    assert report.outcome is Outcome.HUNG
    assert "training.stall_timeout = 1000 s; it had done 2 of 9 steps" in report.message


def test_a_timeouts_detail_has_the_end_of_a_long_log(bench: Bench) -> None:
    report = bench.run(target=2, at=1, lines=20_000, timeout=LIMIT, log_limit=100_000)
    assert report.outcome is Outcome.TIMEOUT
    assert "the last line" in report.detail and "in sleeps" in report.detail
    assert b"in sleeps" in (bench.folder / "logs/trial-00000-attempt-0.log").read_bytes()


def test_the_stall_timeout_does_not_count_saving_and_loading(bench: Bench) -> None:
    """Each file takes as long as three and a half stall limits."""
    limits = {"stall_timeout": LIMIT, "storage_timeout": 10 * BEYOND, "checkpoint_base": bench.far}
    first = bench.run(**limits)
    assert first.outcome is Outcome.COMPLETED, first
    second = bench.run(attempt=1, target=2, checkpoint=first.checkpoint, **limits)
    assert second.outcome is Outcome.COMPLETED, second


def test_saving_beyond_the_storage_timeout_is_a_storage_error(bench: Bench) -> None:
    report = bench.run(stall_timeout=10 * BEYOND, storage_timeout=LIMIT, checkpoint_base=bench.far)
    assert report.outcome is Outcome.STORAGE
    assert "longer to write or read than 1000 s" in report.message
