"""Which checkpoints stay, which go first within a budget, and what becomes of those that lost theirs."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import msgspec
import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.checkpoints.retention import Hold, LiveCheckpoints, promotion_chance
from hpo_core.model.events import CheckpointRemoved, JobCompleted, JobGranted, StudyHalted, TrialCreated
from hpo_core.model.trial import Checkpoint, Job, Report, Rung
from hpo_core.replay.audit import audit
from hpo_core.search.random import Straight
from hpo_core.state import StudyState
from hpo_core.views.states import trial_story
from tests.conftest import World, completed, failed, fresh, make_spec, played
from tests.laws.test_laws import snapshot
from tests.methods import ALL, facts, spec_of

NINE = {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


def written(job: Job, size: int = 100) -> Checkpoint:
    place = f"r{job.rung}"
    return Checkpoint(f"t{job.trial}-{place}", "", job.target, size, job.checkpoint.uri if job.checkpoint else None)


def good(job: Job, loss: float, size: int = 100) -> Report:
    return completed(job, loss, checkpoint=written(job, size))


class Disk(World):
    """A world whose checkpoints are files: a job finds its own there, and what is dead is deleted."""

    size = 100

    def __init__(self, seed: int = 0, **more: Any) -> None:
        super().__init__(seed, **more)
        self.files: dict[str, int] = {}
        self.most_files = self.most_bytes = 0

    def report(self, job: Job) -> Report:
        assert job.checkpoint is None or job.checkpoint.uri in self.files, f"{job} finds no checkpoint"
        report = super().report(job)
        if report.outcome is not Outcome.COMPLETED:
            return report
        checkpoint = written(job, self.size)
        self.files[checkpoint.uri] = checkpoint.size
        self.most_files = max(self.most_files, len(self.files))
        self.most_bytes = max(self.most_bytes, sum(self.files.values()))
        return msgspec.structs.replace(report, checkpoint=checkpoint)

    def through(self, study: Study, jobs: list[Job] | None = None) -> None:
        """Play to the end, checking everything after every report."""
        running = list(study.set_capacity(self.workers) if jobs is None else jobs)
        live = study.checkpoints
        while running:
            running += study.tell_report(self.report(running.pop(self.random.randrange(len(running)))))
            for uri in live.take_dead():
                self.files.pop(uri, None)
            study.check()
            assert set(self.files) == live.uris
            searching = set(study.state.running)
            assert not set(study.method.ruled_out) & searching, "ruled out, and goes on"


def removals(study: Study) -> list[tuple[int, int]]:
    return [(event.trial, event.resource) for event in facts(study.journal.entries(study.name), CheckpointRemoved)]


# Without a limit.


@pytest.mark.parametrize("name", ALL)
def test_without_a_limit_unneeded_checkpoints_are_removed_at_once(name: str) -> None:
    world = Disk(3, failures=0.05, nans=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    world.through(study)
    assert not removals(study)
    trials = study.state.trials
    best = {checkpoint.uri for _, checkpoint in study.state.front_checkpoints()}
    assert best <= study.checkpoints.uris
    if study.spec.search.method in ("asha", "pasha") and "stopping" not in name:
        top = getattr(study.spec.search, "max_resource", None)
        paused = [t for t in trials if t.status == "paused" and t.resource != top and t.loss is not None]
        newest = [trial.results[-2:] for trial in paused]  # an extension may promote them
        kept = {r.checkpoint.uri for results in newest for r in results if r.checkpoint is not None}
        assert paused and study.checkpoints.uris == kept | best
    elif study.spec.search.method != "pbt":
        assert study.checkpoints.uris == best, "nobody goes on any more, whatever the extension"


@pytest.mark.parametrize("name", [name for name in ALL[::2] if name != "grid"])  # a whole grid cannot be extended
def test_an_extended_study_has_every_checkpoint_it_needs(name: str) -> None:
    world = Disk(1, nans=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    world.through(study)
    before = study.seq
    world.through(study, study.extend(40))
    later = facts(list(study.journal.entries("world"))[before:], JobGranted)
    assert later and study.status == "finished"
    again = [grant for grant in later if grant.trial < later[0].trial and grant.rung]
    assert again or name not in ("asha", "asha-shared", "pasha"), "the extension promoted none of the old trials"
    assert all(grant.checkpoint is not None for grant in again)


def test_the_checkpoint_of_a_beaten_incumbent_is_removed_at_once() -> None:
    study = fresh(make_spec(search={"method": "random", "configs": 4, "max_resource": 5}))
    live = study.checkpoints
    (first,) = study.set_capacity(1)
    (second,) = study.tell_report(good(first, 0.5))
    assert live.uris == {"t0-r0"} and live.take_dead() == []
    (third,) = study.tell_report(good(second, 0.7))
    assert live.take_dead() == ["t1-r0"], "it never was the best"
    study.tell_report(good(third, 0.2))
    assert live.take_dead() == ["t0-r0"] and live.uris == {"t2-r0"}


def test_a_synchronous_rung_removes_checkpoints_that_it_does_not_promote() -> None:
    study = fresh(make_spec(search=NINE | {"method": "sha"}))
    live = study.checkpoints
    jobs = study.set_capacity(9)
    for job in jobs[:-1]:
        study.tell_report(good(job, float(job.trial)))
    assert live.take_dead() == []
    study.tell_report(good(jobs[-1], 8.0))
    assert sorted(live.take_dead()) == [f"t{n}-r0" for n in range(3, 9)]


def test_a_failed_trial_keeps_its_checkpoint_and_an_abandoned_one_keeps_none() -> None:
    study = fresh(make_spec(search=NINE))
    live = study.checkpoints
    jobs = study.set_capacity(1)
    for loss in (0.3, 0.2, 0.1):
        (job,) = jobs
        jobs = study.tell_report(good(job, loss))
    (promoted,) = jobs
    assert promoted.trial == 2 and live.why("t2-r0") is Hold.PINNED
    (again,) = study.tell_report(failed(promoted, Outcome.CRASHED))
    assert again.checkpoint == promoted.checkpoint and live.why("t2-r0") is Hold.PINNED
    study.tell_report(failed(again, Outcome.CRASHED))
    assert study.state.trials[2].abandoned and "t2-r0" in live, "the best result is its"
    (other,) = study.state.wanted()
    study.tell_report(good(other, 0.05))
    assert "t2-r0" not in live
    study.check()


def test_a_parents_checkpoint_is_kept_while_its_child_needs_it() -> None:
    """A search method that starts trials from each other's checkpoints, event by event."""
    state, method = StudyState(), Straight(9, 1)  # never told of anything, so it rules nobody out by itself
    live = LiveCheckpoints(state, method)

    def apply(*events: Any) -> None:
        for event in events:
            state.apply(event)
            live.apply(event)
            live.check()

    def train(trial: int, loss: float, uri: str) -> list[Any]:
        written = Checkpoint(uri, "", 1, 10)
        result = JobCompleted(trial, 0, Rung(0, 0), 1, loss, {}, written, "", 0, 1)
        return [TrialCreated(trial, 0, {}), JobGranted(trial, 0, Rung(0, 0), 1, None), result]

    apply(*train(0, 0.5, "parent"), *train(1, 0.1, "best"))
    assert live.why("parent") is Hold.RESTING
    apply(TrialCreated(2, 0, {}, parent=0), JobGranted(2, 0, Rung(0, 1), 2, Checkpoint("parent", "", 1, 10)))
    method.ruled_out.append(0)
    apply(TrialCreated(3, 0, {}))
    assert live.why("parent") is Hold.PINNED, "a running child loads it, though its own trial has no use for it"
    apply(JobCompleted(2, 0, Rung(0, 1), 2, 0.7, {}, Checkpoint("child", "", 2, 10), "", 0, 1))
    assert live.take_dead() == ["parent"] and live.uris == {"best", "child"}


