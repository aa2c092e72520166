"""A grid's points counted and found by number are those that going through all of them gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.errors import SpecError
from hpo_core.model.space import SearchSpace
from tests.conftest import make_spec
from tests.search.test_grid import grid_of


def listed(space: SearchSpace, values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """All points, one by one."""
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
