"""Where running jobs are: recorded a few at a time, forgotten with their attempt, and read by no decision."""

from __future__ import annotations

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.model.events import Entry, JobPlaced, PlacementsNoticed
from hpo_core.replay.audit import audit
from tests.conftest import World, failed, fresh, make_spec

GB = 1_000_000_000


def placed(job: Job, memory: int = GB) -> JobPlaced:
    return JobPlaced(job.trial, job.attempt, "GPU-a", "A100", share=(250, memory, 1000), began=1.0)


def told(study: Study) -> list[Entry]:
    return list(study.journal.entries(study.name))


def test_a_placement_holds_until_its_attempt_ends() -> None:
    world = World(3)
    study = fresh(make_spec(packing={}), MemoryJournal(), world)
    first, second, third = study.set_capacity(3)
    assert not study.state.trains(first.trial), "it waits"
    study.note_placements([placed(first), placed(second)])
    study.note_placements([placed(first, memory=5)])
    assert study.state.placed[first.trial].share[1] == 5, "what was said last"
    assert study.state.trains(second.trial) and not study.state.trains(third.trial)
    study.tell_report(world.good(first))
    (again,) = (job for job in study.tell_report(failed(second, Outcome.LOST)) if job.trial == second.trial)
    assert first.trial not in study.state.placed and second.trial not in study.state.placed
    before = study.seq
    study.note_placements([placed(first), placed(second), placed(Job(99, 0, first.stage, 1, {}))])
    study.note_placements([])
    assert study.seq == before, "attempts that have ended, and trials that nobody knows, are no entry"
    study.note_placements([placed(first), placed(again)])
    assert list(study.state.placed) == [again.trial]
    study.recover("second:2")
    assert study.state.placed == {}, "attempts of the controller before are lost"
    study.check()
    assert audit(told(study)).clean


def test_no_decision_reads_them() -> None:
    """The same reports lead to the same facts, whether placements were recorded or not."""
    decided = []
    for records in (False, True):
        world = World(7, failures=0.1)
        study = fresh(make_spec(packing={}), MemoryJournal(), world)
        running = study.set_capacity(4)
        while running:
            if records:
                study.note_placements([placed(job) for job in running[::2]])
            running += study.tell_report(world.report(running.pop(0)))
        facts = [event for entry in told(study) for event in entry.events if type(event) is not JobPlaced]
        decided.append(facts)
        assert any(type(entry.stimulus) is PlacementsNoticed for entry in told(study)) == records
        assert audit(told(study)).clean
    assert decided[0] == decided[1]