# Within a limit.


def test_the_order_is_older_checkpoints_then_the_expected_retraining_then_training() -> None:
    """The least chance times units goes first, which somewhere is not the least chance."""
    study = played(make_spec(checkpoints={"max_count": 100}), Disk(2), steps=30)
    budget, live, trials = study.parts.budget, study.checkpoints, study.state.trials
    budget.limits = budget.limits.model_copy(update={"max_count": 1})
    order, against = [], 0
    while (removal := budget.removal(0)) is not None:
        result = next(r for r in trials[removal.trial].results if r.resource == removal.resource)
        why = live.why(result.checkpoint.uri)
        order.append((why, removal.chance * removal.resource, removal.resource if why is Hold.RESTING else 0))
        kept = {n: c.resource for n, c in live.resting.items() if live.why(c.uri) is Hold.RESTING}
        if removal.trial in kept and removal.resource == kept[removal.trial]:
            losses = {}
            for trial, resource in kept.items():
                here = [r for t in trials for r in t.results if r.rung == trials[trial].rung]
                ranked = sorted((r.loss is None, r.loss, r.trial) for r in here)
                place = 1 + [number for *_, number in ranked].index(trial)
                losses[trial] = promotion_chance(place, len(ranked), 3) * resource
            assert losses[removal.trial] == min(losses.values()) == removal.chance * removal.resource
            against += any(
                loss > losses[removal.trial] and loss / kept[trial] < removal.chance for trial, loss in losses.items()
            )
        study.parts.apply(removal)
    assert against, "the order was that of the chances alone"
    assert order == sorted(order) and {hold for hold, _, _ in order} == {Hold.FALLBACK, Hold.RESTING}
    assert len({loss for _, loss, _ in order}) > 3
    assert all(live.why(uri) is Hold.PINNED for uri in live.uris)


