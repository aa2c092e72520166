"""What a tracker is told of brackets, ceilings and stops; pure, no tracker here."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from hpo_core import Study
from hpo_core.model.events import CeilingRaised, JobGranted
from hpo_core.security.untrusted_text import markdown_text
from hpo_core.tracking.mlflow_runs import trial_run_status, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from tests.conftest import World, played
from tests.methods import SEARCHES, facts, spec_of


def folded(spec: Any, world: World | None = None) -> tuple[Study, TrackedStudy]:
    study = played(spec, world or World(4, failures=0.03, nans=0.03))
    fold = TrackedStudy()
    for entry in study.journal.entries("world"):
        fold.add(entry)
    return study, fold


def test_shared_rungs_are_named_by_their_place_in_the_one_ladder() -> None:
    study, fold = folded(spec_of("asha-shared"))
    late = next(trial for trial in study.state.trials if trial.bracket == 2 and trial.results)
    assert trial_tags(fold, late.number, "run")["hpo.rung"] == str(2 + late.results[-1].rung)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_promotion_has_its_rank_among_the_results_of_the_rung_it_left(name: str) -> None:
    study, fold = folded(spec_of(name))
    shared = getattr(study.spec.search, "rung_system", "") == "shared"
    rungs: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    wanted = []
    for entry in study.journal.entries("world"):
        for event in entry.events:
            kind = type(event).__name__
            if kind in ("JobCompleted", "TrialAbandoned"):
                loss = getattr(event, "loss", None)
                place = (0, event.bracket + event.rung) if shared else (event.bracket, event.rung)  # type: ignore[union-attr]
                rungs[place].append((float("inf") if loss is None else loss, event.trial))  # type: ignore[union-attr]
            elif isinstance(event, JobGranted) and event.rung and not event.retry and name.partition("-")[0] != "pbt":
                below = event.rung - 1
                rung = sorted(rungs[(0, event.bracket + below) if shared else (event.bracket, below)])
                rank = [trial for _, trial in rung].index(event.trial) + 1
                wanted.append((event.trial, event.bracket, event.rung, rank, len(rung)))
    assert [(p.trial, p.bracket, p.rung, p.rank, p.among) for p in fold.promotions] == wanted


def test_a_stopped_trial_is_finished_and_says_where() -> None:
    study, fold = folded(spec_of("stopping"))
    stopped = [trial for trial in study.state.trials if trial.stopped is not None]
    assert stopped
    for trial in stopped:
        stop = trial.stopped
        assert stop is not None
        tags = trial_tags(fold, trial.number, "run")
        assert tags["hpo.state"] == ("diverged" if trial.loss is None else "stopped")
        page = tags["mlflow.note.content"]
        assert markdown_text(fold.names.stop_line(stop)) in page
        assert trial_run_status(fold, trial.number, has_controller=True)[0] == "FINISHED"


def test_the_ceiling_is_a_metric() -> None:
    study, fold = folded(spec_of("pasha"), World(1, nans=0.4))
    points = [point for point in fold.points if point.key == "ceiling"]
    raised = facts(study.journal.entries("world"), CeilingRaised)
    assert [point.value for point in points] == [3, *(event.level for event in raised)]
    assert "ceiling" not in {point.key for point in folded(spec_of("asha"))[1].points}


def test_a_population_shows_its_lineage_and_its_parameters_over_steps() -> None:
    study, fold = folded(spec_of("pbt"))
    child = next(iter(study.state.reproduced.values()))
    tags = trial_tags(fold, child.child, "run")
    assert tags["hpo.generation"] == str(child.generation) and tags["hpo.member"] == str(child.member)
    assert tags["hpo.parent"] == str(child.parent)
    trial = next(t for t in study.state.trials if t.results and t.number in study.state.reproduced)
    points = {(p.key, p.step): p.value for p in fold.trials[trial.number].points}
    assert points["param/x", 0] == trial.params["x"]
