"""A process that waits within a training for the study's answer: who gets it, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.worker import TrainerPool
from tests.job_requests import make_request
from tests.python.stopping_objectives import noted
from tests.waiting import eventually, gone

ROOT = Path(__file__).parents[2]
LEVELS = 1, 3, 9


class Bench:
    """A worker's pool, and jobs of trials of a search that stops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.pool = TrainerPool()

    def run(self, trial: int, rung: int, *, after: Checkpoint | None = None, **more: Any) -> Report:
        params = {"x": 1.0, "folder": str(self.notes)}
        job = Job(trial, rung, Rung(0, rung), LEVELS[rung], params, after)
        settings: dict[str, Any] = {"objective": "tests.python.stopping_objectives:draws", "asks": rung < 2, "seed": 3}
        report = self.pool.run(
            make_request(job=job, folder=str(self.folder), pythonpath=(str(ROOT),), **settings | more)
        )
        assert report.outcome is Outcome.COMPLETED, report.detail
        assert report.attempt == rung
        return report

    def processes(self, trial: int) -> list[int]:
        return list(dict.fromkeys(process for process, _ in noted(self.notes)[trial]))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.pool.close_all()


def test_the_next_job_of_the_trial_goes_on_and_no_other_job_ends_the_process(bench: Bench) -> None:
    first = bench.run(0, 0)
    (process,) = bench.processes(0)
    bench.run(1, 0)
    bench.run(2, 0, process="kept")
    assert not gone(process), "though no trainer was free, and whoever begins makes room"
    second, third = bench.run(0, 1), bench.run(0, 2)
    assert bench.processes(0) == [process]
    assert [step for _, step in noted(bench.notes)[0]] == list(range(9))
    curve = first.curve + second.curve + third.curve
    assert [point.resource for point in curve] == list(range(1, 10)), "each job tells of its own steps"
    assert first.ended <= second.started


def test_one_of_a_trial_that_was_stopped_ends_for_the_job_that_takes_its_slot_and_others_stay(bench: Bench) -> None:
    bench.pool.prepare("tests.python.stopping_objectives:draws", (str(ROOT),), jobs=3)
    eventually(lambda: not bench.pool._preparing)
    for trial in range(3):
        bench.run(trial, 0)
    waiting = {trial: bench.processes(trial)[0] for trial in range(3)}
    assert len(set(waiting.values())) == 3
    trainers = set(bench.pool._idle)
    bench.run(3, 0, over=((1, 0), (0, 7)))
    assert [trial for trial, process in waiting.items() if gone(process)] == [1]
    assert set(bench.pool._idle) == trainers, "it took the trainer of that process"
    bench.pool.cancel(str(bench.folder), 1, 0)  # it comes later than the job
    for trial in (0, 2, 3):
        bench.run(trial, 1)
        assert len(bench.processes(trial)) == 1


def test_the_memory_of_one_that_waits_for_an_answer_is_its_study_s(bench: Bench) -> None:
    bench.run(0, 0)
    assert bench.pool.processes() == {str(bench.folder): bench.processes(0)}
    bench.pool.cancel(str(bench.folder), 0, 0)
    assert bench.pool.processes() == {}


@pytest.mark.parametrize("which", [(), (0, 0)])
def test_a_cancel_ends_a_process_that_waits(bench: Bench, which: tuple[int, ...]) -> None:
    bench.run(0, 0)
    (process,) = bench.processes(0)
    bench.pool.cancel(f"{bench.folder}-other", *which)
    bench.pool.cancel(str(bench.folder), 0, 7)
    bench.pool.cancel(str(bench.folder), 1)
    assert not gone(process)
    assert bench.pool.cancel(str(bench.folder), *which) is False, "it does not run"
    eventually(lambda: gone(process))
    bench.run(0, 1)
    assert [step for _, step in noted(bench.notes)[0]] == [0, *range(3)]


def test_another_study_of_the_same_function_leaves_a_process_that_waits_until_its_training_is_over(
    bench: Bench,
) -> None:
    bench.run(0, 0)
    (process,) = bench.processes(0)
    trainer = bench.pool._idle[0]
    bench.pool.prepare(trainer.key[0], trainer.key[1], folder=f"{bench.folder}-other")
    assert not gone(process)
    bench.run(0, 1)
    assert not trainer.closed
    bench.run(0, 2)
    assert bench.processes(0) == [process]
    assert trainer.closed, "the other study imported the function anew"


def test_limits_and_measurements_are_those_of_each_job(bench: Bench) -> None:
    holds = {"objective": "tests.python.stopping_objectives:holds", "timeout": 60.0}
    reports = [bench.run(0, 0, stall_timeout=30.0, **holds), bench.run(0, 1, **holds), bench.run(0, 2, **holds)]
    assert len(bench.processes(0)) == 1
    for report, steps in zip(reports, LEVELS, strict=True):
        assert report.usage is not None
        assert report.usage.memory > steps * 3_500_000, "with what the jobs before left in the process"
    hung = "tests.python.stopping_objectives:hangs"
    bench.run(1, 0, objective=hung)
    job = Job(1, 1, Rung(0, 1), 3, {"x": 1.0, "folder": str(bench.notes)})
    request = make_request(
        job=job, folder=str(bench.folder), pythonpath=(str(ROOT),), objective=hung, asks=True, timeout=1.0, grace=0.5,
    )  # fmt: skip
    report = bench.pool.run(request)
    assert report.outcome is Outcome.TIMEOUT
    assert all(map(gone, bench.processes(1)))


def test_a_loop_of_another_library_ends_with_each_job_and_goes_on_from_its_checkpoint(bench: Bench) -> None:
    objective = "tests.python.stopping_objectives:loops_as_a_library"
    first = bench.run(0, 0, objective=objective)
    second = bench.run(0, 1, objective=objective, after=first.checkpoint)
    assert second.checkpoint is not None and second.checkpoint.resource == 3
    assert [step for _, step in noted(bench.notes)[0]] == [0, 1, 2]
    assert len(bench.processes(0)) == 2
