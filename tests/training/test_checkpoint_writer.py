"""Large states of kept processes: the worker writes them while the process trains its next attempt."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from hpo_core.checkpoints import files
from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.child.checkpoint_writer import CheckpointWriter
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import TrainerPool

HERE = str(Path(__file__).parent)
OBJECTIVE = "large_state_objectives:train"
LARGE, SMALL = 9.0, 0.001
"""Megabytes of states that are written behind, and before the report."""
WAIT = 60.0


def request_for(folder: Path, trial: int, attempt: int, target: int, **changes: Any) -> JobRequest:
    params = {"megabytes": changes.pop("megabytes", LARGE)}
    job = Job(trial, attempt, Rung(0, 0), target, params, checkpoint=changes.pop("checkpoint", None))
    return JobRequest(
        study="s", job=job, objective=OBJECTIVE, metric="loss", seed=3 + trial, folder=str(folder),
        pythonpath=(HERE,), **{"process": "kept"} | changes,
    )  # fmt: skip


@dataclasses.dataclass
class Bench:
    """A trainer, and how far its trials have come."""

    trainer: Trainer
    folder: Path
    states: dict[int, Checkpoint] = dataclasses.field(default_factory=dict)
    attempts: int = 0

    def run(
        self, trial: int, target: int, on_free: Callable[[CheckpointWriter], None] | None = None, **changes: Any
    ) -> Report:
        self.attempts += 1
        request = request_for(self.folder, trial, self.attempts, target, checkpoint=self.states.get(trial), **changes)
        report = self.trainer.run(request, on_free)
        if report.checkpoint is not None:
            self.states[trial] = report.checkpoint
        return report

    def process_of(self, report: Report) -> int:
        assert report.outcome is Outcome.COMPLETED, report.message
        return int((self.folder / f"logs/trial-{report.trial:05d}-attempt-{report.attempt}.log").read_text())

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.safetensors*"))

    @property
    def next_file(self) -> Path:
        """Of the checkpoint of the next attempt of trial 0."""
        return self.folder / f"checkpoints/trial-00000/rung-0-attempt-{self.attempts + 1}.safetensors"


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    found = Trainer(OBJECTIVE, (HERE,))
    yield found
    found.close()


@pytest.fixture
def bench(trainer: Trainer, tmp_path: Path) -> Bench:
    return Bench(trainer, tmp_path)


def told(report: Report) -> tuple[Any, ...]:
    """All that an attempt makes."""
    assert report.checkpoint is not None, report.message
    return report.metrics, report.checkpoint.digest, report.checkpoint.size, report.checkpoint.resource


def test_states_have_the_bits_of_those_that_are_written_first(bench: Bench, tmp_path: Path) -> None:
    fresh_trainer = Trainer(OBJECTIVE, (HERE,))
    fresh = Bench(fresh_trainer, tmp_path / "fresh")
    draw, freed, hits = random.Random(1), list[CheckpointWriter](), 0
    try:
        reached = dict.fromkeys(range(3), 0)
        for _ in range(9):
            trial = draw.choice(sorted(reached))
            reached[trial] += 1
            report = bench.run(trial, reached[trial], freed.append)
            written_first = fresh.run(trial, reached[trial], process="fresh")
            assert told(report) == told(written_first)
            assert report.checkpoint is not None and written_first.checkpoint is not None
            assert report.checkpoint.parent == written_first.checkpoint.parent
            files.verify(bench.folder / report.checkpoint.uri, report.checkpoint, bench.folder)
            hits += bool(report.usage and report.usage.states_from_memory)
        assert len(freed) == 9
        assert hits, "a state is taken from memory there, too"
        assert bench.trainer.holds == report.checkpoint.digest
    finally:
        fresh_trainer.close()


def test_the_process_trains_the_next_attempt_while_the_state_is_written(bench: Bench) -> None:
    inner: list[Report] = []

    def next_one(_: CheckpointWriter) -> None:
        assert bench.files() == [], "nothing is written yet"
        inner.append(bench.run(1, 1, megabytes=SMALL))

    outer = bench.run(0, 1, next_one)
    assert bench.process_of(inner[0]) == bench.process_of(outer), (
        "the next attempt was over before the first state was written"
    )
    assert bench.files() == ["rung-0-attempt-1.safetensors", "rung-0-attempt-2.safetensors"]
    assert inner[0].checkpoint is not None
    assert bench.run(0, 2).outcome is Outcome.COMPLETED


def test_the_next_state_waits_until_the_memory_is_free(bench: Bench) -> None:
    """One state lies there at most: an attempt that ends meanwhile waits with its own."""
    second: list[Report] = []
    threads: list[threading.Thread] = []
    seen: list[tuple[int, bool]] = []

    def begin_next(_: CheckpointWriter) -> None:
        thread = threading.Thread(target=lambda: second.append(bench.run(1, 1)))
        threads.append(thread)
        thread.start()
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline and not _waits_for_a_lock(bench.trainer.child):
            time.sleep(0.01)
        seen.append((bench.trainer.child, bool(second)))

    first = bench.run(0, 1, begin_next)
    threads[0].join(WAIT)
    assert seen == [(bench.process_of(first), False)], "it trained to its end in the same process, and waits"
    assert bench.process_of(second[0]) == bench.process_of(first)
    assert told(first)[1] != told(second[0])[1]
    for report in (first, second[0]):
        assert report.checkpoint is not None
        files.verify(bench.folder / report.checkpoint.uri, report.checkpoint, bench.folder)


def _waits_for_a_lock(pid: int) -> bool:
    if not pid:
        return False
    waiting = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(len(words) > 5 and words[1] == "->" and words[5] == str(pid) for words in waiting)


@pytest.mark.parametrize("changes", [{"megabytes": SMALL}, {"process": "fresh"}, {"checkpoint_base": "memory://a"}])
def test_other_states_are_written_before_the_report(bench: Bench, changes: dict[str, Any]) -> None:
    """Small ones, those of processes that serve one attempt, and those at URLs."""
    freed: list[CheckpointWriter] = []
    report = bench.run(0, 1, freed.append, **changes)
    assert report.outcome is Outcome.COMPLETED and report.checkpoint is not None and report.checkpoint.digest
    assert not freed


def test_a_state_that_the_memory_limit_has_no_room_for_is_written_first(bench: Bench) -> None:
    freed: list[CheckpointWriter] = []
    for memory in (1 << 40, 200 << 20):
        portion = Portion(
            device="node", architecture="CPU", compute=1000, memory=memory, cores=1000, capacity=1 << 40, alone=False
        )
        report = bench.run(0, 1, freed.append, portion=portion, megabytes=60.0)
        assert report.outcome is Outcome.COMPLETED, report.message
        bench.states.clear()
    assert len(freed) == 1


def test_a_process_that_is_killed_while_its_state_is_written_takes_nothing_along(bench: Bench) -> None:
    def kill(_: CheckpointWriter) -> None:
        os.kill(bench.trainer.waiting[0], signal.SIGKILL)

    report = bench.run(0, 1, kill)
    assert report.outcome is Outcome.COMPLETED and report.checkpoint is not None
    files.verify(bench.folder / report.checkpoint.uri, report.checkpoint, bench.folder)
    again = bench.run(0, 2)
    assert bench.process_of(again) != bench.process_of(report)


def test_a_full_disk_fails_the_attempt_whose_state_it_is(bench: Bench) -> None:
    inner: list[Report] = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(_: CheckpointWriter) -> None:
        inner.append(bench.run(1, 1, megabytes=SMALL))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))

    try:
        report = bench.run(0, 1, fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert report.outcome is Outcome.STORAGE and report.checkpoint is None
    assert "bytes so far) cannot be written: File too large. Free space" in report.message
    assert inner[0].outcome is Outcome.COMPLETED
    assert bench.files() == ["rung-0-attempt-2.safetensors"], "no half file is left"
    assert bench.run(0, 1).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("end", ["timeout", "cancel"])
def test_a_disk_that_hangs_is_given_up(bench: Bench, end: str) -> None:
    """A named pipe in the place of the file: opening it blocks until somebody reads."""
    file = bench.next_file
    partial = file.with_name(file.name + ".part")
    partial.parent.mkdir(parents=True)
    os.mkfifo(partial)
    pool, started = TrainerPool(), threading.Event()
    pool._idle.append(bench.trainer)
    request = request_for(bench.folder, 0, bench.attempts + 1, 1, storage_timeout=1.0 if end == "timeout" else 3600.0)
    found: list[Report] = []
    thread = threading.Thread(target=lambda: found.append(pool.run(request, started.set)))
    thread.start()
    assert started.wait(WAIT)
    assert pool._idle == [bench.trainer], "the trainer is free"
    name = f"{bench.folder}/trial-0/attempt-{bench.attempts + 1}"
    assert list(pool.heartbeats()) == [name]
    assert list(pool.heartbeats("")) == [name] and not pool.heartbeats("another worker")
    if end == "cancel":
        before, deadline = pool.heartbeats()[name], time.monotonic() + WAIT
        while pool.heartbeats()[name] == before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert pool.heartbeats()[name] > before, "a worker that writes is no worker that hangs"
        assert pool.cancel(str(bench.folder), 0, bench.attempts + 1)
    thread.join(WAIT)
    (report,) = found
    assert not pool.heartbeats() and report.checkpoint is None
    if end == "cancel":
        assert report.outcome is Outcome.PREEMPTED
    else:
        assert report.outcome is Outcome.STORAGE
        assert "took longer to write or read than 1 s; it had done 1 of 1 steps" in report.message
    assert bench.run(1, 1).outcome is Outcome.COMPLETED, "the process goes on"
    with partial.open("rb") as reader:  # the disk answers again
        reader.read()
    deadline = time.monotonic() + WAIT
    while partial.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not partial.exists() and not file.exists(), "what nobody waits for any more is no file"


WORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from hpo_core.checkpoints import files
from hpo_core.checkpoints.shared_state import SharedState
from hpo_core.training.child.trainer import Trainer
from tests.training.test_checkpoint_writer import HERE, OBJECTIVE, request_for

def stop(*_):
    print("here", flush=True)
    time.sleep(600)

step, on_free = {step!r}, None
if step == "copied":
    on_free = stop
elif step == "half written":
    read = SharedState.read
    def half(self, size, check):
        for number, piece in enumerate(read(self, size, check)):
            if number == 4:
                stop()
            yield piece
    SharedState.read = half
elif step == "before rename":
    Path.replace = stop
else:
    files._sync_folder = lambda folder: stop() if list(folder.glob("*.safetensors")) else None
Trainer(OBJECTIVE, (HERE,)).run(request_for(Path({folder!r}), 0, 0, 1), on_free)
"""


