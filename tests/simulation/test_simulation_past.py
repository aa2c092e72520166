from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpo_core import Job, MemoryJournal, Outcome, Study, StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.model.trial import Checkpoint, Point, Rung
from hpo_core.simulation import AnalyticCurves, CurveTable, Faults, Simulation, VirtualClock, make_workers
from hpo_core.simulation.past import PastCurves, PastStudy, read_past
from hpo_core.simulation.repeats import PlayedRun, Scenario, World, play
from hpo_core.views.formatting import quantile
from tests.conftest import make_spec

ASHA = {"method": "asha", "configs": 80, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}
WORKERS = 6


def played(spec: StudySpec, curves: Any, *, points: bool = True) -> tuple[list[Entry], float]:
    """(journal, seconds) of a study on :data:`WORKERS` workers."""
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock)
    curve = curves.curve if points else None
    Simulation(
        study, clock, workers=WORKERS, train=curves.train, seconds=curves.seconds, curve=curve
    ).run()  # fmt: skip
    return list(journal.entries(spec.study)), clock.now


@pytest.fixture(scope="module")
def history() -> Iterator[tuple[list[Entry], float]]:
    """Costs differ between configurations; every job takes 4 seconds beside."""
    spec = make_spec(search=ASHA)
    yield played(spec, AnalyticCurves(spec, 1, seconds_per_unit=2.0, overhead=4.0, cost_spread=0.6))


@pytest.fixture(scope="module")
def past(history: tuple[list[Entry], float]) -> PastStudy:
    return read_past(history[0])


def runs(past: PastStudy, spec: StudySpec, repeats: int, workers: int = WORKERS) -> list[PlayedRun]:
    scenario = Scenario("again", spec, make_workers(workers), Faults())

    def world(spec: StudySpec, repeat: int) -> World:
        curves = PastCurves(past, spec, repeat)
        return World(curves, curves, past.has_checkpoints)

    return [play(scenario, world, repeat) for repeat in range(repeats)]


def test_overhead_and_cost_are_told_apart(past: PastStudy) -> None:
    assert past.overhead == pytest.approx(4.0)
    curves = AnalyticCurves(make_spec(), 1, seconds_per_unit=2.0, cost_spread=0.6)
    for number, trial in enumerate(past.trials):
        wanted = curves.seconds(Job(number, 0, Rung(0, 0), 1, trial.params))
        assert trial.seconds_per_unit == pytest.approx(wanted)


def test_the_same_study_on_the_same_workers_takes_the_same_time(
    history: tuple[list[Entry], float], past: PastStudy
) -> None:
    first, *others = runs(past, past.spec, 12)
    assert first.seconds == history[1] and first.guessed == 0
    shuffled = sorted(run.seconds for run in others)
    assert shuffled[0] < history[1] < shuffled[-1], "other orders of the trials: the past is one draw among them"
    assert quantile(shuffled, 0.5) == pytest.approx(history[1], rel=0.15)


def test_another_method_is_foretold_within_a_fifth(past: PastStudy) -> None:
    spec = make_spec(search=ASHA | {"reduction_factor": 2, "configs": 60})
    truth = played(spec, AnalyticCurves(spec, 1, seconds_per_unit=2.0, overhead=4.0, cost_spread=0.6))[1]
    found = sorted(run.seconds for run in runs(past, spec, 11))
    assert quantile(found, 0.5) == pytest.approx(truth, rel=0.2)


def hand_made(curves: dict[int, dict[int, float]], **changes: Any) -> PastStudy:
    """Trials with these losses by resource; a second for each unit; trial 0 is the first key and so on."""
    clock = VirtualClock()
    journal = MemoryJournal()
    targets = sorted({resource for curve in curves.values() for resource in curve})
    grants = [
        {"trial": trial, "rung": targets.index(resource), "target": resource}
        for trial, curve in curves.items()
        for resource in curve
    ]
    search = {
        "method": "recorded",
        "study_record": {"source": "hand", "grants": grants, "params": [{"x": 0.5, "c": "b"}] * len(curves)},
    }  # fmt: skip
    study = Study.create(make_spec(search=search, **changes), journal, clock=clock)
    Simulation(
        study,
        clock,
        workers=1,
        train=lambda job: {"loss": curves[job.trial][job.target]},
        seconds=lambda job: float(job.target - (job.checkpoint.resource if job.checkpoint else 0)),
    ).run()
    return read_past(journal.entries("world"))


