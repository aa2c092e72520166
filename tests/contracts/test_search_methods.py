"""What every search method owes, whatever it is: purity, replay, recovery, extension, an idle-free cluster."""

from __future__ import annotations

from collections import Counter

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.errors import HpoError
from hpo_core.events import JobCompleted, JobGranted, TrialCreated
from hpo_core.journal.audit import audit
from hpo_core.journal.rerun import rerun_spec
from hpo_core.search.base import RungStatus
from hpo_core.spec import StudySpec
from tests.conftest import World, fresh
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


def test_no_method_is_missing() -> None:
    """Every method of the spec's union is among those tested here (recorded has the test before this one)."""
    from typing import get_args

    from hpo_core.spec import Search

    named = {model.model_fields["method"].default for model in get_args(get_args(Search)[0])}
    assert named - {"recorded"} == {search["method"] for search in SEARCHES.values()}
