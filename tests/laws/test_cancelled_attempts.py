"""``stop.running`` means the same to the simulator and to the driver: one rule, asked by both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.loop import CheckpointCleanup, Loop, Takeover
from hpo_core.journal.sql import current_owner
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.events import AttemptFailed, JobCompleted, StudyHalted
from hpo_core.simulation import Simulation, VirtualClock
from tests.conftest import completed, failed, make_spec

RANDOM = {"method": "random", "configs": 40, "max_resource": 4}
RULES: list[dict[str, Any]] = [{"total_resource": 20}, {"seconds": 2.5}, {"target": 0.4}]
LOSSES = [0.9, 0.8, 0.7, 0.6, 0.3, 0.2, 0.1]


def loss(job: Job) -> float:
    return LOSSES[min(job.trial, len(LOSSES) - 1)]


class InProcess:
    """Three slots in this process: attempts 0 to 5 end by themselves at once, later ones when they are cancelled.

    A later attempt that nobody cancels within ``patience`` ends by itself, too, as training does.
    """

    def __init__(self, study: Study, patience: float) -> None:
        self._study = study
        self._patience = patience
        self._cancelled: dict[tuple[int, int], threading.Event] = {}

    def inventory(self) -> Inventory:
        return Inventory.of(3)

    poll_seconds = 1.0

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        inbox.wait(until - time.monotonic())
        return True

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        event = self._cancelled[job.trial, job.attempt] = threading.Event()

        def train() -> None:
            was_cancelled = job.trial >= 6 and event.wait(self._patience)
            on_report(job, failed(job, Outcome.PREEMPTED) if was_cancelled else completed(job, loss(job)))

        threading.Thread(target=train, daemon=True).start()

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        for attempt in attempts:
            self._cancelled[attempt].set()


def ends(study: Study) -> Iterator[str]:
    """How the study and its running attempts ended."""
    for entry in study.journal.entries(study.name):
        for event in entry.events:
            if isinstance(event, StudyHalted):
                yield f"halted by {event.rule}"
            if isinstance(event, AttemptFailed):
                yield str(event.outcome)
    yield "nothing runs" if not study.state.running else "something runs"


def simulated(**stop: Any) -> Study:
    clock = VirtualClock()
    study = Study.create(make_spec(search=RANDOM, stop=stop), MemoryJournal(), clock=clock)
    executor = Simulation(
        study, clock, workers=3, train=lambda job: {"loss": loss(job)}, seconds=lambda job: 1.0 + 0.01 * job.trial
    )
    executor.run()
    return study


def driven(folder: Path, **stop: Any) -> Study:
    study = Study.create(make_spec(search=RANDOM, stop=stop), MemoryJournal())
    study.epoch = study.journal.claim(study.name, current_owner())
    ends_by_itself = "total_resource" in stop or stop["running"] == "finish"
    executor = InProcess(study, patience=1.0 if ends_by_itself else 600.0)
    Loop(study, executor, checkpoints=CheckpointCleanup(study, folder), takeover=Takeover(owner=current_owner())).run()
    return study


@pytest.mark.parametrize("running", ["finish", "cancel"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
def test_simulator_and_driver_cancel_alike(tmp_path: Path, rule: dict[str, Any], running: str) -> None:
    played, real = simulated(**rule, running=running), driven(tmp_path, **rule, running=running)
    assert sorted(set(ends(played))) == sorted(set(ends(real)))
    kept = "total_resource" in rule or running == "finish"
    assert ("preempted" in ends(played)) == (not kept), list(ends(played))
    for study in (played, real):
        results = sum(isinstance(e, JobCompleted) for entry in study.journal.entries("world") for e in entry.events)
        assert results == study.state.completed_jobs
        if "total_resource" in rule:
            assert study.state.resource_used == 20, "what the rule counts as spent was not trained"
