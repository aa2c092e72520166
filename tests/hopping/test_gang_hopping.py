"""Hopping studies whose end trains in gangs, in virtual time: judged, repeated, resumed and timed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import UNSET

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.execution.hopping.hopped_job import HoppedJob, JobProgress
from hpo_core.execution.virtual import VirtualAttempt, Worker
from hpo_core.model.errors import SpecError
from hpo_core.model.events import AttemptFailed
from hpo_core.model.hops import Visit, units_of
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.views.hop_views import done_words, hop_units, visit_lines
from tests.hopping.hopping_studies import METHODS, VirtualHopping

GANGS: dict[str, Any] = {"training": {"gang": "auto"}, "cluster": {"kind": "local", "workers": 8}}
LINEAR = GANGS | {"scaling": {"speedups": {ranks: float(ranks) for ranks in range(2, 9)}}}


def together(world: VirtualHopping) -> list[int]:
    """Ranks of all units, in the order of the journal."""
    return [len(unit) for event in world.completed() for unit in units_of(event.visits or (), event.together)]


def hopping(search: str = "sha", more: dict[str, Any] = LINEAR, **given: Any) -> VirtualHopping:
    return VirtualHopping(search=METHODS[search], more=more, **({"partitions": 6, "workers": [Worker()] * 6} | given))


@pytest.mark.parametrize("search", sorted(METHODS))
@pytest.mark.parametrize("validation", [0, 2])
def test_every_method_ends_with_gangs_under_the_invariants(search: str, validation: int) -> None:
    world = hopping(search, validation=validation).run()
    world.judge()
    if search in ("sha", "asha"):  # the others end with all of their configurations, or nearly
        assert max(together(world)) > 1
    assert audit(list(world.journal.entries("hopping"))).clean


@pytest.mark.parametrize("seed", range(2))
def test_workers_that_leave_and_gangs_that_are_lost_change_no_invariant(seed: int) -> None:
    workers = [Worker(), Worker(leaves=40.0 + 7 * seed), Worker(joins=20.0), *[Worker()] * 3, Worker(leaves=95.0)]
    world = hopping(workers=workers)
    original, gangs = world.units._result, []

    def result(attempt: VirtualAttempt) -> Report:
        if attempt.others:
            gangs.append(attempt)
            if len(gangs) % 3 == 1:
                return world.units._failure(attempt, Outcome.LOST, "its worker died")
        return original(attempt)

    world.units._result = result  # type: ignore[method-assign]
    world.run()
    assert len(gangs) > 3 and world.study.finished
    assert world.study.state.failed_attempts == 0, "a lost unit is repeated, the job goes on"
    assert not world.executor._schedule.in_flight()
    world.judge()
    assert max(together(world)) > 1


def test_what_is_left_ends_sooner_and_nothing_changes_where_it_is_not_asked_for() -> None:
    """SHA, nine configurations on eight workers: 3 and then 1 of them are left for 2 and 6 epochs."""
    ends = {}
    for name, more in (("alone", {}), ("linear", LINEAR), ("measured", GANGS)):
        world = hopping(more=more, partitions=8, workers=[Worker()] * 8).run()
        world.judge()
        ends[name] = world.clock.now
        assert (max(together(world)) > 1) == (name != "alone")
    assert ends["linear"] < 0.5 * ends["alone"]
    assert ends["measured"] < 0.6 * ends["alone"]


def test_measured_gangs_that_are_slower_are_not_used_any_more() -> None:
    def slow(job: Job) -> float:
        assert job.unit is not None
        return 1.1 if job.unit.ranks > 1 else 1.0

    world = hopping(more=GANGS, speedup=slow, partitions=8, workers=[Worker()] * 8).run()
    alone = hopping(more={}, partitions=8, workers=[Worker()] * 8).run()
    world.judge()
    sizes = together(world)
    assert 0 < sum(size > 1 for size in sizes) <= 6 and max(sizes) == 2, "a few are measured"
    assert world.clock.now < 1.1 * alone.clock.now


@pytest.mark.parametrize("workers", [1, 2, 6, 9])
def test_a_rerun_follows_the_groups_on_any_number_of_workers(workers: int) -> None:
    first = hopping(validation=1).run()
    spec = rerun_spec(list(first.journal.entries("hopping")), "again")
    again = VirtualHopping(spec=spec, partitions=6, validation=1, workers=[Worker()] * workers, journal=MemoryJournal())
    again.loop.run()

    def groups(world: VirtualHopping) -> dict[tuple[int, int], list[tuple[int, ...]]]:
        found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for event in world.completed():
            for unit in units_of(event.visits or (), event.together):
                if unit[0].partition < 6:
                    places = tuple(visit.partition for visit in unit)
                    found.setdefault((event.trial, unit[0].epoch), []).append(places)
        return found

    assert groups(again) == groups(first)
    assert max(len(group) for epochs in groups(first).values() for group in epochs) > 1


@pytest.mark.parametrize("fails", ["in gangs", "anyway"])
def test_a_function_that_fails_in_gangs_is_trained_without_them(fails: str) -> None:
    world = hopping(more=LINEAR | {"training": {"gang": "auto", "retries": {"error": 0}}})
    original, seen = world.units._result, []

    def result(attempt: VirtualAttempt) -> Report:
        job, unit = attempt.job, attempt.job.unit
        assert unit is not None
        if unit.ranks == 1 and not (fails == "anyway" and (job.trial, unit.trains) in seen):
            return original(attempt)
        seen.append((job.trial, unit.trains))
        return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.ERROR, message="bad", ended=world.clock.now)

    world.units._result = result  # type: ignore[method-assign]
    world.run()
    world.judge()
    assert set(together(world)) == {1}
    failed = [event for entry in world.journal.entries("hopping") for event in entry.events if _is_failure(event)]
    if fails == "in gangs":
        assert 1 <= len(seen) <= 3 and not failed, "units that ran at the time, and no attempt"
    else:
        assert failed and all("bad" in event.message for event in failed)


def _is_failure(event: Any) -> bool:
    return isinstance(event, AttemptFailed)


def test_views_tell_units_of_several_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    world = hopping(validation=1).run()
    last = max(world.study.state.trials, key=lambda trial: trial.resource)
    lines = list(visit_lines(world.study.spec, last))
    assert any(" + " in line for line in lines), lines
    units = hop_units(world.study.spec, world.study.state)
    assert len(units) == sum(together(world)), "a bar for each rank on its worker"
    assert f"{len(together(world))} units" in done_words(world.study)
    for epoch in range(last.resource):
        spans = {(one.started, one.ended) for one in units if (one.trial, one.epoch) == (last.number, epoch)}
        assert math.isclose(sum(end - start for start, end in spans), _seconds_of(lines[epoch]), abs_tol=1.0)


def _seconds_of(line: str) -> float:
    """``...; 9 s`` or ``...; 1 min 3 s`` at the end of a line."""
    words = line.rpartition("; ")[2].split()
    scale = {"s": 1, "min": 60, "h": 3600}
    return sum(float(number) * scale[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"gang": 2}}, "set training.gang to auto"),
        ({**GANGS, "cluster": {"kind": "local", "workers": 2}}, "needs 3 slots at once"),
        ({**GANGS, "share": {"pool": "cpu"}, "cluster": {"kind": "local", "workers": 4}}, "share"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    plain = {
        "study": "s",
        "objective": "lab:train",
        "metric": {"name": "loss"},
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "search": METHODS["sha"],
        "data": {"partitions": ["a", "b"]},
    }
    with pytest.raises(SpecError, match=words):
        StudySpec.from_plain(plain | change)


def test_what_a_controller_left_and_what_it_measured_keep_units_apart() -> None:
    """Progress holds which visits were one unit; times of gangs are not taken for those of one worker."""
    visits = tuple(Visit(epoch, place, f"w{place}", 10.0 * epoch, 10.0 * epoch + 4.0, 9) for epoch, place in _SEEN)
    state = Checkpoint("hops/trial-00000/attempt-0-unit-000007.safetensors", "", 2, 5)
    for together in (UNSET, (2, 1, 1), (2, 2)):
        training = HoppedJob(Job(0, 1, Rung(0, 0), 9, {}), lambda *_: None, names="ab", weights=[1, 1], trained_on=2)
        left = JobProgress(
            origin=None,
            params={},
            epoch=2,
            state=state,
            visits=list(visits),
            together=list(together or [1] * 4),
            elapsed=8.0,
        )
        training.go_on_from(left)
        assert training.together == together == training.failed(Outcome.PREEMPTED, "").together
        assert training.progress().together == left.together


_SEEN = ((0, 0), (0, 1), (1, 1), (1, 0))


def test_a_job_of_such_a_study_is_one_slot() -> None:
    world = hopping().run()
    granted = Study.from_entries(list(world.journal.entries("hopping")))
    assert granted.job_slots == 1 and granted.demand(100) == 0 and granted.spare(100) == 0