@pytest.mark.parametrize(
    "step",
    [
        "half written",
        *(pytest.param(step, marks=pytest.mark.slow) for step in ("copied", "before rename", "after rename")),
    ],
)
def test_a_worker_that_is_killed_leaves_no_file_that_counts(tmp_path: Path, step: str) -> None:
    root = str(Path(__file__).parents[2])
    text = WORKER.format(root=root, step=step, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=root) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"here\n"
        left = psutil.Process(worker.pid).children(recursive=True)
        assert left
        worker.kill()
    psutil.wait_procs(left, WAIT)
    assert not any(process.is_running() for process in left), "nothing outlives it"
    found = sorted(path.name for path in tmp_path.rglob("*.safetensors*"))
    file = "rung-0-attempt-0.safetensors"
    expected = {"copied": [], "half written": [f"{file}.part"], "before rename": [f"{file}.part"]}
    assert found == expected.get(step, [file]), "a file has its name once it is whole; none is named by a report"


def test_what_a_training_process_claims_is_not_trusted(bench: Bench) -> None:
    """A report says that a state lies in memory, and none of that size does."""
    bench.run(0, 1)
    request = request_for(bench.folder, 0, 7, 1)
    claimed = Checkpoint(uri="../../elsewhere", digest="", resource=9, size=1 << 40)
    report = request.report(Outcome.COMPLETED, metrics={"loss": 1.0}, checkpoint=claimed)
    shared = bench.trainer._shared
    assert shared is not None
    failed = CheckpointWriter(request, report, shared).run()
    assert failed.outcome is Outcome.CRASHED and failed.checkpoint is None
    assert "attempt-7" not in " ".join(bench.files())
    smaller = msgspec.structs.replace(report, checkpoint=msgspec.structs.replace(claimed, size=8))
    written = CheckpointWriter(request, smaller, shared).run().checkpoint
    assert written is not None
    assert (written.uri, written.resource) == (request.checkpoint_path, 1), "where it lies, the request says"
