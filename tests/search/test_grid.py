"""Grids: their order, what they refuse, drawn parameters, and going on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpo_core.model.errors import HpoError, SpecError
from hpo_core.search.grid import Grid, GridSearch
from hpo_core.spec import StudySpec
from tests.conftest import fresh, make_spec

SPACE: dict[str, Any] = {
    "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "momentum": {"type": "float", "low": 0.0, "high": 0.9, "step": 0.45, "when": {"optimizer": "sgd"}},
    "depth": {"type": "ordinal", "choices": [2, 4, 8]},
}


def grid(space: dict[str, Any] = SPACE, **settings: Any) -> Grid:
    return grid_of(make_spec(space=space, search={"method": "grid", **settings}))


def grid_of(spec: StudySpec) -> Grid:
    assert isinstance(spec.search, GridSearch)
    return Grid(spec.search_space(), spec.search)


def test_log_scales_are_spaced_evenly_in_the_logarithm() -> None:
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}}
    values = [grid(space, points={"lr": 5}).at(n)["lr"] for n in range(5)]
    assert values == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "'lr' is continuous on a log scale; say how many points"),
        ({"points": {"lr": 3, "width": 2}}, "'width' is no parameter of the space; it has optimizer, lr"),
        ({"points": {"lr": [0.5, 2.0]}}, "2.0 lies outside its range"),
        ({"points": {"lr": [0.5, 0.5]}}, "holds a value twice"),
        ({"points": {"lr": 3, "depth": 2}}, "it has 3 choices"),
        ({"random": ["lr"]}, "search.random: is no setting any more: give the parameter points, or use method: random"),
        ({"configs": 10}, "search.configs: is no setting any more: give fewer points"),
        ({"points": {"lr": 90_000}}, "at most about 200,000 points"),
        ({"points": {"lr": 900_000}}, r"values on all axes of the grid = 900,008 is too large: at most 100,000"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        grid(**settings)


@pytest.mark.parametrize("points", [None, 2, 4, 5, 7])
@pytest.mark.parametrize(
    "one",
    [
        {"type": "float", "low": 0.0, "high": 0.3, "step": 0.1},
        {"type": "float", "low": 0.1, "high": 0.7, "step": 0.2},
        {"type": "float", "low": 0.0, "high": 1.0, "step": 0.3},
        {"type": "int", "low": 0, "high": 11, "step": 3},
    ],
)
def test_points_keep_to_steps_and_reach_the_last_one(one: dict[str, Any], points: int | None) -> None:
    settings = {} if points is None else {"points": {"a": points}}
    spec = make_spec(space={"a": one}, search={"method": "grid", **settings})
    values = [point["a"] for point in grid_of(spec).points]
    steps = [(value - one["low"]) / one["step"] for value in values]
    assert all(abs(step - round(step)) < 1e-9 for step in steps), values
    last = math.floor((one["high"] - one["low"]) / one["step"] + 1e-9)
    assert round(steps[-1]) == last and max(values) <= one["high"]


def test_a_finished_grid_is_not_extended() -> None:
    spec = make_spec(space=SPACE, search={"method": "grid", "points": {"lr": 3}})
    study = fresh(spec)
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": 0.5})
    assert [trial.params for trial in study.state.trials] == grid_of(spec).points
    with pytest.raises(HpoError, match="36 configurations and all of them are in the study"):
        study.extend(1)
