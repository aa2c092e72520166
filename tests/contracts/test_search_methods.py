"""What every search method owes, whatever it is: purity, replay, recovery, extension, an idle-free cluster."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.errors import HpoError
from hpo_core.model.events import (
    Entry,
    JobCompleted,
    JobGranted,
    Reproduced,
    TrialAbandoned,
    TrialCreated,
    TrialExtended,
    TrialExtensionEnded,
    concerns_search,
)
from hpo_core.model.stage import FURTHER
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.search.method import RungStatus
from hpo_core.spec import StudySpec
from tests.conftest import World, completed, failed, fresh
from tests.laws.test_laws import snapshot
from tests.methods import ALL, SEARCHES, facts, judge, spec_of

WORKERS = [1, 4, 30]


def played(name: str, workers: int = 4) -> Study:
    world = World(workers, workers=workers, failures=0.05, nans=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    world.play(study)
    return study


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ALL)
def test_played_to_its_end_with_failures(name: str, workers: int) -> None:
    world = World(workers, workers=workers, failures=0.05, nans=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    running = list(study.set_capacity(workers))
    snapshots = [snapshot(fresh(study.spec)), snapshot(study)]
    while running:
        asked_twice = [repr(study.method.next_action()), repr(study.method.next_action())]
        assert asked_twice[0] == asked_twice[1], "asking changed the method"
        running += study.tell_report(world.report(running.pop(world.random.randrange(len(running)))))
        study.check()  # among its laws: no idle slot while something could run
        snapshots.append(snapshot(study))
    assert study.status == "finished"

    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    ended = {trial.number for trial in study.state.trials if trial.results or trial.abandoned}
    assert ended == set(range(len(study.state.trials))), "a trial was lost"
    counted = Counter((event.trial, event.rung) for event in facts(entries, JobCompleted))
    assert set(counted.values()) == {1}, "a result was counted twice"
    if not name.startswith("pareto"):
        judge(study.spec, entries)

    again = None
    for k, entry in enumerate(entries):
        if again is None:
            again = Study.from_entries([entry])
        else:
            again.replay(entry)
        assert snapshot(again) == snapshots[k], f"replay differs from live at entry {k}"


@pytest.mark.parametrize("name", ALL)
def test_recovery_at_every_entry(name: str) -> None:
    entries = list(played(name).journal.entries("world"))
    for cut in range(1, len(entries) + 1, 1 if len(entries) < 60 else 3):
        journal = MemoryJournal()
        journal.create("world", entries[0])
        for entry in entries[1:cut]:
            journal.append("world", entry)
        study = Study.open("world", journal)
        study.recover("second controller")
        world = World(cut, workers=3, failures=0.05)
        world.play(study)
        assert study.status == "finished"
        assert audit(journal.entries("world")).clean
        study.check()


@pytest.mark.parametrize("name", ALL)
def test_rungs_as_people_see_them(name: str) -> None:
    study = fresh(spec_of(name))
    for_the_eye = study.method.rungs()
    assert for_the_eye and all(isinstance(rung, RungStatus) for rung in for_the_eye)
    start = sum(rung.units for rung in for_the_eye)
    assert start > 0, "before it begins a study has units of training to come"
    World(2).play(study)
    rungs = study.method.rungs()
    assert sum(rung.results for rung in rungs) == study.state.completed_jobs
    assert all(rung.results == rung.expected and rung.units == 0 for rung in rungs if rung.is_open), rungs
    members = getattr(study.spec.search, "population", None)  # whose sessions are trials of their own
    began = rungs[0].results if members else len(study.state.trials)
    assert members is None or began >= members
    assert sum(rung.promoted for rung in rungs) == study.state.completed_jobs - began
    used = study.state.resource_used
    assert 0.5 * used <= start <= 2 * used or name.endswith(("pasha", "endless")), (start, used)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("when", ["at its end", "in the middle"])
def test_extension(name: str, when: str) -> None:
    world = World(5)
    study = fresh(spec_of(name), MemoryJournal(), world)
    running = world.play(study, steps=None if when == "at its end" else 9)
    planned = study.method.rungs()
    if name == "grid":
        with pytest.raises(HpoError, match="all of them are in the study"):
            study.extend(7)
        return
    study.extend(7)
    assert sum(r.units for r in study.method.rungs()) > sum(r.units for r in planned)
    known = {(job.trial, job.attempt) for job in running}
    world.play(study, running + [j for j in study.state.wanted() if (j.trial, j.attempt) not in known])
    assert study.status == "finished"
    whole = fresh(spec_of(name))
    World(6).play(whole)
    assert len(study.state.trials) == len(whole.state.trials) + 7
    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    if not name.startswith("pareto"):
        judge(study.spec, entries)


@pytest.mark.parametrize("name", ALL)
def test_driven_by_hand_with_one_worker_it_makes_the_same_decisions(name: str) -> None:
    """ask/tell needs no capacity; the grants are those of a cluster of one."""
    world = World()
    by_hand = fresh(spec_of(name), MemoryJournal())
    jobs = []
    while (job := by_hand.ask()) is not None:
        jobs.append((job.trial, job.rung, job.target, job.params))
        by_hand.tell(job, world.report(job).metrics)
    assert by_hand.finished
    if by_hand.method.reads_curves:
        return  # tell gives no curve, so these decide from rung results alone
    one = fresh(spec_of(name), MemoryJournal())
    running = one.set_capacity(1)
    granted = []
    while running:
        granted.append((running[0].trial, running[0].rung, running[0].target, running[0].params))
        running = one.tell_report(world.report(running[0]))
    assert granted == jobs


@pytest.mark.parametrize("name", ALL)
def test_the_spec_comes_back_from_its_plain_form(name: str) -> None:
    spec = spec_of(name)
    assert StudySpec.from_plain(spec.plain()) == spec


@pytest.mark.parametrize("name", ALL)
def test_rerun_grants_the_same_whatever_the_timing(name: str) -> None:
    source = played(name)
    entries = list(source.journal.entries("world"))
    again = fresh(rerun_spec(entries, "again"), MemoryJournal())
    World(99, workers=7).play(again)
    wanted = {(e.trial, e.bracket, e.rung, e.target) for e in facts(entries, JobGranted) if not e.retry}
    done = facts(again.journal.entries("again"), JobGranted)
    assert {(e.trial, e.bracket, e.rung, e.target) for e in done} == wanted
    assert [e.params for e in facts(again.journal.entries("again"), TrialCreated)] == [
        trial.params for trial in source.state.trials
    ]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(4))
def test_trials_that_a_person_abandons(name: str, seed: int) -> None:
    """Running, waiting to be tried again, or paused: the study goes on without them to its end."""
    world = World(seed, workers=4, failures=0.1, nans=0.05)
    study = fresh(spec_of(name, training={"retries": {"error": 3, "crashed": 3}}), MemoryJournal(), world)
    running = list(study.set_capacity(4))
    results: dict[int, int] = {}
    statuses: Counter[str] = Counter()
    while running:
        running += study.tell_report(world.report(running.pop(world.random.randrange(len(running)))))
        study.check()
        alive = [t for t in study.state.trials if t.abandoned is None and t.stopped is None]
        wanted = [t for t in alive if t.running or t.waiting or t.number not in study.method.ruled_out]
        if wanted and world.random.random() < 0.3:
            trial = world.random.choice(wanted)
            statuses[trial.status] += 1
            results[trial.number] = len(trial.results)
            study.abandon(trial.number)
            assert trial.status == "abandoned"
            study.state.check()
            study.method.check()
            running = [job for job in running if job.trial != trial.number] + study.set_capacity(4)
            study.check()
    assert study.status == "finished"
    assert statuses
    for number, count in results.items():
        assert len(study.state.trials[number].results) == count, "it went on"
    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    again = Study.from_entries(entries)
    assert snapshot(again) == snapshot(study)
    again.checkpoints.check()
    study.checkpoints.check()
    for reproduced in facts(entries, Reproduced):
        if reproduced.parent in results:
            before = [e.seq for e in entries if any(reproduced == event for event in e.events)]
            gone = [e.seq for e in entries if any(
                isinstance(event, TrialAbandoned) and event.trial == reproduced.parent for event in e.events
            )]  # fmt: skip
            assert before[0] < gone[0], "an abandoned trial became a parent"
    if not name.startswith("pareto"):
        judge(study.spec, entries)


def test_no_method_is_missing() -> None:
    """Every method of the spec's union is among those tested here (recorded has the test before this one)."""
    from typing import get_args

    from hpo_core.spec import Search

    named = {model.model_fields["method"].default for model in get_args(get_args(Search)[0])}
    assert named - {"recorded"} == {search["method"] for search in SEARCHES.values()}


