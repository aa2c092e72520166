from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import (
    AttemptFailed,
    CheckpointCondemned,
    Entry,
    JobCompleted,
    JobGranted,
    JobPlaced,
    PlacementsNoticed,
    ReportIgnored,
    StudyHalted,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.trial import Checkpoint
from hpo_core.replay.audit import audit
from hpo_core.views.states import trial_story
from tests.conftest import World, completed, failed, fresh, make_spec, played


def last_events(study: Study) -> list[type]:
    return [type(event) for event in list(study.journal.entries(study.name))[-1].events]


def test_one_entry_holds_result_and_next_job(study: Study) -> None:
    (job,) = study.set_capacity(1)
    study.tell_report(completed(job, 0.5))
    assert last_events(study) == [JobCompleted, TrialCreated, JobGranted]


def test_promotion_comes_before_a_new_trial(study: Study) -> None:
    jobs = study.set_capacity(3)
    for job, loss in zip(jobs, (0.3, 0.1, 0.2), strict=True):
        granted = study.tell_report(completed(job, loss))
    assert [(job.trial, job.rung, job.target) for job in granted] == [(1, 1, 3)]


def test_lost_attempt_is_wanted_again_first(study: Study) -> None:
    first, _ = study.set_capacity(2)
    (again,) = study.tell_report(failed(first, Outcome.LOST))
    assert (again.trial, again.attempt, again.target) == (first.trial, 1, first.target)
    assert again.params == first.params


def test_late_report_is_noted_and_changes_nothing(study: Study) -> None:
    (job,) = study.set_capacity(1)
    (again,) = study.tell_report(failed(job, Outcome.LOST))
    assert study.tell_report(completed(job, 0.1)) == []
    assert last_events(study) == [ReportIgnored]
    assert study.state.completed_jobs == 0
    study.tell_report(completed(again, 0.2))
    study.tell_report(completed(again, 0.05))  # told twice
    assert study.state.completed_jobs == 1 and study.best is not None and study.best.loss == 0.2
    assert study.state.ignored_reports == 2


def test_error_abandons_and_ranks_last() -> None:
    study = fresh(make_spec())
    jobs = study.set_capacity(3)
    study.tell_report(failed(jobs[0], Outcome.ERROR, "ValueError: no"))
    assert AttemptFailed in last_events(study) and TrialAbandoned in last_events(study)
    study.tell_report(completed(jobs[1], 0.9))
    granted = study.tell_report(completed(jobs[2], 0.8))
    assert [(job.trial, job.rung) for job in granted] == [(2, 1)], "an abandoned trial counts in its rung"
    study.check()


def test_crash_is_tried_once_more_then_abandoned(study: Study) -> None:
    (job,) = study.set_capacity(1)
    (again,) = study.tell_report(failed(job, Outcome.CRASHED))
    assert again.trial == job.trial
    (other,) = study.tell_report(failed(again, Outcome.CRASHED, "exit code 3"))
    assert other.trial != job.trial
    assert "crashed 2 times: exit code 3" in trial_story(study, job.trial)[-2]


def test_bad_checkpoint_sends_the_trial_back_to_its_last_good_one() -> None:
    study = fresh(make_spec())
    jobs = study.set_capacity(1)
    seen: dict[int, str] = {}
    while True:
        job = jobs[0]
        if job.rung == 2:
            break
        checkpoint = Checkpoint(f"t{job.trial}-r{job.rung}", "d", job.target, 1)
        seen[job.rung] = checkpoint.uri
        jobs = study.tell_report(completed(job, float(job.trial), checkpoint=checkpoint))
    assert job.checkpoint is not None and job.checkpoint.resource == 3
    (again,) = study.tell_report(failed(job, Outcome.CHECKPOINT_BAD))
    assert CheckpointCondemned in last_events(study)
    assert again.checkpoint is not None and (again.checkpoint.resource, again.target) == (1, 9)
    (scratch,) = study.tell_report(failed(again, Outcome.CHECKPOINT_BAD))
    assert scratch.checkpoint is None and scratch.target == 9
    study.check()


def test_full_disk_halts_and_loses_nothing(study: Study) -> None:
    first, second = study.set_capacity(2)
    assert study.tell_report(failed(first, Outcome.STORAGE, "disk full")) == []
    assert StudyHalted in last_events(study) and study.status == "halted"
    study.tell_report(failed(second, Outcome.STORAGE, "disk full"))
    assert not study.state.abandoned_trials
    study.recover("next")
    assert [job.trial for job in study.set_capacity(2)] == [first.trial, second.trial]


def test_an_objective_that_always_fails_halts_the_study() -> None:
    study = played(make_spec(training={"retries": {"lost": 0, "crashed": 0}}), World(failures=1.0))
    assert study.status == "halted" and study.state.halted is not None
    assert "5 trials failed before any succeeded" in study.state.halted.reason


def test_an_objective_that_a_change_broke_halts_the_resumed_study() -> None:
    study = fresh(make_spec(search={"method": "random", "configs": 40}, training={"retries": {"error": 0}}))
    (job,) = study.set_capacity(1)
    study.tell_report(completed(job, 0.5))
    for controller in ("second", "third"):
        study.recover(controller)
        before = study.state.abandoned_trials
        granted = study.set_capacity(1)
        while granted:
            granted = study.tell_report(failed(granted[0], Outcome.ERROR, "no such metric"))
        assert study.state.halted is not None and study.state.abandoned_trials == before + 5
        assert "5 trials failed before any succeeded since the study was resumed" in study.state.halted.reason
    study.recover("mended")
    (job,) = study.set_capacity(1)
    (job,) = study.tell_report(completed(job, 0.4))
    for _ in range(6):
        (job,) = study.tell_report(failed(job, Outcome.ERROR, "some fail in a lawful search"))


def test_max_mode_is_flipped_once() -> None:
    study = fresh(make_spec(metric={"name": "loss", "mode": "max"}))
    jobs = study.set_capacity(3)
    for job, value in zip(jobs, (0.3, 0.9, 0.2), strict=True):
        granted = study.tell_report(completed(job, value))
    assert granted[0].trial == 1
    assert study.best is not None and study.metric_value(study.best.loss) == 0.9


def test_capacity_grows_and_shrinks_without_ending_jobs(study: Study) -> None:
    jobs = study.set_capacity(4)
    assert len(jobs) == 4 and study.set_capacity(2) == []
    assert study.tell_report(completed(jobs[0], 0.1)) == [] and len(study.state.running) == 3
    assert len(study.set_capacity(5)) == 2


def test_a_study_that_could_not_record_is_closed() -> None:
    class Full(MemoryJournal):
        def append(self, study: str, entry: Entry) -> None:
            raise JournalError("disk full")

    study = fresh(make_spec(), Full())
    with pytest.raises(JournalError, match="disk full"):
        study.set_capacity(2)
    with pytest.raises(JournalError, match="could not record its last decision"):
        study.ask()
    again = Study.open("world", study.journal)
    assert again.state.trials == [], "nothing that was not recorded is remembered"


@pytest.mark.parametrize("wrong", [-1, 2.5, "3", None])
def test_wrong_capacity_is_refused_and_the_study_goes_on(study: Study, wrong: Any) -> None:
    import numpy as np

    with pytest.raises(HpoError, match="0 or more"):
        study.set_capacity(wrong)
    assert len(study.set_capacity(np.int64(2))) == 2  # type: ignore[arg-type]
    assert decode_entry(encode_entry(list(study.journal.entries(study.name))[-1])).seq == study.seq - 1


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
