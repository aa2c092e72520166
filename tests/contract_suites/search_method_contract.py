"""SearchMethodContract: what every search method must do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry, JobCompleted, JobGranted, Reproduced, TrialAbandoned, TrialCreated
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.search.method import RungStatus
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from tests.contract_suites.fake_training import FakeTraining, new_study, snapshot
from tests.methods import facts


class SearchMethodContract:
    """Subclass it in a test module and override :meth:`spec`; the other hooks have defaults."""

    @pytest.fixture
    def spec(self) -> StudySpec:
        """A small study with the method, such as ``example_spec(search={"method": ...})``; about 30 trials."""
        raise NotImplementedError("Override the fixture spec in the subclass of SearchMethodContract.")

    def check_decisions(self, spec: StudySpec, entries: Sequence[Entry]) -> None:
        """Compare a finished study's decisions with the method's rules; by default nothing is compared."""

    def has_fixed_length(self, spec: StudySpec) -> bool:
        """Whether a new study's planned units of training are within a factor of 2 of those used in the end."""
        return True

    def extension_refusal(self, spec: StudySpec) -> str:
        """Pattern of the error if the study cannot be extended by more configurations; empty if it can."""
        return ""

    def played(self, spec: StudySpec, workers: int = 4) -> Study:
        """The study run to its end, with some failures."""
        training = FakeTraining(workers, workers=workers, failures=0.05, nans=0.05)
        study = new_study(spec, MemoryJournal(), training)
        training.play(study)
        return study

    @pytest.mark.parametrize("workers", [1, 30])
    def test_a_study_with_failures_reaches_its_end_and_replays(self, spec: StudySpec, workers: int) -> None:
        training = FakeTraining(workers, workers=workers, failures=0.05, nans=0.05)
        study = new_study(spec, MemoryJournal(), training)
        running = list(study.set_capacity(workers))
        snapshots = [snapshot(new_study(study.spec)), snapshot(study)]
        while running:
            asked_twice = [repr(study.method.next_action()), repr(study.method.next_action())]
            assert asked_twice[0] == asked_twice[1], "asking changed the method"
            running += study.tell_report(training.report(running.pop(training.random.randrange(len(running)))))
            study.check()  # one of its invariants: no idle slot while something could run
            snapshots.append(snapshot(study))
        assert study.status == "finished"

        entries = list(study.journal.entries(spec.study))
        assert audit(entries).clean
        ended = {trial.number for trial in study.state.trials if trial.results or trial.abandoned}
        assert ended == set(range(len(study.state.trials))), "a trial was lost"
        counted = Counter((event.trial, event.rung) for event in facts(entries, JobCompleted))
        assert set(counted.values()) == {1}, "a result was counted twice"
        self.check_decisions(study.spec, entries)

        again = None
        for k, entry in enumerate(entries):
            if again is None:
                again = Study.from_entries([entry])
            else:
                again.replay(entry)
            assert snapshot(again) == snapshots[k], f"replay differs from live at entry {k}"

    def test_a_study_recovered_after_an_entry_reaches_its_end(self, spec: StudySpec) -> None:
        entries = list(self.played(spec).journal.entries(spec.study))
        for cut in range(1, len(entries) + 1, len(entries) // 8):
            journal = MemoryJournal()
            journal.create(spec.study, entries[0])
            for entry in entries[1:cut]:
                journal.append(spec.study, entry)
            study = Study.open(spec.study, journal)
            study.recover("second controller")
            training = FakeTraining(cut, workers=3, failures=0.05)
            training.play(study)
            assert study.status == "finished"
            assert audit(journal.entries(spec.study)).clean
            study.check()

    def test_rungs_count_results_promotions_and_remaining_units(self, spec: StudySpec) -> None:
        study = new_study(spec)
        planned_rungs = study.method.rungs()
        assert planned_rungs and all(isinstance(rung, RungStatus) for rung in planned_rungs)
        start = sum(rung.units for rung in planned_rungs)
        assert start > 0, "a new study has units of training left"
        FakeTraining(2).play(study)
        rungs = study.method.rungs()
        assert sum(rung.results for rung in rungs) == study.state.completed_jobs
        assert all(rung.results == rung.expected and rung.units == 0 for rung in rungs if rung.is_open), rungs
        members = getattr(study.spec.search, "population", None)  # whose sessions are trials of their own
        began = rungs[0].results if members else len(study.state.trials)
        assert members is None or began >= members
        assert sum(rung.promoted for rung in rungs) == study.state.completed_jobs - began
        used = study.state.resource_used
        assert 0.5 * used <= start <= 2 * used or not self.has_fixed_length(spec), (start, used)

    @pytest.mark.parametrize("when", ["at its end", "in the middle"])
    def test_an_extended_study_runs_the_further_configurations(self, spec: StudySpec, when: str) -> None:
        training = FakeTraining(5)
        study = new_study(spec, MemoryJournal(), training)
        running = training.play(study, steps=None if when == "at its end" else 9)
        planned = study.method.rungs()
        if refusal := self.extension_refusal(spec):
            with pytest.raises(HpoError, match=refusal):
                study.extend(7)
            return
        study.extend(7)
        assert sum(r.units for r in study.method.rungs()) > sum(r.units for r in planned)
        known = {(job.trial, job.attempt) for job in running}
        training.play(study, running + [j for j in study.state.wanted() if (j.trial, j.attempt) not in known])
        assert study.status == "finished"
        whole = new_study(spec)
        FakeTraining(6).play(whole)
        assert len(study.state.trials) == len(whole.state.trials) + 7
        entries = list(study.journal.entries(spec.study))
        assert audit(entries).clean
        self.check_decisions(study.spec, entries)

    def test_ask_and_tell_make_the_decisions_of_a_cluster_of_one(self, spec: StudySpec) -> None:
        training = FakeTraining()
        manual = new_study(spec, MemoryJournal())
        jobs = []
        while (job := manual.ask()) is not None:
            jobs.append((job.trial, job.rung, job.target, job.params))
            manual.tell(job, training.report(job).metrics)
        assert manual.finished
        if manual.method.reads_curves:
            return  # tell gives no curve, so these decide from rung results alone
        one = new_study(spec, MemoryJournal())
        running = one.set_capacity(1)
        granted = []
        while running:
            granted.append((running[0].trial, running[0].rung, running[0].target, running[0].params))
            running = one.tell_report(training.report(running[0]))
        assert granted == jobs

    def test_the_spec_is_restored_from_its_plain_form(self, spec: StudySpec) -> None:
        assert StudySpec.from_plain(spec.plain()) == spec

    def test_a_rerun_grants_the_same_jobs_whatever_their_timing(self, spec: StudySpec) -> None:
        source = self.played(spec)
        entries = list(source.journal.entries(spec.study))
        again = new_study(rerun_spec(entries, "again"), MemoryJournal())
        FakeTraining(99, workers=7).play(again)
        wanted = {(e.trial, e.bracket, e.rung, e.target) for e in facts(entries, JobGranted) if not e.retry}
        done = facts(again.journal.entries("again"), JobGranted)
        assert {(e.trial, e.bracket, e.rung, e.target) for e in done} == wanted
        assert [e.params for e in facts(again.journal.entries("again"), TrialCreated)] == [
            trial.params for trial in source.state.trials
        ]

    def test_a_study_with_abandoned_trials_reaches_its_end(self, spec: StudySpec) -> None:
        """Abandoned while running, waiting for a retry, or paused."""
        training = FakeTraining(2, workers=4, failures=0.1, nans=0.05)
        with_retries = StudySpec.from_plain(spec.plain() | {"training": {"retries": {"error": 3, "crashed": 3}}})
        study = new_study(with_retries, MemoryJournal(), training)
        running = list(study.set_capacity(4))
        results: dict[int, int] = {}
        statuses: Counter[str] = Counter()
        while running:
            running += study.tell_report(training.report(running.pop(training.random.randrange(len(running)))))
            study.check()
            alive = [t for t in study.state.trials if t.abandoned is None and t.stopped is None]
            wanted = [t for t in alive if t.running or t.waiting or t.number not in study.method.ruled_out]
            if wanted and training.random.random() < 0.3:
                trial = training.random.choice(wanted)
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
            assert len(study.state.trials[number].results) == count, "an abandoned trial went on"
        entries = list(study.journal.entries(spec.study))
        assert audit(entries).clean
        again = Study.from_entries(entries)
        assert snapshot(again) == snapshot(study)
        again.checkpoints.check()
        study.checkpoints.check()
        for reproduced in facts(entries, Reproduced):
            if reproduced.parent in results:
                before = [e.seq for e in entries if any(reproduced == event for event in e.events)]
                abandoned = [
                    e.seq
                    for e in entries
                    if any(isinstance(event, TrialAbandoned) and event.trial == reproduced.parent for event in e.events)
                ]
                assert before[0] < abandoned[0], "an abandoned trial became a parent"
        self.check_decisions(study.spec, entries)
