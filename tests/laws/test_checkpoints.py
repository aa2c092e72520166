"""Laws of a budget for checkpoints, whatever the method, the limit, the sizes and the order of reports."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import MemoryJournal, Outcome
from hpo_core.checkpoints.retention import Hold
from hpo_core.model.events import CheckpointRemoved, Entry
from hpo_core.model.trial import Checkpoint, Job, Report
from hpo_core.replay.audit import audit
from hpo_core.study import Study
from tests.conftest import completed, failed, fresh, make_spec
from tests.laws.test_laws import STEP, searches

LIMITS = st.one_of(
    st.fixed_dictionaries({"max_count": st.integers(2, 30)}),
    st.fixed_dictionaries({"max_bytes": st.integers(204, 3000)}),
    st.fixed_dictionaries({"max_count": st.integers(3, 30), "max_bytes": st.integers(306, 3000)}),
)


class Watched(Study):
    """Sees the state in which each checkpoint was removed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._really_apply, self.parts.apply = self.parts.apply, self._watch  # type: ignore[method-assign]

    def _watch(self, event: Any) -> None:
        if isinstance(event, CheckpointRemoved):
            removed = [
                result.checkpoint
                for result in self.state.trials[event.trial].results
                if result.resource == event.resource
            ]
            assert removed[0] is not None and self.checkpoints.why(removed[0].uri) is not Hold.PINNED
            assert all(grant.checkpoint != removed[0] for grant in self.state.running.values())
            assert removed[0] != self.state.best_checkpoint()
            assert 0.0 <= event.chance <= 1.0
        self._really_apply(event)


def report_of(job: Job, result: float | Outcome, size: int) -> Report:
    if isinstance(result, Outcome):
        return failed(job, result)
    report = completed(job, result)  # who drives a study by hand may keep the checkpoint of a diverged trial
    uri = f"t{job.trial}-r{job.rung}-a{job.attempt}"
    return msgspec.structs.replace(report, checkpoint=Checkpoint(uri, "", job.target, size))


@settings(max_examples=15, deadline=None)
@given(searches(), LIMITS, st.integers(1, 9), st.lists(STEP, max_size=100), st.data())
def test_a_limit_holds_at_every_moment(
    search: dict[str, Any], limits: dict[str, int], workers: int, script: list[tuple[int, Any]], data: st.DataObject
) -> None:
    spec = make_spec(search=search, checkpoints=limits, training={"fail_fast": None})
    study = Watched.create(spec, MemoryJournal(), clock=lambda: 0.0)
    restart = data.draw(st.integers(0, 60))
    running = list(study.set_capacity(workers))
    live, disk, steps = study.checkpoints, set[str](), iter(script)
    for step in range(2000):
        study.check()
        if study.state.halted is None:
            jobs = len(study.state.running)
            assert len(live) + jobs <= limits.get("max_count", 10**6)
            assert live.bytes + jobs * 102 <= limits.get("max_bytes", 10**9) or (jobs == 1 and not live.bytes)
        if not running:
            break
        if step == restart:
            study.recover("another controller")
            running = list(study.set_capacity(workers))
            continue
        index, result = next(steps, (0, 0.25))
        job = running.pop(index % len(running))
        assert job.checkpoint is None or job.checkpoint.uri in disk, "a job starts from what was removed"
        report = report_of(job, result, 100)
        if report.checkpoint is not None:
            disk.add(report.checkpoint.uri)
        assert len(disk) <= limits.get("max_count", 10**6)
        running += study.tell_report(report)
        disk -= set(live.take_dead())
        assert disk == live.uris
    assert study.status == "finished", study.state.halted
    entries: list[Entry] = list(study.journal.entries("world"))
    assert audit(entries).clean
    again = Study.from_entries(entries)
    again.check()
    assert again.checkpoints.uris == live.uris


@settings(max_examples=15, deadline=None)
@given(searches(), st.integers(1, 9), st.lists(st.tuples(STEP, st.integers(0, 400)), max_size=80))
def test_whatever_the_sizes_a_study_ends_or_says_what_it_needs(
    search: dict[str, Any], workers: int, script: list[tuple[tuple[int, Any], int]]
) -> None:
    """Sizes nobody could foresee may exceed the limit; what is live comes back below it, or the study halts."""
    spec = make_spec(search=search, checkpoints={"max_bytes": 1000}, training={"fail_fast": None})
    study = fresh(spec, MemoryJournal())
    running = list(study.set_capacity(workers))
    steps = iter(script)
    while running:
        (index, result), size = next(steps, ((0, 0.25), 100))
        running += study.tell_report(report_of(running.pop(index % len(running)), result, size))
        study.check()
        pinned = sum(
            checkpoint.size
            for trial in study.state.trials
            for checkpoint in {r.checkpoint for r in trial.results}
            if checkpoint is not None and study.checkpoints.why(checkpoint.uri) is Hold.PINNED
        )
        assert study.checkpoints.bytes <= max(1000, pinned)
    assert study.status == "finished" or "checkpoints.max_bytes = 1,000" in study.state.halted.reason  # type: ignore[union-attr]
    assert audit(study.journal.entries("world")).clean
