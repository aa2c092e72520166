"""What people see of brackets and rungs: nothing is lost or counted twice, and many brackets take few lines."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Study
from hpo_core.model.events import CeilingRaised, StudyHalted, TrialStopped
from hpo_core.terminal.output import without_repeats
from hpo_core.views.rungs import (
    BracketView,
    RungNames,
    bracket_views,
    grouped_brackets,
    halt_words,
    rung_rows,
)
from tests import conftest
from tests.conftest import World, fresh, make_spec
from tests.methods import ALL, facts, spec_of

HUNDRED = {"method": "hyperband", "min_resource": 1, "max_resource": 81, "reduction_factor": 3, "rounds": 20}


def played(spec: Any, steps: int | None = None, workers: int = 4) -> Study:
    return conftest.played(spec, World(5, workers=workers, failures=0.05, nans=0.05), steps=steps)


def total(views: list[BracketView], name: str) -> int:
    return sum(getattr(rung, name) for view in views for rung in view.rungs)


@pytest.mark.parametrize("steps", [9, None], ids=["half-way", "at-the-end"])
@pytest.mark.parametrize("name", ALL)
def test_every_result_and_every_running_job_stands_at_one_rung(name: str, steps: int | None) -> None:
    study = played(spec_of(name), steps)
    views, state = bracket_views(study, details=True), study.state
    assert total(views, "results") == state.completed_jobs + state.abandoned_trials
    assert total(views, "running") == len(state.running)
    stopped = facts(study.journal.entries("world"), TrialStopped)
    assert total(views, "stopped") == len(stopped)
    assert total(views, "abandoned") == state.abandoned_trials
    best = [rung.best for view in views for rung in view.rungs if rung.best is not None]
    assert study.best is None or min(best) == study.best.loss
    for few in (0, 6):
        again = grouped_brackets(views, few)
        for field in ("results", "promoted", "waiting", "expected", "units", "running", "stopped", "abandoned"):
            assert total(again, field) == total(views, field), field
        assert sorted(n for view in again for n in view.numbers) == sorted(n for view in views for n in view.numbers)
    if study.spec.search.method == "pbt":
        return  # a session's resource is that of its ancestors as well
    names = RungNames(study.spec)
    levels = {((view.numbers or [None])[0], rung.rung): rung.level for view in views for rung in view.rungs}
    for trial in state.trials:
        for result in trial.results:
            assert levels[names.place(result.bracket, result.rung)] == result.resource


@pytest.mark.parametrize("steps", [0, 700, None], ids=["at-the-start", "half-way", "at-the-end"])
def test_a_hundred_brackets_take_few_lines(steps: int | None) -> None:
    study = played(make_spec(search=HUNDRED), steps, workers=9)
    views = bracket_views(study, details=True)
    assert len(views) == 100
    rows = rung_rows(study, grouped_brackets(views))
    assert len(rows) <= 15, "one ladder for each rate"
    assert all(len(row["bracket"]) < 20 for row in rows)  # type: ignore[arg-type]
    states = {0: {"open", "to come"}, 700: {"finished", "open", "to come"}, None: {"finished"}}
    assert {view.state for view in views} == states[steps]


def test_brackets_of_one_shape_are_summed_and_named() -> None:
    study = played(make_spec(search=HUNDRED))
    shapes = grouped_brackets(bracket_views(study))
    assert [view.name for view in shapes] == [f"{s}, {s + 5} … {s + 95} (20)" for s in range(5)]
    assert [view.rungs[0].results for view in shapes] == [20 * size for size in (81, 34, 15, 8, 5)]
    assert [view.start for view in shapes] == [1, 3, 9, 27, 81]


def test_one_bracket_is_not_named_and_several_are() -> None:
    one = rung_rows(played(spec_of("asha")), bracket_views(played(spec_of("asha"))))
    assert "bracket" not in one[0] and [row["trained to"] for row in one] == [1, 3, 9, 27]
    study = played(spec_of("asha-brackets"))
    rows = rung_rows(study, bracket_views(study, details=True))
    assert [(row["bracket"], row["rung"], row["trained to"]) for row in rows] == [
        ("0", 0, 1), ("0", 1, 3), ("0", 2, 9), ("0", 3, 27),
        ("1", 0, 3), ("1", 1, 9), ("1", 2, 27), ("2", 0, 9), ("2", 1, 27),
    ]  # fmt: skip
    shown = without_repeats(rows, "bracket", "state")
    assert [row["bracket"] for row in shown] == ["0", "", "", "", "1", "", "", "2", ""]
    shared = played(spec_of("asha-shared"))
    assert "bracket" not in rung_rows(shared, bracket_views(shared))[0]


def test_closed_rungs_say_so() -> None:
    study = fresh(spec_of("pasha"))
    rows = rung_rows(study, bracket_views(study))
    assert [row["results"] for row in rows] == ["0 of 24", "0 of 8", "closed", "closed"]


def test_a_job_on_its_way_to_a_rung_that_no_trial_reached_yet_is_shown() -> None:
    world = World(workers=1)
    study = fresh(spec_of("asha-endless"), world=world)
    jobs = study.set_capacity(1)
    while jobs[0].rung == 0:
        jobs = study.tell_report(world.good(jobs[0]))
    (view,) = bracket_views(study)
    assert [(rung.level, rung.running) for rung in view.rungs] == [(2, 0), (6, 1)]


# Words.


def test_rungs_are_called_by_what_tells_them_apart() -> None:
    assert RungNames(spec_of("asha")).label(0, 2) == "rung 2"
    assert RungNames(spec_of("asha-brackets")).label(1, 2) == "rung 2 of bracket 1"
    assert RungNames(spec_of("asha-shared")).label(1, 2) == "rung 3"
    assert RungNames(spec_of("hyperband")).label(0, 0) == "rung 0 of bracket 0"
    assert RungNames(spec_of("pasha")).label(0, 1) == "rung 1"


def test_a_stop_is_told_with_its_place() -> None:
    event = TrialStopped(trial=3, bracket=1, rung=0, rank=5, results=12)
    assert RungNames(spec_of("stopping-brackets")).stop_line(event) == "stopped at rung 0 of bracket 1 (place 5 of 12)"
    assert RungNames(spec_of("stopping-shared")).stop_line(event) == "stopped at rung 1 (place 5 of 12)"


def test_a_raised_ceiling_is_told_with_its_reason() -> None:
    names = RungNames(spec_of("pasha"))
    words = names.ceiling_line(CeilingRaised(0, 2, 9, 0.0125, 2, 17, (4, 8)))
    assert words == (
        "rung 2 (trained to 9) opened, for more training had changed the order: of the trials at rung 1, trial 17 came "
        "to place 2, where rung 0 had one of the trials 4, 8 (losses no more than 0.0125 apart count as equal)"
    )
    alone = names.ceiling_line(CeilingRaised(0, 2, 9, 0.0, 1, 17, (4,)))
    assert alone.endswith("came to place 1, where rung 0 had trial 4 (no two losses counted as equal)")
    assert "4, 5, 6, 7, 8, 9 and 3 more" in names.ceiling_line(CeilingRaised(0, 2, 9, 1.0, 1, 17, tuple(range(4, 13))))


@pytest.mark.parametrize(
    ("stop", "halted", "says"),
    [
        ({"total_resource": 1000}, StudyHalted("gone", "total_resource"), "a resume grants 1,000 more"),
        ({"seconds": 90}, StudyHalted("over", "seconds"), "a resume drives it for 90 seconds more"),
        ({"target": 0.1}, StudyHalted("reached", "target"), "a resume goes on for a better one"),
    ],
)
def test_a_stop_rule_is_told_with_what_a_resume_does(stop: dict[str, Any], halted: StudyHalted, says: str) -> None:
    assert halt_words(make_spec(stop=stop), halted) == f"stop rule met: {halted.reason}; {says}"


def test_each_stop_rule_is_told_with_how_far_it_is() -> None:
    study = fresh(make_spec(stop={"total_resource": 1000, "seconds": 90, "target": 0.1}))
    assert study.rules.progress(study.state, 0.0) == [
        "0 of 1,000 units trained",
        "0 of 90 seconds",
        f"{study.spec.metric.name} at most 0.1",
    ]
