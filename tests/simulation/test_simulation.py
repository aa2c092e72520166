"""Virtual workers: schedules worked out by hand, faults with the right rates, and everything the same twice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.journal.codec import encode_entry
from hpo_core.journal.memory import UnkeptJournal
from hpo_core.model.errors import FencedError, HpoError, JournalError, SpecError
from hpo_core.model.events import AttemptFailed, CapacityChanged, Entry, JobCompleted, TrialAbandoned
from hpo_core.model.trial import Metrics, Report, Rung
from hpo_core.replay.audit import audit
from hpo_core.simulation import AnalyticCurves, Faults, Simulation, VirtualClock, Worker, make_workers
from hpo_core.simulation.repeats import RunFigures, Scenario, World, play, simulated_spec
from hpo_core.spec import StudySpec
from tests.conftest import make_spec
from tests.methods import SEARCHES, spec_of

RANDOM = {"method": "random", "configs": 3, "max_resource": 4}
ASHA = {"method": "asha", "configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}


def units(job: Job) -> float:
    return float(job.target - (job.checkpoint.resource if job.checkpoint else 0))


def loss(job: Job) -> Metrics:
    return {"loss": float(job.params["x"]) + 1 / job.target}


class Played:
    def __init__(self, workers: int | Sequence[Worker], **changes: Any) -> None:
        seconds: Callable[[Job], float] = changes.pop("seconds", units)
        train: Callable[[Job], Metrics | Outcome] = changes.pop("train", loss)
        faults = changes.pop("faults", Faults())
        self.clock = VirtualClock()
        self.journal = MemoryJournal()
        self.study = Study.create(make_spec(**changes), self.journal, clock=self.clock)
        self.executor = Simulation(self.study, self.clock, workers=workers, train=train, seconds=seconds, faults=faults)

    def run(self, **until: Any) -> Played:
        self.executor.run(**until)
        self.study.check()
        return self

    @property
    def entries(self) -> list[Entry]:
        return list(self.journal.entries("world"))

    def events(self, *kinds: type) -> list[Any]:
        return [event for entry in self.entries for event in entry.events if isinstance(event, kinds)]

    def schedule(self) -> list[tuple[int, str, float, float]]:
        ended = self.events(JobCompleted, AttemptFailed)
        return [(event.trial, event.worker, event.started, event.ended) for event in ended]


def test_a_worker_of_double_speed_takes_half_the_time() -> None:
    played = Played(make_workers(2, speeds=[1, 2]), search=RANDOM).run()
    assert played.schedule() == [(1, "worker-1", 0, 2), (0, "worker-0", 0, 4), (2, "worker-1", 2, 4)]
    assert (
        played.executor.executor.utilization == 1
        and played.executor.executor.busy_seconds == played.executor.executor.offered_seconds == 8
    )


def test_the_free_worker_with_the_lowest_number_is_next() -> None:
    played = Played(3, search=RANDOM | {"configs": 4}, seconds=lambda job: 2.0 if job.trial < 3 else 1.0).run()
    assert played.schedule()[-1] == (3, "worker-0", 2, 3)
    assert played.executor.executor.utilization == 7 / 9


def test_workers_join_and_leave_and_capacity_follows() -> None:
    workers = make_workers(1, joins=[(1, 1.0)], leaves=[(1, 3.0)])
    played = Played(workers, search=RANDOM | {"configs": 2}).run()
    assert played.schedule() == [(1, "worker-1", 1, 3), (0, "worker-0", 0, 4), (1, "worker-0", 4, 8)]
    lost = played.events(AttemptFailed)[0]
    assert (lost.outcome, lost.worker) == (Outcome.LOST, "worker-1")
    changed = [
        (e.time, event.inventory.slots)
        for e in played.entries
        for event in e.events
        if isinstance(event, CapacityChanged)
    ]
    assert changed == [(0, 1), (1, 2), (3, 1)]
    assert (
        played.executor.executor.offered_seconds,
        played.executor.executor.lost_seconds,
        played.executor.executor.utilization,
    ) == (10, 2, 1)


def test_a_study_stays_open_when_the_last_worker_left() -> None:
    played = Played([Worker(leaves=1.0)], search=RANDOM).run()
    assert played.study.status == "open" and played.clock.now == 1


def test_stragglers_take_one_plus_z_times_as_long() -> None:
    search = {"method": "random", "configs": 3000, "max_resource": 1}
    played = Played(100, search=search, faults=Faults(stragglers=0.5)).run()
    factors = [ended - started for _, _, started, ended in played.schedule()]
    assert min(factors) >= 1
    mean = 1 + 0.5 * math.sqrt(2 / math.pi)
    assert statistics.mean(factors) == pytest.approx(mean, abs=4 * 0.5 * 0.603 / math.sqrt(3000))


@pytest.mark.parametrize("stragglers", [0.0, 1.0])
def test_a_job_survives_a_time_unit_with_one_minus_p(stragglers: float) -> None:
    faults = Faults(drops=0.1, time_unit=2.0, stragglers=stragglers, seed=5)
    jobs = [Job(trial, 0, Rung(0, 0), 1, {}) for trial in range(4000)]
    survived = sum(faults.dropped_after(job) > 2.0 * 5 for job in jobs)
    assert survived == pytest.approx(4000 * 0.9**5, abs=4 * math.sqrt(4000 * 0.59 * 0.41))


def test_a_dropped_job_is_granted_again_from_its_checkpoint() -> None:
    faults = Faults(drops=0.05, seed=2)
    spec = {"search": ASHA, "training": {"retries": {"lost": 1000}}}
    played = Played(5, **spec, faults=faults).run()
    lost = played.events(AttemptFailed)
    assert lost and {event.outcome for event in lost} == {Outcome.LOST}
    assert played.study.status == "finished" and not played.events(TrialAbandoned)
    assert audit(played.entries).clean
    assert played.executor.executor.lost_seconds == pytest.approx(sum(event.ended - event.started for event in lost))


def test_a_dropped_job_can_take_its_trial_with_it() -> None:
    faults = Faults(drops=0.05, drop="abandon", seed=2)
    played = Played(5, search=ASHA, training={"fail_fast": None}, faults=faults).run()
    assert len(played.events(TrialAbandoned)) == len(played.events(AttemptFailed)) > 0
    assert played.study.status == "finished"


def test_a_run_repeats_exactly() -> None:
    faults = Faults(stragglers=0.4, drops=0.02, seed=3)
    workers = make_workers(7, speeds=[1, 0.5], joins=[(2, 9.5)], leaves=[(3, 20.0)])
    first, second = (Played(workers, search=ASHA, faults=faults).run() for _ in range(2))
    assert [encode_entry(e) for e in first.entries] == [encode_entry(e) for e in second.entries]
    assert audit(first.entries).clean


@pytest.mark.parametrize("name", [*SEARCHES, "pareto-asha"])
def test_every_method_ends_on_workers_that_fail_come_and_go(name: str) -> None:
    spec = spec_of(name, training={"retries": {"lost": 1000}})
    scenario = Scenario(name, spec, make_workers(5, speeds=[1, 0.5], joins=[(2, 3.0)], leaves=[(3, 9.0)]),
                        Faults(stragglers=0.5, drops=0.02))  # fmt: skip
    curves = AnalyticCurves(spec, 1)
    run = play(scenario, lambda spec, repeat: World(curves), 0)
    assert run.ended == "finished" and run.loss is not None
    assert run.offered >= run.busy >= run.lost >= 0
    assert play(scenario, lambda spec, repeat: World(curves), 0) == run


def test_a_search_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_core.simulation.repeats.MOST_ATTEMPTS", 500)
    spec = make_spec(search=RANDOM | {"configs": None}, stop={"target": -1.0})
    scenario = Scenario("endless", spec, make_workers(5), Faults())
    run = play(scenario, lambda spec, repeat: World(AnalyticCurves(spec)), 0)
    assert run.ended.startswith("cut off after 500 attempts")


def test_it_goes_on_where_it_was_left() -> None:
    whole = Played(4, search=ASHA).run()
    parts = Played(4, search=ASHA).run(until=10.0).run(max_reports=7).run()
    assert parts.schedule() == whole.schedule()


def test_it_takes_over_what_happened_between_two_runs() -> None:
    played = Played(3, search=ASHA).run(max_reports=5)
    job = next(iter(played.study.state.wanted()))
    played.study.tell(job, {"loss": 0.5})  # by hand, quicker than the worker that has it
    played.study.recover("a new controller")
    played.run()
    assert played.study.status == "finished"
    assert played.study.state.ignored_reports == 3, "the attempts of before were cancelled, and came too late"


def test_failures_and_bad_losses_are_reported_as_such() -> None:
    endings: dict[int, Metrics | Outcome] = {0: Outcome.ERROR, 1: {"loss": math.nan}, 2: {"loss": 1.0}}
    played = Played(1, search=RANDOM, train=lambda job: endings[job.trial])
    told: list[Report] = []
    tell = played.study.tell_report
    played.study.tell_report = lambda report: (told.append(report), tell(report))[1]  # type: ignore[method-assign]
    played.run()
    assert [report.outcome for report in told] == [Outcome.ERROR, Outcome.DIVERGED, Outcome.COMPLETED]


def test_bad_durations_and_clusters_are_refused() -> None:
    with pytest.raises(HpoError, match="takes nan seconds"):
        Played(1, search=RANDOM, seconds=lambda job: math.nan).run()
    for cluster, words in (
        ({"count": 0}, "workers = 0; give at least 1"),
        ({"speeds": [0]}, "speed = 0 must be a number above 0"),
        ({"speeds": []}, "speeds is empty"),
        ({"leaves": [(2, 1)]}, "2 workers leave at second 1, and only 1 are there"),
        ({"joins": [(0, 1)]}, "0 workers at second 1; give at least 1"),
    ):
        with pytest.raises(SpecError, match=words):
            make_workers(**{"count": 1} | cluster)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="must ascend from 0; swap them"):
        Worker(joins=2.0, leaves=1.0)
    for faults in ({"drops": 1.0}, {"stragglers": -1}, {"drop": "forget"}, {"time_unit": 0}):
        with pytest.raises(SpecError, match=next(iter(faults))):
            Faults(**faults)  # type: ignore[arg-type]


# Made-up curves.


def jobs_of(count: int, target: int) -> list[Job]:
    study = Study.create(make_spec(search={"method": "random", "configs": count, "max_resource": target}))
    return [job for _ in range(count) if (job := study.ask()) is not None]


def test_made_up_curves_follow_from_parameters_alone() -> None:
    curves, again = (AnalyticCurves(make_spec(), 3, cost_spread=0.5) for _ in range(2))
    for job in jobs_of(20, 27):
        other = Job(job.trial + 100, 3, Rung(0, 1), 27, job.params)
        assert curves.train(job) == again.train(other) and curves.seconds(job) == again.seconds(other)
        assert [point.resource for point in curves.curve(job)] == list(range(1, 28))
        assert curves.curve(job)[-1].metrics == curves.train(job)
    assert AnalyticCurves(make_spec(), 4).train(jobs_of(1, 27)[0]) != curves.train(jobs_of(1, 27)[0])


def test_a_journal_that_keeps_no_entries_hands_each_on_once_and_still_fences() -> None:
    kept, taken = MemoryJournal(), list[Entry]()
    passing = UnkeptJournal(taken.append)
    for journal in (kept, passing):
        study = Study.create(make_spec(search=ASHA), journal, clock=lambda: 1.0)
        for job in study.set_capacity(5):
            study.tell(job, {"loss": job.params["x"]})
    assert taken == list(kept.entries("world"))[1:]
    assert passing.info("world") == kept.info("world")
    assert list(passing.entries("world", 0, 1)) == list(kept.entries("world", 0, 1))
    with pytest.raises(JournalError, match="were not kept"):
        passing.entries("world")
    with pytest.raises(FencedError):
        passing.append("world", taken[-1])


def test_figures_gathered_on_the_way_are_those_of_the_journal_afterwards() -> None:
    spec = make_spec(search=ASHA)
    faults = Faults(stragglers=0.5, drops=0.01)
    curves = AnalyticCurves(spec, 3)
    run = play(Scenario("a", spec, make_workers(7), faults), lambda spec, repeat: World(curves), 0)
    journal, clock = MemoryJournal(), VirtualClock()
    study = Study.create(run_spec(spec), journal, clock=clock)
    faults = Faults(stragglers=0.5, drops=0.01, seed=spec.seed, time_unit=curves.time_unit)
    Simulation(study, clock, workers=7, train=curves.train, seconds=curves.seconds, faults=faults).run()
    figures = RunFigures(27, highest_rung=False)
    for entry in journal.entries("world"):
        figures.take(entry)
    assert run.failed and run.jobs == study.state.completed_jobs
    assert (run.steps, run.first_full, run.full) == (tuple(figures.steps), figures.first_full, figures.full)
    assert run.rungs == figures.rungs


def run_spec(spec: StudySpec) -> StudySpec:
    """As a repeat is played: made faults neither halt nor exhaust a study."""
    return simulated_spec(Scenario("a", spec, make_workers(7), Faults(drops=0.01)), 0)
