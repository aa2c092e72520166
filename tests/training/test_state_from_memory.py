"""States that a kept process hands from one attempt to the next: the bits of the file, or the file itself."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.hops import Unit
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest

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
        data = {"partition_folder": str(self.folder), "partitions": (unit.partition,), "load": "memory_objectives:load"}
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
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Trainer]]:
    found = {process: Trainer(OBJECTIVE, (HERE,)) for process in ("fresh", "kept")}
    yield found
    for trainer in found.values():
        trainer.close()


@pytest.fixture
def kept(trainers: dict[str, Trainer], tmp_path: Path) -> Bench:
    return _bench(trainers, tmp_path, "kept")


@pytest.fixture
def fresh(trainers: dict[str, Trainer], tmp_path: Path) -> Bench:
    return _bench(trainers, tmp_path, "fresh")


def _bench(trainers: dict[str, Trainer], tmp_path: Path, process: str) -> Bench:
    folder = tmp_path / process
    folder.mkdir()
    for number, name in enumerate(PARTITIONS):
        np.save(folder / name, np.arange(4.0) * number)
    return Bench(trainers[process], folder, process)


def from_memory(report: Report) -> bool:
    assert report.outcome is Outcome.COMPLETED, report.message
    assert report.usage
    return bool(report.usage.states_from_memory)


def told(report: Report) -> tuple[Any, ...]:
    """All that an attempt makes."""
    assert report.checkpoint is not None, report.message
    return report.metrics, report.curve, report.checkpoint.digest, report.checkpoint.size


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_promotions_equals_one_without_memory(kept: Bench, fresh: Bench, seed: int) -> None:
    draw, hits = random.Random(seed), 0
    ladders = {trial: iter((1, 3, 9, 10)) for trial in range(3)}
    trial = 0
    while ladders:
        trial = trial if trial in ladders and draw.random() < 0.6 else draw.choice(sorted(ladders))
        target = next(ladders[trial], None)
        if target is None:
            del ladders[trial]
            continue
        mine = kept.trainer.holds == getattr(kept.states.get(trial), "digest", None)
        after = draw.choice((None, None, "change the model", "change the array"))
        report = kept.run(trial, target, after=after)
        assert told(report) == told(fresh.run(trial, target, after=after))
        hits += from_memory(report)
        assert mine or not from_memory(report)
    assert hits


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_hops_equals_one_without_memory(kept: Bench, fresh: Bench, seed: int) -> None:
    draw, hits = random.Random(seed), 0
    done = dict.fromkeys(range(2), 0)
    for _ in range(12):
        trial = draw.choice(sorted(done))
        report = kept.hop(trial, done[trial])
        assert told(report) == told(fresh.hop(trial, done[trial]))
        done[trial] += 1
        hits += from_memory(report)
    assert hits


def test_a_promotion_takes_its_state_from_memory(kept: Bench) -> None:
    assert not from_memory(kept.run(0, 1))
    assert kept.trainer.holds == kept.states[0].digest
    assert from_memory(kept.run(0, 2))
    assert kept.file.is_file(), "the state is written all the same"


def test_one_state_is_held_and_another_trial_takes_its_place(kept: Bench) -> None:
    kept.run(0, 1)
    assert not from_memory(kept.run(1, 1))
    assert kept.trainer.holds == kept.states[1].digest
    assert not from_memory(kept.run(0, 2))


@pytest.mark.parametrize("after", ["change the model", "change the array"])
def test_what_the_function_changed_after_it_was_saved_is_read_from_the_file(
    kept: Bench, fresh: Bench, after: str
) -> None:
    for bench in (kept, fresh):
        bench.run(0, 1, after=after)
    again = kept.run(0, 2)
    assert told(again) == told(fresh.run(0, 2))
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
    for bench in (kept, fresh):
        bench.run(0, 1)
    data = bytearray(kept.file.read_bytes())
    data[-1] ^= 1
    kept.file.write_bytes(data)
    damaged = kept.states[0]
    report = kept.run(0, 2)
    assert from_memory(report) and told(report) == told(fresh.run(0, 2))
    kept.states[0] = damaged  # whoever reads it finds out
    assert kept.run(0, 2).outcome is Outcome.CHECKPOINT_BAD


def test_a_process_that_was_killed_takes_its_state_along(kept: Bench, fresh: Bench) -> None:
    for bench in (kept, fresh):
        bench.run(0, 1)
    os.kill(kept.trainer.waiting[0], signal.SIGKILL)
    report = kept.run(0, 2)
    assert not from_memory(report) and told(report) == told(fresh.run(0, 2))


def test_a_state_of_another_folder_is_not_taken(kept: Bench) -> None:
    """Two studies may have written the same bytes; each has files of its own."""
    kept.run(0, 1)
    moved = kept.states[0]
    shutil.copy(kept.file, kept.folder / "elsewhere.safetensors")
    kept.states[0] = msgspec.structs.replace(moved, uri="elsewhere.safetensors")
    report = kept.run(0, 2)
    assert report.outcome is Outcome.CHECKPOINT_BAD or not from_memory(report)