def search_of(study: Study) -> str:
    """All that a search method shows."""
    method = study.method
    return repr((method.rungs(), method.next_action(), method.ruled_out, method.verdict()))


TO = 100
"""Beyond the maximum resource of every search here."""


@pytest.mark.parametrize("name", ALL)
def test_trained_further_after_the_search(name: str) -> None:
    """A person's wish leaves the search as it was: same rungs, same trials; its result can be the best."""
    world = World(4, workers=4, failures=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    world.play(study)
    before, trials = search_of(study), len(study.state.trials)
    best, used = study.best, study.state.resource_used
    assert best is not None
    (job,) = study.train_further(to=TO)
    assert (job.trial, job.rung, job.target) == (best.trial, FURTHER, TO) and job.checkpoint is None
    assert not study.finished
    study.check()
    assert study.tell_report(completed(job, best.loss - 1)) == []
    assert study.finished and study.status == "finished"
    study.check()
    assert (search_of(study), len(study.state.trials)) == (before, trials)
    trial = study.state.trials[best.trial]
    assert (trial.resource, [r.resource for r in trial.further]) == (TO, [TO])
    assert study.state.resource_used > used and study.rules.resource_left(study.state) is None
    assert study.best is not None and (study.best.trial, study.best.resource) == (best.trial, TO)

    second = next(t.number for t in study.state.trials if t.results and t.loss is not None and t.number != best.trial)
    world = World(3, workers=4)
    jobs = study.train_further(second, TO) + study.train_further(best.trial, 2 * TO)
    assert [(job.trial, job.target) for job in jobs] == [(second, TO), (best.trial, 2 * TO)]
    world.play(study, jobs)
    assert study.finished and search_of(study) == before

    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    assert snapshot(Study.from_entries(entries)) == snapshot(study)
    again = fresh(rerun_spec(entries, "again"), MemoryJournal())
    World(9, workers=5).play(again)
    assert again.finished
    assert [[r.resource for r in t.all_results] for t in again.state.trials if t.further] == [
        [r.resource for r in t.all_results] for t in study.state.trials if t.further
    ]
    if name != "grid":
        study.extend(2)
        world.play(study, study.state.wanted())
        assert study.finished
        study.check()
        assert audit(study.journal.entries("world")).clean


@pytest.mark.parametrize("name", ALL)
def test_trained_further_while_the_search_is_halted(name: str) -> None:
    """The halted search stays halted; a resume goes on with it, and promotes the same trial by its own results."""
    world = World(5)
    study = fresh(spec_of(name), MemoryJournal(), world)
    running = world.play(study, steps=5)
    with pytest.raises(HpoError, match="its search is not over"):
        study.train_further(to=TO)
    study.stop("a person")
    world.play(study, running)
    assert study.status == "halted" and study.best is not None
    halted = study.state.halted
    study.recover("to train further", keep_halt=True)
    assert study.state.halted == halted
    study.train_further(to=TO)
    (job,) = study.set_capacity(2)
    assert (job.trial, job.rung) == (study.best.trial, FURTHER)
    study.stop("interrupted")
    assert study.tell_report(failed(job, Outcome.PREEMPTED)) == [] and study.at_rest
    study.train_further(to=TO)
    (job,) = study.state.wanted()
    assert job.retry is False and study.tell_report(world.report(job)) == []
    assert study.status == "halted" and study.at_rest
    study.check()
    study.recover("to search on")
    world.play(study)
    assert study.status == "finished"
    study.check()
    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    if not name.startswith("pareto"):
        judge(study.spec, [_without_further(entry) for entry in entries])


def _without_further(entry: Entry) -> Entry:
    """What the search did: the rules' own judges know nothing of the other jobs."""
    return msgspec.structs.replace(entry, events=tuple(event for event in entry.events if concerns_search(event)))


@pytest.mark.parametrize("name", ALL)
def test_recovery_at_every_entry_while_trained_further(name: str) -> None:
    study = played(name)
    before = study.seq
    world = World(8, workers=3, failures=0.3)
    numbers = [t.number for t in study.state.trials if t.results and t.loss is not None][:3]
    jobs = [job for number in numbers for job in study.train_further(number, TO)]
    world.play(study, jobs)
    assert study.finished
    study.check()
    entries = list(study.journal.entries("world"))
    assert audit(entries).clean
    for cut in range(before, len(entries) + 1):
        journal = MemoryJournal()
        journal.create("world", entries[0])
        for entry in entries[1:cut]:
            journal.append("world", entry)
        again = Study.open("world", journal)
        again.recover("second controller")
        World(cut, workers=3).play(again)
        assert again.finished
        asked = {e.trial for e in facts(entries[:cut], TrialExtended)}
        ended = {e.trial for e in facts(journal.entries("world"), TrialExtensionEnded)}
        for number in asked - ended:
            assert [r.resource for r in again.state.trials[number].further] == [TO]
        assert audit(journal.entries("world")).clean
        again.check()
