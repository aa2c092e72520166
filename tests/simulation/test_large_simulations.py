"""What a simulation keeps and looks at does not grow with its jobs, or with the square of its workers."""

from __future__ import annotations

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.execution.virtual import VirtualClock
from hpo_core.journal.memory import UnkeptJournal
from hpo_core.model.errors import FencedError, JournalError
from hpo_core.model.events import Entry
from hpo_core.simulation import AnalyticCurves, Faults, Simulation, make_workers
from hpo_core.simulation.repeats import RunFigures, Scenario, World, play, simulated_spec
from hpo_core.spec import StudySpec
from tests.conftest import make_spec

ASHA = {"method": "asha", "configs": 60, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}


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
