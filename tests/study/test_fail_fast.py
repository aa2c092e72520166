"""A study in which no trial comes to a finite value halts early; one with many diverging trials does not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.model.trial import Report
from hpo_core.replay.audit import audit
from tests.conftest import completed, failed, fresh, make_spec

ASHA = {"method": "asha", "configs": 200, "max_resource": 9, "reduction_factor": 3}


def diverged(job: Job) -> Report:
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.DIVERGED,
        metrics={"loss": math.nan},
        message=f"Metric 'loss' is nan at step {job.target}.",
    )


def play(study: Study, bad: Callable[[int], bool], workers: int = 1) -> Study:
    """On workers that finish their jobs in turn; trials of ``bad`` diverge, and do so at once."""
    running = list(study.set_capacity(workers))
    while running:
        running.sort(key=lambda job: not bad(job.trial))
        job = running.pop(0)
        running += study.tell_report(diverged(job) if bad(job.trial) else completed(job, 0.5 + job.trial))
        study.check()
    assert audit(list(study.journal.entries(study.name))).clean
    return study


def study_of(**changes: Any) -> Study:
    return fresh(make_spec(**{"search": ASHA, **changes}), MemoryJournal())


def every(_: int) -> bool:
    return True


def test_a_study_of_which_every_trial_diverges_halts_after_twenty() -> None:
    study = play(study_of(), every)
    assert study.status == "halted" and len(study.state.trials) == 20
    halted = study.state.halted
    assert halted is not None and halted.rule == ""
    assert halted.reason == (
        "the first 20 trials all ended without a finite value of loss: 20 diverged (NaN or infinite), the last with: "
        "Metric 'loss' is nan at step 1."
    )


def test_trials_that_fail_and_trials_that_diverge_count_together() -> None:
    study = study_of()
    jobs = study.set_capacity(1)
    while jobs:
        (job,) = jobs
        jobs = study.tell_report(diverged(job) if job.trial % 2 else failed(job, Outcome.ERROR, "ValueError: bad"))
    assert study.state.halted is not None and len(study.state.trials) == 20
    assert "10 diverged (NaN or infinite), 10 failed" in study.state.halted.reason


@pytest.mark.parametrize("workers", [1, 16])
def test_a_search_with_many_diverging_trials_goes_on(workers: int) -> None:
    """Those that diverge end at once, those that do not end last."""
    for seed in range(2):
        drawn = random.Random(seed)
        bad = [drawn.random() < 0.7 for _ in range(200)]
        study = play(study_of(), bad.__getitem__, workers)
        assert study.status == "finished" and study.state.finite_results


def test_a_resumed_study_halts_after_twenty_further_ones() -> None:
    study = play(study_of(), every)
    study.recover("again")
    play(study, every)
    assert study.status == "halted" and len(study.state.trials) == 40
    assert study.state.halted is not None and study.state.halted.reason.startswith("the next 20 trials all ended")
    study.recover("once more")
    assert play(study, lambda trial: trial < 45).status == "finished"
