"""The loop gives every granted job to its executor, whoever had it granted, and ends when nothing is left."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_core import Job, Study
from hpo_core.execution.executor import Inbox
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.execution.loop import CheckpointCleanup, Loop, Takeover
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor, Worker
from hpo_core.journal.protocol import Owner
from hpo_core.model.devices.inventory import Device, Inventory
from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.model.trial import Checkpoint, Report, Rung
from hpo_core.placement.placer import Placer
from hpo_core.replay.audit import audit
from hpo_core.spec import StudySpec
from hpo_core.training.handle import TrialHandle
from tests.conftest import make_spec

METRIC = {"name": "loss", "mode": "min"}
RANDOM = {"method": "random", "configs": 4, "max_resource": 2}
OWNER = Owner("here", 1, 0.0)


class Person:
    """An observer that does something to the study once: after the report of trial ``after``."""

    def __init__(self, after: int, does: Any) -> None:
        self._after = after
        self._does = does

    def on_report(self, report: Report, granted: list[Job]) -> None:
        if report.trial == self._after and self._does is not None:
            does, self._does = self._does, None
            does()

    def on_tick(self) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is open."""


def virtual(spec: StudySpec, clock: VirtualClock, workers: Any = 2, slow: int = -1) -> VirtualExecutor:
    return VirtualExecutor(
        clock,
        workers=workers,
        train=lambda job: {"loss": float(job.trial)},
        seconds=lambda job: 100.0 if job.trial == slow else 1.0,
        objectives=["loss"],
    )


class Stopped(VirtualExecutor):
    """Its process stands still in one of its waits, while the jobs stand still, too."""

    poll_seconds = 1.0
    for_seconds = 100.0

    def wait(self, inbox: Inbox, until: float) -> bool:
        goes_on = super().wait(inbox, until)
        if self.now() >= 2.0 and self.for_seconds:
            self.clock.now += self.for_seconds
            self.for_seconds = 0.0
        return goes_on


@pytest.mark.parametrize("seconds", [5.0, 1000.0])
def test_a_standstill_is_no_time_that_a_study_had(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    spec = make_spec(search=RANDOM | {"configs": 8}, metric=METRIC, stop={"seconds": seconds})
    study = Study.create(spec, clock=clock)
    executor = Stopped(clock, workers=1, train=lambda job: {"loss": 0.5}, seconds=lambda job: 1.0, objectives=["loss"])
    status = Loop(study, executor).run()
    assert (status, len(study.state.trials)) == (("halted", 5) if seconds == 5.0 else ("finished", 8))
    assert study.rules.seconds == pytest.approx(5.0 if seconds == 5.0 else 8.0)
    assert "stood still for 100 s" in caplog.text
    assert audit(study.journal.entries(study.name)).clean


def train(trial: Any) -> None:
    for _ in trial.steps():
        trial.report(loss=trial.params["x"])


def test_jobs_that_an_observer_had_granted_are_trained() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM | {"configs": 1}, metric=METRIC), clock=clock)
    person = Person(0, lambda: study.extend(3))
    assert Loop(study, virtual(study.spec, clock), observers=[person]).run() == "finished"
    assert study.state.completed_jobs == 4


def test_search_goes_on_after_an_observer_abandoned_the_only_running_trial(tmp_path: Path) -> None:
    study = Study.create(make_spec(search=RANDOM, metric=METRIC))
    person = Person(1, lambda: study.abandon(2))
    loop = Loop(study, InProcessExecutor(study.spec, tmp_path, train), observers=[person])
    assert loop.run() == "finished"
    assert [trial.status for trial in study.state.trials] == ["paused", "paused", "abandoned", "paused"]


def test_time_rule_that_is_due_at_the_end_of_a_run_halts_the_study() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC, stop={"seconds": 0.5}), clock=clock)
    Loop(study, virtual(study.spec, clock)).run(until=0.5)
    assert study.state.halted is not None and clock.now == 0.5


def test_workers_that_join_and_leave_at_the_end_of_a_run_count() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM | {"configs": 9}, metric=METRIC), clock=clock)
    workers = [Worker(), Worker(leaves=0.5), Worker(joins=0.5), Worker(joins=0.5)]
    Loop(study, virtual(study.spec, clock, workers)).run(until=0.5)
    assert study.state.capacity == 3 and len(study.state.running) == 3


def test_files_of_attempts_without_a_report_are_kept_when_a_run_ends_before_its_study(tmp_path: Path) -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC), clock=clock)
    written = tmp_path / "checkpoints" / "trial-00001" / "rung-0-attempt-0.safetensors"
    written.parent.mkdir(parents=True)
    written.write_bytes(b"of the attempt that ended, and whose report was not taken")
    loop = Loop(study, virtual(study.spec, clock), checkpoints=CheckpointCleanup(study, tmp_path))
    loop.run(max_reports=1)
    assert 1 in study.state.running and written.exists()
    loop.run()
    assert study.finished