def test_a_trial_promoted_after_its_checkpoint_was_removed_starts_from_zero() -> None:
    world = Disk(1, workers=1)
    study = fresh(make_spec(search=NINE, checkpoints={"max_count": 2}), MemoryJournal(), world)
    jobs = study.set_capacity(1)
    losses = {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.95, 4: 0.96, 5: 0.97}
    while jobs:
        (job,) = jobs
        if job.trial == 1 and job.rung == 1:
            break
        jobs = study.tell_report(good(job, losses.get(job.trial, 1.0) - 0.01 * job.rung))
        study.check()
    assert (job.checkpoint, job.target) == (None, 3), "nothing is left of what it had trained"
    assert (1, 1) in removals(study)
    story = "\n".join(trial_story(study, 1))
    assert "its checkpoint at 1 unit was removed to stay within the study's budget" in story
    study.tell_report(good(job, 0.15))
    assert study.state.trials[1].resource == 3


def test_bytes_are_reserved_for_running_jobs_once_a_size_is_known() -> None:
    study = fresh(make_spec(checkpoints={"max_bytes": 1030}))
    (first,) = study.set_capacity(8)
    study.check()
    granted = study.tell_report(good(first, 0.5, size=250))
    assert len(granted) == 3, "250 are there, 255 reserved for each of three jobs; a fourth does not fit"
    study.check()
    (job, *others) = granted
    study.tell_report(good(job, 0.7, size=300))
    assert study.checkpoints.bytes + 306 * len(study.state.running) <= 1030
    assert removals(study) == [(job.trial, 1)] and others


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_count": 1}, r"checkpoints.max_count = 1 leaves .* are 1, and a job writes .*: \{max_count: 3\}"),
        ({"max_bytes": 150}, r"checkpoints.max_bytes = 150 leaves .* are 100 bytes, .* write 102 more.*max_bytes: 304"),
    ],
)
def test_a_limit_that_is_too_small_halts_the_study_with_the_cure(limits: dict[str, int], says: str) -> None:
    import re

    study = fresh(make_spec(checkpoints=limits))
    jobs = study.set_capacity(4)
    while jobs:
        jobs = [*jobs[1:], *study.tell_report(good(jobs[0], float(jobs[0].trial)))]
        study.check()
    assert study.status == "halted" and study.state.halted is not None
    assert re.search(says, study.state.halted.reason), study.state.halted.reason
    study.recover("again")
    assert study.set_capacity(4) == [] and study.status == "halted"
    assert len(facts(study.journal.entries("world"), StudyHalted)) == 2
    assert audit(study.journal.entries("world")).clean


LIMITS = [{"max_count": 12}, {"max_count": 6}, {"max_bytes": 900}]


@pytest.mark.parametrize(("name", "limits"), zip(ALL, cycle(LIMITS), strict=False))
def test_every_method_finishes_within_its_limit(name: str, limits: dict[str, int]) -> None:
    world = Disk(len(name), failures=0.05, nans=0.05)
    study = fresh(spec_of(name, checkpoints=limits), world=world)
    world.through(study)
    assert study.status == "finished"
    assert world.most_files <= limits.get("max_count", 1000) and world.most_bytes <= limits.get("max_bytes", 10**6)
    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    again = Study.from_entries(entries)
    again.check()
    assert snapshot(again) == snapshot(study) and again.checkpoints.uris == study.checkpoints.uris