def job(trial: int, target: int) -> Job:
    return Job(trial, 0, Rung(0, 0), target, {})


def against(past: PastStudy, seed: int = 0, **search: Any) -> PastCurves:
    return PastCurves(past, make_spec(search={"method": "random", "configs": 9} | search), seed)


def test_values_between_points_lie_on_straight_lines() -> None:
    curves = against(hand_made({0: {1: 1.0, 5: 0.6, 9: 0.4}}), max_resource=9)
    assert curves.train(job(0, 3)) == {"loss": pytest.approx(0.8)}
    assert curves.curve(job(0, 7)) == [
        Point(1, {"loss": 1.0}), Point(5, {"loss": 0.6}), Point(7, {"loss": pytest.approx(0.5)}),
    ]  # fmt: skip
    assert curves.guessed == 0


def test_a_curve_stays_at_its_last_result_and_that_is_counted() -> None:
    past = hand_made({0: {1: 1.0, 9: 0.5}, 1: {1: 1.2}, 2: {3: 0.9}})
    curves = against(past, max_resource=9)
    assert curves.train(job(0, 9)) == {"loss": 0.5} and curves.guessed == 0
    assert curves.train(job(1, 9)) == {"loss": 1.2}
    assert curves.train(job(2, 1)) == {"loss": 0.9}, "before its first result, too"
    assert curves.curve(job(1, 9)) == [Point(1, {"loss": 1.2}), Point(9, {"loss": 1.2})]
    assert curves.guessed == 2


def test_a_diverged_trial_stays_diverged() -> None:
    curves = against(hand_made({0: {1: 1.0, 9: 0.5}, 1: {1: math.nan}}), max_resource=9)
    assert math.isnan(curves.train(job(1, 9))["loss"])  # type: ignore[index]


def test_a_failed_trial_fails_again_and_takes_as_long() -> None:
    spec = make_spec(search={"method": "random", "configs": 4, "max_resource": 9}, training={"fail_fast": None})
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock)
    Simulation(
        study, clock, workers=1, seconds=lambda job: 5.0 if job.trial == 2 else 9.0,
        train=lambda job: Outcome.ERROR if job.trial == 2 else {"loss": 1.0},
    ).run()  # fmt: skip
    curves = against(read_past(journal.entries("world")), max_resource=9)
    assert curves.train(job(2, 9)) == Outcome.ERROR and curves.seconds(job(2, 9)) == 5.0
    assert curves.train(job(3, 9)) == {"loss": 1.0}


def test_trials_are_drawn_without_repetition_until_all_were_used(past: PastStudy) -> None:
    count = len(past.trials)
    for seed in (0, 1):
        curves = PastCurves(past, past.spec, seed)
        for lap in range(3):
            drawn = [curves._row(number) for number in range(lap * count, (lap + 1) * count)]
            assert sorted(drawn) == list(range(count))
            assert (drawn == sorted(drawn)) == (seed == 0 and lap == 0), "the first repeat begins in the past's order"


def test_what_the_past_does_not_know_is_refused(past: PastStudy) -> None:
    with pytest.raises(SpecError, match="never reported 'accuracy'.*loss"):
        PastCurves(past, make_spec(metric={"name": "accuracy"}))
    with pytest.raises(SpecError, match="results at 1 to 27 units"):
        PastCurves(past, make_spec(search=ASHA | {"max_resource": 81}))
    with pytest.raises(SpecError, match="without --from-journal"):
        PastCurves(past, make_spec(search={"method": "pbt"}))
    empty = MemoryJournal()
    Study.create(make_spec(), empty)
    with pytest.raises(SpecError, match="no results"):
        read_past(empty.entries("world"))


def test_a_loop_by_hand_has_no_durations() -> None:
    journal = MemoryJournal()
    study = Study.create(make_spec(), journal, clock=lambda: 0.0)
    while (asked := study.ask()) is not None:
        study.tell(asked, {"loss": 1.0 / asked.target})
    with pytest.raises(SpecError, match="--seconds-per-unit"):
        read_past(journal.entries("world"))
    past = read_past(journal.entries("world"), seconds_per_unit=2.0)
    assert not past.has_checkpoints and past.time_unit == 2.0
    assert PastCurves(past, past.spec).seconds(job(0, 9)) == 18.0


