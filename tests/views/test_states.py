"""The states of a grid's configurations: pending, in progress, complete, failed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import prefect.states
import pytest

from hpo_core import Outcome, Report, Study
from hpo_core.model.trial import Job
from hpo_core.views import states as module
from hpo_core.views.states import GridStates, JobState, attempt_state, grid_points, grid_states
from tests.conftest import make_spec

SPACE: dict[str, Any] = {
    "opt": {"type": "categorical", "choices": ["sgd", "adam"]},
    "width": {"type": "ordinal", "choices": [8, 16, 32]},
}


def study(search: dict[str, Any] | None = None, **changes: Any) -> Study:
    return Study.create(make_spec(space=SPACE, search={"method": "grid"} | (search or {}), **changes))


def granted(study: Study, count: int) -> list[Job]:
    jobs = [study.ask() for _ in range(count)]
    return [job for job in jobs if job is not None]


def crash(study: Study, job: Job) -> None:
    study.tell_report(Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.CRASHED, message="no"))


def states(study: Study) -> Counter[str]:
    found = grid_states(study)
    points = Counter(point.state for point in grid_points(study))
    assert found is not None
    assert found == GridStates(*(points[state] for state in JobState)), "one count for the list and for the points"
    return points


def test_each_point_is_in_one_of_four_states() -> None:
    grid = study()
    assert states(grid) == {"pending": 6}
    first, second, third = granted(grid, 3)
    assert states(grid) == {"pending": 3, "in progress": 3}
    grid.tell(first, {"loss": 0.5})
    crash(grid, second)
    assert states(grid) == {"pending": 3, "in progress": 1, "complete": 1, "failed": 1}
    grid.tell(third, {"loss": float("nan")})
    assert states(grid)["complete"] == 2, "one that diverged has been tried"
    tried = 1
    while (job := grid.ask()) is not None:
        if job.trial == second.trial:
            assert states(grid)["failed"] == 0, "it is tried again"
            tried += 1
            crash(grid, job)
        else:
            grid.tell(job, {"loss": 1.0})
    assert grid.finished and tried > 1
    assert states(grid) == {"complete": 5, "failed": 1}, "abandoned"


def test_parameters_that_are_off_or_given_by_hand() -> None:
    space = SPACE | {"momentum": {"type": "float", "low": 0, "high": 1, "when": {"opt": "sgd"}}}
    search = {"method": "grid", "points": {"momentum": 2}}
    grid = Study.create(make_spec(space=space, search=search, start_with=[{"opt": "adam", "width": 16}]))
    points = grid_points(grid)
    assert len(points) == 9 and sum("momentum" in point.params for point in points) == 6
    granted(grid, 1)
    (begun,) = [point for point in grid_points(grid) if point.state is JobState.IN_PROGRESS]
    assert begun.params == {"opt": "adam", "width": 16}


def test_other_methods_and_huge_grids_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Study.create(make_spec(search={"method": "random", "configs": 3}))
    assert grid_states(other) is None and grid_points(other) == []
    monkeypatch.setattr(module, "MOST_POINTS", 5)
    assert grid_points(study()) == [] and grid_states(study()) == GridStates(6, 0, 0, 0)


def test_every_attempt_has_a_word_and_a_state_in_prefect() -> None:
    words = {outcome: attempt_state(outcome).word for outcome in Outcome}
    assert {words.pop(Outcome.COMPLETED), words.pop(Outcome.DIVERGED)} == {"completed", "diverged"}
    assert set(words.values()) == {"failed", "lost or preempted"} and attempt_state(None).word == "running"
    assert all(hasattr(prefect.states, attempt_state(outcome).prefect) for outcome in Outcome)
