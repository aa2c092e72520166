from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.space import SearchSpace
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


def listed(space: SearchSpace, values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    names = [name for name in space.order if name in values]

    def rest(k: int, chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if k == len(names):
            yield dict(chosen)
        elif space.is_active(names[k], chosen):
            for value in values[names[k]]:
                yield from rest(k + 1, chosen | {names[k]: value})
        else:
            yield from rest(k + 1, chosen)

    return list(rest(0, {}))


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Choices that depend on earlier or later ones, without circles."""
    count = draw(st.integers(1, 6))
    rank = draw(st.permutations(range(count)))
    values = [[0, 1, 2], [True, False], ["a"], [0, 1]]
    chosen = [draw(st.sampled_from(values)) for _ in range(count)]
    space: dict[str, Any] = {}
    for i in range(count):
        space[f"p{i}"] = {"type": "categorical", "choices": chosen[i], "when": {}}
        for j in range(count):
            if rank[j] < rank[i] and draw(st.integers(0, 2)) == 0:
                wanted = draw(st.lists(st.sampled_from(chosen[j]), min_size=1, unique_by=repr))
                space[f"p{i}"]["when"][f"p{j}"] = wanted
    return space


@settings(max_examples=60, deadline=None)
@given(spaces())
def test_any_grid(space: dict[str, Any]) -> None:
    spec = make_spec(space=space, search={"method": "grid"})
    found = grid_of(spec)
    every = listed(spec.search_space(), {name: p["choices"] for name, p in space.items()})
    assert found.size == len(every)
    assert found.points == every and [found.at(n) for n in range(len(every) + 1)] == [*every, every[0]]


@settings(max_examples=40, deadline=None)
@given(spaces())
def test_the_order_of_parameters_is_by_waves(space: dict[str, Any]) -> None:
    """As it always was: draws of recorded studies hang on it."""
    done: dict[str, None] = {}
    waiting = list(space)
    while waiting:
        ready = [name for name in waiting if all(other in done for other in space[name]["when"])]
        done.update(dict.fromkeys(ready))
        waiting = [name for name in waiting if name not in done]
    assert make_spec(space=space).search_space().order == tuple(done)


def test_a_grid_of_a_million_points_is_found_by_number() -> None:
    digits = {f"p{i}": {"type": "int", "low": 0, "high": 9} for i in range(6)}
    found = grid_of(make_spec(space=digits, search={"method": "grid"}))
    assert found.size == 10**6
    assert list(found.at(123456).values()) == [1, 2, 3, 4, 5, 6]


def test_too_many_points_between_conditions_are_refused() -> None:
    two = {"type": "categorical", "choices": [0, 1]}
    space: dict[str, Any] = {f"p{i}": two for i in range(40)}
    space |= {f"q{i}": two | {"when": {f"p{i}": 1, f"p{(i + 1) % 40}": 1}} for i in range(40)}
    with pytest.raises(SpecError, match="at most about 200,000 points"):
        make_spec(space=space, search={"method": "grid"})


def test_more_than_a_million_points_are_refused() -> None:
    digits = {f"p{i}": {"type": "int", "low": 0, "high": 9} for i in range(7)}
    with pytest.raises(SpecError, match="more than 1,000,000 points"):
        make_spec(space=digits, search={"method": "grid"})
