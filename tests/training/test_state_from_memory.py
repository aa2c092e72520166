"""States that a kept process hands from one attempt to the next: the bits of the file, or the file itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import random
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.job_requests import JobRequests
from hpo_core.execution.loop import CheckpointCleanup, Loop
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.devices.inventory import Device, HeldPartitions, Inventory, Portion, Slot
from hpo_core.model.events import Entry
from hpo_core.model.hops import Unit
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import TrainerPool

HERE = str(Path(__file__).parent)
OBJECTIVE = "memory_objectives:train"
PARTITIONS = tuple(f"part-{number}.npy" for number in range(3))


@dataclasses.dataclass
class Bench:
    """A trainer, and how far its trials have come."""

    trainer: Trainer
    folder: Path
    process: Any
    states: dict[int, Checkpoint] = dataclasses.field(default_factory=dict)
    attempts: int = 0

    def run(self, trial: int, target: int, **changes: Any) -> Report:
        """Train a trial on from where it stands; the report."""
        self.attempts += 1
        params = {"lr": 0.01 * (1 + trial)} | {
            name: changes.pop(name) for name in ("after", "megabytes") if name in changes
        }
        job = Job(trial, self.attempts, Rung(0, 0), target, params, checkpoint=self.states.get(trial))
        return self._run(job, **changes)

    def hop(self, trial: int, number: int) -> Report:
        """Train a model on one partition, after ``number`` others."""
        self.attempts += 1
        epoch, place = divmod(number, len(PARTITIONS))
        before = self.states.get(trial)
        unit = Unit(
            PARTITIONS[(trial + place) % len(PARTITIONS)], (trial + place) % len(PARTITIONS), place, len(PARTITIONS),
            number, state=f"hops/trial-{trial:05d}/attempt-1-unit-{number:06d}.safetensors", hopped=before is not None,
            cached=len(PARTITIONS) + 1,
        )  # fmt: skip
        start = None if before is None else msgspec.structs.replace(before, resource=epoch)
        job = Job(trial, self.attempts, Rung(0, 0), epoch + 1, {"lr": 0.01, "hops": True}, checkpoint=start, unit=unit)
        data = {"partition_folder": str(self.folder), "partitions": (unit.partition,), "load": "memory_units:load"}
        return self._run(job, **data)

    def _run(self, job: Job, **changes: Any) -> Report:
        request = JobRequest(
            study="s", job=job, objective=OBJECTIVE, metric="loss", seed=3 + job.trial, folder=str(self.folder),
            pythonpath=(HERE,), process=self.process, **changes,
        )  # fmt: skip
        report = self.trainer.run(request)
        if report.checkpoint is not None:
            self.states[job.trial] = report.checkpoint
        return report

    @property
    def file(self) -> Path:
        """Of the state of trial 0."""
        return self.folder / self.states[0].uri

    def begin_anew(self) -> None:
        self.states.clear()


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    """One for all: a fresh process ends the one that waits, so each test runs its fresh ones first."""
    found = Trainer(OBJECTIVE, (HERE,))
    yield found
    found.close()


@pytest.fixture
def kept(trainer: Trainer, tmp_path: Path) -> Bench:
    return _bench(trainer, tmp_path, "kept")


@pytest.fixture
def fresh(trainer: Trainer, tmp_path: Path) -> Bench:
    return _bench(trainer, tmp_path, "fresh")


def _bench(trainer: Trainer, tmp_path: Path, process: str) -> Bench:
    folder = tmp_path / process
    folder.mkdir()
    for number, name in enumerate(PARTITIONS):
        np.save(folder / name, np.arange(4.0) * number)
    return Bench(trainer, folder, process)


def from_memory(report: Report) -> bool:
    assert report.outcome is Outcome.COMPLETED, report.message
    assert report.usage
    return bool(report.usage.states_from_memory)


def told(report: Report) -> tuple[Any, ...]:
    """All that an attempt makes."""
    assert report.checkpoint is not None, report.message
    return report.metrics, report.curve, report.checkpoint.digest, report.checkpoint.size


def test_any_sequence_of_promotions_equals_one_without_memory(kept: Bench, fresh: Bench) -> None:
    draw = random.Random(0)
    ladders = {trial: [1, 3, 9, 10] for trial in range(3)}
    steps: list[tuple[int, int, str | None]] = []
    while ladders:
        last = steps[-1][0] if steps else 0
        trial = last if last in ladders and draw.random() < 0.6 else draw.choice(sorted(ladders))
        steps.append((trial, ladders[trial].pop(0), draw.choice((None, None, "change the model", "change the array"))))
        ladders = {trial: left for trial, left in ladders.items() if left}
    expected = [told(fresh.run(trial, target, after=after)) for trial, target, after in steps]
    hits, last = 0, None
    for (trial, target, after), wanted in zip(steps, expected, strict=True):
        report = kept.run(trial, target, after=after)
        assert told(report) == wanted
        hits += from_memory(report)
        assert trial == last or not from_memory(report)
        last = trial
    assert hits


def test_any_sequence_of_hops_equals_one_without_memory(kept: Bench, fresh: Bench) -> None:
    trials = random.Random(0).choices(range(2), k=12)
    steps = [(trial, trials[:place].count(trial)) for place, trial in enumerate(trials)]
    expected = [told(fresh.hop(*step)) for step in steps]
    reports = [kept.hop(*step) for step in steps]
    assert [told(report) for report in reports] == expected
    assert any(from_memory(report) for report in reports)


def test_a_promotion_takes_its_state_from_memory(kept: Bench) -> None:
    assert not from_memory(kept.run(0, 1))
    assert kept.trainer.holds == kept.states[0].digest
    assert from_memory(kept.run(0, 2))
    assert kept.file.is_file(), "the state is written all the same"


@pytest.mark.parametrize("after", ["change the model", "change the array"])
def test_what_the_function_changed_after_it_was_saved_is_read_from_the_file(
    kept: Bench, fresh: Bench, after: str
) -> None:
    expected = [told(fresh.run(0, target, after=after)) for target in (1, 2)]
    first, again = (kept.run(0, target, after=after) for target in (1, 2))
    assert [told(first), told(again)] == expected
    assert from_memory(again) == (after == "change the array"), "an array is a copy already"


def test_an_attempt_that_failed_leaves_nothing_behind(kept: Bench) -> None:
    kept.run(0, 1)
    assert kept.run(0, 2, after="end badly").outcome is Outcome.ERROR
    assert not kept.trainer.holds
    assert not from_memory(kept.run(0, 2))


def test_a_state_that_the_memory_limit_has_no_room_for_is_read_from_the_file(kept: Bench) -> None:
    def portion(memory: int) -> Portion:
        return Portion(device="node", architecture="CPU", compute=1000, memory=memory, cores=1000, capacity=1 << 40)

    wide, narrow = portion(1 << 40), portion(400 << 20)
    kept.run(0, 1, megabytes=100, portion=wide)
    assert kept.trainer.holds
    assert from_memory(kept.run(0, 2, megabytes=100, portion=wide))
    kept.begin_anew()
    report = kept.run(0, 1, megabytes=100, portion=narrow)
    assert report.outcome is Outcome.COMPLETED and kept.trainer.waiting[0] and not kept.trainer.holds
    assert not from_memory(kept.run(0, 2, megabytes=100, portion=narrow))


def test_a_file_that_is_gone_is_noticed_while_memory_holds_its_state(kept: Bench) -> None:
    kept.run(0, 1)
    kept.file.unlink()
    report = kept.run(0, 2)
    assert report.outcome is Outcome.CHECKPOINT_BAD and "is missing" in report.message


def test_damage_to_the_file_does_no_harm_while_memory_holds_its_state(kept: Bench, fresh: Bench) -> None:
    expected = [told(fresh.run(0, target)) for target in (1, 2)]
    kept.run(0, 1)
    data = bytearray(kept.file.read_bytes())
    data[-1] ^= 1
    kept.file.write_bytes(data)
    damaged = kept.states[0]
    report = kept.run(0, 2)
    assert from_memory(report) and told(report) == expected[1]
    kept.states[0] = damaged  # whoever reads it finds out
    assert kept.run(0, 2).outcome is Outcome.CHECKPOINT_BAD


def test_a_process_that_was_killed_takes_its_state_along(kept: Bench, fresh: Bench) -> None:
    expected = [told(fresh.run(0, target)) for target in (1, 2)]
    kept.run(0, 1)
    os.kill(kept.trainer.waiting[0], signal.SIGKILL)
    report = kept.run(0, 2)
    assert not from_memory(report) and told(report) == expected[1]


class Workers:
    """Executor of some workers with a slot each, whose jobs train in processes as on a cluster."""

    poll_seconds = 1.0

    def __init__(self, spec: StudySpec, folder: Path, workers: int) -> None:
        self._requests = JobRequests(spec, str(folder))
        self._pools = [TrainerPool() for _ in range(workers)]
        self._threads = ThreadPoolExecutor(workers)
        names = () if spec.data is None else [file.name for file in spec.partitioned.all_files]
        self._held = HeldPartitions(frozenset(names))
        self._ended: queue.Queue[tuple[OnReport, Job, Report]] = queue.Queue()

    def inventory(self) -> Inventory:
        return Inventory(tuple(Device(str(n), 1, partitions=self._held) for n in range(len(self._pools))))

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        run = self._pools[int(slot.name)].run
        self._threads.submit(lambda: self._ended.put((on_report, job, run(self._requests.of(job)))))

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None: ...

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        with contextlib.suppress(queue.Empty):
            on_report, job, report = self._ended.get(timeout=max(0.0, until - self.now()))
            on_report(job, report)
        return True

    def close(self) -> None:
        self._threads.shutdown()
        for pool in self._pools:
            pool.close_all()


SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"method": "asha", "min_resource": 1, "max_resource": 9, "reduction_factor": 3, "configs": 9},
    "pbt": {"method": "pbt", "population": 3, "generations": 3},
    "hops": {"method": "asha", "min_resource": 1, "max_resource": 2, "reduction_factor": 2, "configs": 2},
}


def spec_of(folder: Path, search: str) -> StudySpec:
    data: dict[str, Any] = {}
    if search == "hops":
        for number, name in enumerate(PARTITIONS):
            np.save(folder / name, np.arange(4.0) * number)
        data = {"data": {"partitions": [*PARTITIONS], "folder": str(folder), "load": "memory_units:load"}}
    plain: dict[str, Any] = {
        "study": "s", "objective": "memory_units:train", "pythonpath": [HERE], "seed": 5,
        "metric": {"name": "loss", "mode": "min"}, "search": SEARCHES[search], "training": {"process": "kept"},
        "space": {"lr": {"type": "float", "low": 0.1, "high": 0.9}}, "constants": {"hops": search == "hops"},
    }  # fmt: skip
    return with_partitions(StudySpec.from_plain(plain | data))


def run_study(spec: StudySpec, folder: Path, workers: int) -> list[Entry]:
    journal = MemoryJournal()
    study = Study.create(spec, journal)
    there = Workers(spec, folder, workers)
    try:
        executor = there if spec.data is None else HoppingExecutor(there, spec, folder)
        Loop(study, executor, checkpoints=CheckpointCleanup(study, folder)).run()
    finally:
        there.close()
    assert study.status == "finished" and not any(trial.failures for trial in study.state.trials)
    return list(journal.entries(spec.study))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "workers"),
    [("asha", 1), ("pbt", 2), ("hops", 1)],
)
def test_a_study_whose_states_stay_in_memory_has_the_results_of_fresh_processes(
    tmp_path: Path, search: str, workers: int
) -> None:
    """The record is trained again in fresh processes, on one worker."""
    entries = run_study(spec_of(tmp_path, search), tmp_path, workers)
    again = rerun_spec(entries, "again").plain() | {"training": {"process": "fresh"}}
    repeated = run_study(StudySpec.from_plain(again), tmp_path / "again", workers=1)
    reports = [audit(record) for record in (entries, repeated)]
    assert all(report.clean for report in reports)
    assert reports[1].states_from_memory == 0
    assert reports[0].states_from_memory > 0 or workers > 1, "with one worker the order is no chance"
    found = [Study.from_entries(record).state.trials for record in (entries, repeated)]
    for first, second in zip(*found, strict=True):
        assert first.params == second.params
        assert _digests(first) == _digests(second)


def _digests(trial: TrialRecord) -> list[tuple[Any, ...]]:
    """What its results are, and the digests of their checkpoints."""
    return [
        (result.resource, result.loss, None if result.checkpoint is None else result.checkpoint.digest)
        for result in trial.results
    ]