@pytest.mark.parametrize("moment", ["training", "saving"])
def test_ctrl_c_in_a_training_of_this_process_halts_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    presses = [KeyboardInterrupt()]

    def press(at: str, trial: Any) -> None:
        if at == moment and trial.number == 1 and presses:
            raise presses.pop()

    def interrupted(trial: Any) -> None:
        press("training", trial)
        train(trial)

    def finish(trial: TrialHandle, returned: object = None) -> Any:
        press("saving", trial)
        return finish_as_ever(trial, returned)

    finish_as_ever = TrialHandle.finish
    monkeypatch.setattr(TrialHandle, "finish", finish)
    study = Study.create(make_spec(search=RANDOM, metric=METRIC))
    executor = InProcessExecutor(study.spec, tmp_path, interrupted)
    loop = Loop(study, executor)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert study.status == "halted"
    assert [trial.status for trial in study.state.trials] == ["paused", "running"]
    study.recover("later:1")
    assert loop.run() == "finished"
    assert [trial.status for trial in study.state.trials] == ["paused"] * 4


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ObjectiveError("trial 1 did not report 'loss'\nline two"), "trial 1 did not report 'loss'"),
        (HpoError("The Dask scheduler at tcp://a:1 is gone."), "The Dask scheduler at tcp://a:1 is gone."),
        (ValueError("bad"), "ValueError: bad"),
        (AssertionError(), "AssertionError"),
        (SystemExit(3), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_ends_a_controller_in_order_halts_its_study_and_is_the_reason(
    error: BaseException, reason: str
) -> None:
    def fail() -> None:
        raise error

    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC), clock=clock)
    with pytest.raises(type(error)):
        Loop(study, virtual(study.spec, clock), observers=[Person(0, fail)]).run()
    again = Study.open(study.name, study.journal, reading=True)
    assert again.status == "halted" and again.state.halted is not None
    assert again.state.halted.reason == reason


SAVED = Checkpoint("checkpoints/a", "0", resource=1, size=1)


def some_jobs(count: int, *, trial: int = 0, parent: int | None = None) -> list[Job]:
    """Jobs of a trial; with ``parent``, which begin with the state of that trial."""
    saved = None if parent is None else SAVED
    return [Job(trial, attempt, Rung(0, 0), 1, {}, saved, parent=parent) for attempt in range(count)]


def test_a_free_slot_is_the_first_of_the_inventory_also_on_a_worker_that_joined_later() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC), clock=clock)
    Loop(study, virtual(study.spec, clock, [Worker(joins=0.5), Worker()])).run()
    workers = [result.worker for trial in study.state.trials for result in trial.results]
    assert workers == ["worker-1", "worker-0", "worker-1", "worker-0"]
    slots = Placer()
    slots.update(Inventory((Device("b"),)))
    slots.update(Inventory((Device("a"), Device("b"))))
    assert [slot.name for _, slot in slots.place(some_jobs(2)).begun] == ["a", "b"]


def test_a_job_goes_on_where_its_state_was_saved_and_waits_for_no_slot() -> None:
    slots = Placer()
    slots.update(Inventory((Device("a", 3),)))
    first = [Job(trial, 0, Rung(0, 0), 1, {}) for trial in range(3)]
    assert [slot.number for _, slot in slots.place(first).begun] == [0, 1, 2]
    for job in first:
        slots.release(job.key)
    again = [
        Job(3, 0, Rung(0, 0), 1, {}),
        Job(2, 1, Rung(0, 1), 3, {}, SAVED),
        Job(4, 0, Rung(0, 0), 1, {}, SAVED, parent=0),
        Job(1, 1, Rung(0, 1), 3, {}, SAVED),
    ]
    assert [slot.number for _, slot in slots.place(again).begun] == [1, 2, 0], "the fourth finds no slot"
    slots.release((3, 0))
    assert [slot.number for _, slot in slots.place(again[3:]).begun] == [1], "another job was there; it is the free one"
    slots.release((4, 0))
    late = [Job(5, 0, Rung(0, 0), 1, {}, SAVED, parent=0)]
    assert [slot.number for _, slot in slots.place(late).begun] == [0], "a slot is taken, whoever was there last"


@given(st.lists(st.one_of(st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers(0, 3)))))
def test_slots_are_never_lost_or_given_twice_while_capacity_shrinks_and_grows(steps: list[Any]) -> None:
    slots = Placer()
    held: dict[tuple[str, int], tuple[int, int]] = {}
    for step, what in enumerate(steps):
        if isinstance(what, tuple):
            slots.update(Inventory(tuple(Device(name, size) for name, size in zip("ba", what, strict=True))))
        elif what == 0 and held:
            slots.release(held.pop(min(held)))
        jobs = some_jobs(what, trial=step, parent=step - 2) if isinstance(what, int) else []
        for job, slot in slots.place(jobs).begun:
            assert (slot.name, slot.number) not in held
            held[slot.name, slot.number] = job.key
        there = {(device.name, number) for device in slots.inventory.devices for number in range(device.slots)}
        free = copy.deepcopy(slots).place(some_jobs(99, trial=-1)).begun
        assert {(slot.name, slot.number) for _, slot in free} == there - held.keys()
        assert len(slots) == len(held)


def test_a_second_run_goes_on_with_the_study_that_the_first_one_took_over() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC), clock=clock)
    study.epoch = study.journal.claim("world", OWNER)
    loop = Loop(study, virtual(study.spec, clock), takeover=Takeover(owner=OWNER, extend=2))
    assert loop.run(until=0.5) == "open"
    assert loop.run() == "finished"
    assert study.state.completed_jobs == 6 and study.state.failed_attempts == 0


def test_a_job_that_could_not_be_submitted_is_submitted_by_the_next_run() -> None:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, metric=METRIC), clock=clock)
    durations = [math.inf]
    executor = VirtualExecutor(
        clock,
        workers=2,
        train=lambda job: {"loss": float(job.trial)},
        seconds=lambda job: durations.pop() if durations else 1.0,
        objectives=["loss"],
    )
    loop = Loop(study, executor)
    with pytest.raises(HpoError, match="Mend the workload"):
        loop.run()
    assert study.status == "halted"
    study.recover("later:1")
    assert loop.run() == "finished"
    assert study.state.completed_jobs == 4 and clock.now == 2.0