@pytest.mark.parametrize(
    ("gang", "scaling"), [(2, {}), ("auto", {"speedups": {2: 1.9, 4: 3.4}}), ("auto", {"speedups": {2: 1.6, 4: 3.1}})]
)
def test_durations_of_gangs_are_those_of_one_slot_and_the_past_comes_out_again(gang: Any, scaling: Any) -> None:
    cluster = {"kind": "local", "workers": WORKERS}
    search = {**ASHA, "configs": 20}
    spec = make_spec(search=search, training={"gang": gang}, scaling=scaling, cluster=cluster)
    curves = AnalyticCurves(spec, 1, seconds_per_unit=2.0, cost_spread=0.6)
    scenario = Scenario("past", spec, make_workers(WORKERS), Faults())
    gains = scaling.get("speedups", {})
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock)
    Simulation(
        study, clock, workers=WORKERS, train=curves.train, seconds=curves.seconds,
        speedup=lambda job: gains.get(job.demand.slots, job.demand.slots),
    ).run()  # fmt: skip
    past = read_past(journal.entries(spec.study))
    for number, trial in enumerate(past.trials):
        for (start, end), seconds in trial.spans.items():
            checkpoint = Checkpoint("c", "", start, 0) if start else None
            job = Job(number, 0, Rung(0, 0), end, study.state.trials[number].params, checkpoint)
            assert seconds == pytest.approx(curves.seconds(job))
    again = play(
        scenario, lambda spec, repeat: World(PastCurves(past, spec, repeat), PastCurves(past, spec, repeat)), 0
    )
    assert again.seconds == pytest.approx(clock.now, rel=0.05)


NAN = float("nan")


def table(path: Path, times: list[list[float]] | None, lengths: list[int] | None = None) -> CurveTable:
    losses = np.array([[0.5, 0.4, 0.3, 0.35], [0.6, 0.7, NAN, NAN]])
    more = {} if times is None else {"time_s": np.array(times)}
    more |= {} if lengths is None else {"n_points": np.array(lengths)}
    meta = json.dumps({"primary_metric": "loss", "direction": "min"})
    np.savez(path, loss=losses, fidelity=np.arange(1.0, 5.0), meta_json=np.array(meta), **more)
    return CurveTable.load(path)


def cost(found: CurveTable, row: int, begin: int, target: int) -> float:
    start = Checkpoint("c", "", begin, 0) if begin else None
    return found.cost(Job(0, 0, Rung(0, 0), target, {"row": row}, start))


def test_measured_seconds_are_what_was_measured(tmp_path: Path) -> None:
    """Cumulative seconds are no number of points: 100 s at 4 points are not cut to 4 s."""
    found = table(tmp_path / "ragged.npz", [[25.0, 50.0, 75.0, 100.0], [30.0, 60.0, NAN, NAN]], [4, 2])
    assert [cost(found, 0, 0, target) for target in (1, 2, 3, 4)] == [25.0, 50.0, 75.0, 100.0]
    assert [cost(found, 1, 0, target) for target in (1, 2, 3, 4)] == [30.0, 60.0, 60.0, 60.0]
    assert cost(found, 1, 2, 4) == 0.0, "it had ended by its own rule"


def test_made_up_units_end_with_the_run(tmp_path: Path) -> None:
    found = table(tmp_path / "units.npz", None, [4, 2])
    assert [cost(found, row, 0, 4) for row in (0, 1)] == [4.0, 2.0]


@pytest.mark.parametrize("second", [[NAN, 60.0, NAN, NAN], [NAN, NAN, NAN, NAN], [30.0, float("inf"), 60.0, 70.0]])
def test_a_duration_that_is_not_known_is_refused(tmp_path: Path, second: list[float]) -> None:
    with pytest.raises(SpecError, match=r"row 1 of time_s has no time where it has one later, or none at all"):
        table(tmp_path / "gaps.npz", [[1.0, 2.0, 3.0, 4.0], second], [4, 2])
