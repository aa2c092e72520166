"""Every search method in its variants: the contract, and training beyond the search."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry, TrialExtended, TrialExtensionEnded, concerns_search
from hpo_core.model.trial import FURTHER
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from tests.conftest import World, completed, failed, fresh
from tests.contract_suites.fake_training import snapshot
from tests.contract_suites.search_method_contract import SearchMethodContract
from tests.methods import ALL, SEARCHES, facts, judge, spec_of


def played(name: str, workers: int = 4) -> Study:
    world = World(workers, workers=workers, failures=0.05, nans=0.05)
    study = fresh(spec_of(name), MemoryJournal(), world)
    world.play(study)
    return study


class TestSearchMethods(SearchMethodContract):
    """The contract for every method in its variants."""

    @pytest.fixture(params=ALL)
    def spec(self, request: pytest.FixtureRequest) -> StudySpec:
        return spec_of(request.param)

    def check_decisions(self, spec: StudySpec, entries: Sequence[Entry]) -> None:
        if len(spec.metrics) < 2:
            judge(spec, entries)

    def has_fixed_length(self, spec: StudySpec) -> bool:
        search = spec.search
        return not (search.method == "pasha" or (search.method == "asha" and search.max_resource is None))

    def extension_refusal(self, spec: StudySpec) -> str:
        return "all of them are in the study" if spec == spec_of("grid") else ""


def test_every_method_of_the_spec_runs_the_contract() -> None:
    """Every method of the spec's union is in SEARCHES; ``recorded`` runs in the contract's test of reruns."""
    from hpo_core.search.registry import BY_NAME

    assert set(BY_NAME) - {"recorded"} == {search["method"] for search in SEARCHES.values()}


def search_of(study: Study) -> str:
    """All that a search method shows."""
    method = study.method
    return repr((method.rungs(), method.next_action(), method.ruled_out, method.next_fact()))


TO = 100
"""Beyond the maximum resource of every search here."""


@pytest.mark.parametrize("name", ALL)
def test_training_a_trial_further_leaves_a_finished_search_unchanged(name: str) -> None:
    """Rungs and trials stay the same; the further result can become the best."""
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
def test_training_a_trial_further_leaves_a_halted_search_halted(name: str) -> None:
    """A resume continues the search, which promotes the same trial by its results within the search."""
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
    """The entry with the events of the search alone, which are those that ``judge`` compares with the rules."""
    return msgspec.structs.replace(entry, events=tuple(event for event in entry.events if concerns_search(event)))


@pytest.mark.parametrize("name", ALL)
def test_a_study_recovered_after_any_entry_of_further_training_reaches_its_end(name: str) -> None:
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
