"""A search that waits for whole rungs or generations has the same results on any number of workers, in any order.

``docs/how-to/reproduce-a-study.md`` promises it. What a trial comes to depends on its parameters, its ancestors and its
resource alone; how many workers there are, and who ends first, is drawn anew in each run.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.trial import Checkpoint, Job, Report
from hpo_core.replay.audit import audit
from tests.conftest import completed, failed, fresh, make_spec

_LADDER = {"min_resource": 1, "max_resource": 9, "reduction_factor": 3}
_BARRIER = {"method": "pbt", "population": 6, "generations": 5, "reproduction": "barrier"}
SEARCHES: dict[str, dict[str, Any]] = {
    "sha": {"method": "sha", **_LADDER, "configs": 12, "rounds": 2},
    "hyperband": {"method": "hyperband", **_LADDER},
    "tournament": _BARRIER,
    "truncation": _BARRIER | {"selection": "truncation"},
}


def outcome_of(study: Study, job: Job) -> float | Outcome:
    """A loss, rarely not finite, or how the first attempts of some trials fail."""
    digest = hashlib.blake2b(digest_size=8)
    trial: int | None = job.trial
    while trial is not None:
        record = study.state.trials[trial]
        digest.update(repr((sorted(record.params.items()), job.target)).encode())
        trial = record.parent
    value = int.from_bytes(digest.digest(), "little")
    if value % 11 == 0 and not job.retry:
        return Outcome.LOST
    return math.nan if value % 13 == 0 else round(value / 2**64, 1)  # equal ones, too


def results(search: dict[str, Any], workers: int, order: random.Random, seed: int) -> list[Any]:
    """By trial: its parameters, parent, and (target, loss) of its results."""
    study = fresh(
        make_spec(search=search, seed=seed, training={"fail_fast": None, "retries": {"lost": 9}}), MemoryJournal()
    )
    running = study.set_capacity(workers)
    while running:
        job = running.pop(order.randrange(len(running)))
        found = outcome_of(study, job)
        checkpoint = Checkpoint(f"t{job.trial}r{job.target}", "", job.target, 1)
        report: Report = (
            failed(job, found) if isinstance(found, Outcome) else completed(job, found, checkpoint=checkpoint)
        )
        running += study.tell_report(report)
        study.check()
    assert study.status == "finished"
    assert audit(study.journal.entries(study.name)).clean
    return [
        (trial.params, trial.parent, [(result.resource, repr(result.loss)) for result in trial.results])
        for trial in study.state.trials
    ]


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), workers=st.integers(1, 9), order=st.randoms(use_true_random=False))
def test_results_depend_on_neither_the_number_of_workers_nor_who_ends_first(
    name: str, seed: int, workers: int, order: random.Random
) -> None:
    alone = results(SEARCHES[name], 1, order, seed)
    assert results(SEARCHES[name], workers, order, seed) == alone
