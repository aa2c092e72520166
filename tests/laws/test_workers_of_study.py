"""Workers that follow what a study can use: the same results as on all workers, and fewer seconds of workers."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import Job, Study
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock, VirtualExecutor
from hpo_core.model.events import CapacityChanged, JobCompleted
from hpo_core.replay.audit import audit
from hpo_core.spec import StudySpec
from tests.conftest import make_spec
from tests.laws.test_laws import searches

SYNCHRONOUS = ("sha", "hyperband", "random")


def drawn(job: Job, what: str) -> float:
    return random.Random(f"{job.trial}/{job.target}/{what}").random()


def play(
    spec: StudySpec, workers: int, *, least: int | None = None, delays: float = 0.0, losses: float = 0.0
) -> tuple[Study, VirtualExecutor]:
    clock, late = VirtualClock(), random.Random(spec.seed)
    executor = VirtualExecutor(
        clock,
        workers=workers,
        train=lambda job: {"loss": math.nan if drawn(job, "nan") < losses else job.params["x"] + 1.0 / job.target},
        seconds=lambda job: job.target * (0.5 + drawn(job, "seconds")),
        objectives=["loss"],
        join_seconds=lambda: delays * late.random(),
    )
    study = Study.create(spec, clock=clock)
    if least is not None:
        executor.follow(study.demand, least)
    Loop(study, executor).run()
    study.check()
    return study, executor


def results(study: Study) -> dict[tuple[int, int], Any]:
    """Loss of each trial at each resource, and its parameters."""
    return {
        (event.trial, event.resource): (event.loss, study.state.trials[event.trial].params)
        for entry in study.journal.entries(study.name)
        for event in entry.events
        if isinstance(event, JobCompleted)
    }


@settings(deadline=None)
@given(
    search=searches(), most=st.integers(1, 9), least=st.integers(0, 9), seed=st.integers(0, 99),
    delays=st.sampled_from([0.0, 0.3, 20.0]), losses=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_a_study_ends_whenever_its_workers_come(
    search: dict[str, Any], most: int, least: int, seed: int, delays: float, losses: float
) -> None:
    """With the results of the fixed cluster where the method waits for all of a rung: the order does not matter."""
    spec = make_spec(search=search, seed=seed, training={"fail_fast": None})
    study, executor = play(spec, most, least=min(least, most), delays=delays, losses=losses)
    entries = list(study.journal.entries(study.name))
    assert study.finished and audit(entries).clean
    there = [event.inventory.slots for entry in entries for event in entry.events if isinstance(event, CapacityChanged)]
    assert max(there) <= most
    fixed, all_there = play(spec, most, losses=losses)
    if spec.search.method in SYNCHRONOUS:
        assert results(study) == results(fixed)
    if not delays:
        assert executor.clock.now == pytest.approx(all_there.clock.now)
        assert results(study) == results(fixed)
        assert executor.offered_seconds <= all_there.offered_seconds * (1 + 1e-9)
        if not least:
            assert executor.offered_seconds == pytest.approx(executor.busy_seconds)
