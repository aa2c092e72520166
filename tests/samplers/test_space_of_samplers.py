"""One set of values: in the study file, for people who give some, in a grid, and for every sampler.

The set is written down here from what the settings say, with fractions: choices as they stand; low, low + step, ...
"""

from __future__ import annotations

import math
import tracemalloc
import warnings
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import HpoError, Study
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.optuna.optuna_sampler import OptunaSampler
from hpo_core.optuna.optuna_trials import copy_to_optuna
from tests.conftest import fresh, make_spec

Plain = dict[str, Any]

SAMPLERS: list[Plain] = [
    {"name": "random"},
    {"name": "ranked_gp", "n_startup_trials": 4},
    {"name": "TPESampler", "n_startup_trials": 4},
    {"name": "CmaEsSampler", "n_startup_trials": 4, "warn_independent_sampling": False},
    {"name": "QMCSampler", "warn_independent_sampling": False},
    {"name": "NSGAIISampler", "population_size": 4},
    {"name": "GPSampler", "n_startup_trials": 4},
]


def written(parameter: Plain) -> list[Any]:
    """All values of a parameter, as a person reads them in the study file."""
    if "choices" in parameter:
        return list(parameter["choices"])
    low, high, step = (Fraction(str(parameter.get(name, 1))) for name in ("low", "high", "step"))
    kind = int if parameter["type"] == "int" else float
    return [kind(low + at * step) for at in range((high - low) // step + 1)]


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type: 0 is not False, 1 is not 1.0."""
    return repr(one) == repr(other)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, 1.5, "0", "1", "true", "null", "[1]", "", "é"])
)
CHOICES = st.lists(
    st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), min_size=1, max_size=6, unique_by=lambda value: repr(value)
).map(lambda choices: {"type": "categorical", "choices": choices})
INTS = st.tuples(st.integers(-(2**60), 2**60) | st.integers(-3, 9), st.integers(0, 6), st.integers(1, 4)).map(
    lambda t: {"type": "int", "low": t[0], "high": t[0] + t[1] * t[2], "step": t[2]}
)
STEPS = st.sampled_from([0.1, 0.05, 0.25, 3e-7, 0.7, 2.0, 1e5])
FLOATS = st.tuples(st.integers(-3, 9), st.integers(0, 6), st.integers(0, 1), STEPS).map(
    lambda t: {
        "type": "float",
        "low": float(t[0] * Fraction(str(t[3]))),
        "high": float((t[0] + t[1] + Fraction(t[2], 2)) * Fraction(str(t[3]))),
        "step": t[3],
    }
)
FINITE = st.one_of(CHOICES, CHOICES.map(lambda one: one | {"type": "ordinal"}), INTS, FLOATS)
SPACES = st.lists(FINITE, min_size=1, max_size=3).map(lambda found: dict(zip("abc", found, strict=False)))


def study_of(space: Plain, sampler: Plain, **more: Any) -> Study:
    return fresh(make_spec(space=space, sampler=sampler, search={"method": "random", "configs": 60}, **more))


def told(study: Study) -> list[Plain]:
    """Each trial as its sampler was told it, on the study's own scales."""
    sampler = study.sampler
    if not isinstance(sampler, OptunaSampler):
        return [dict(trial.params) for trial in study.state.trials]
    space, shown = study.spec.search_space().parameters, sampler._study.get_trials(deepcopy=False)
    assert len(shown) == len(study.state.trials)
    return [{name: space[name].from_scale(value) for name, value in one.params.items()} for one in shown]


def train(study: Study, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            job = study.ask()
            study.tell(job, {"loss": float(len(study.state.trials) % 5)})


@pytest.mark.parametrize("sampler", SAMPLERS[:6], ids=lambda one: "-".join(map(str, one.values())))
def test_each_value_can_be_given_is_told_back_as_itself_and_nothing_else_is_proposed(sampler: Plain) -> None:
    count = 12

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(SPACES)
    def law(space: Plain) -> None:
        values = {name: written(parameter) for name, parameter in space.items()}
        width = max(map(len, values.values()))
        first = [{name: of[at % len(of)] for name, of in values.items()} for at in range(width)]
        study = study_of(space, sampler)
        for one in first:
            study.enqueue(one)
        train(study, width + count)
        params = [dict(trial.params) for trial in study.state.trials]
        distinct = list({repr(one): one for one in first}.values())
        assert all(map(same, params, distinct))
        for name, of in values.items():
            assert {repr(one[name]) for one in params} <= set(map(repr, of))
        assert all(map(same, map(sorted, map(dict.items, told(study))), map(sorted, map(dict.items, params))))

    law()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(FINITE)
def test_all_values_and_only_they_are_drawn_listed_and_reached_from_the_scale_of_samplers(parameter: Plain) -> None:
    values = written(parameter)
    spec = make_spec(space={"x": parameter}, search={"method": "random", "configs": 1})
    one = spec.search_space().parameters["x"]
    expected = set(map(repr, values))
    assert {repr(one.draw(Stream(11, "law", number))) for number in range(600)} == expected
    scale = one.scale()
    if hasattr(scale, "choices"):
        reached = map(one.from_scale, scale.choices)
    else:
        low, high = scale.low, scale.high  # type: ignore[attr-defined]
        reached = (one.from_scale(low + (high - low) * at / 1000) for at in range(1001))  # type: ignore[assignment]
    assert set(map(repr, reached)) == expected
    assert all(same(one.from_scale(one.on_scale(value)), value) for value in values)
    for exhaustive in ({"name": "BruteForceSampler"}, {"name": "GridSampler", "search_space": {"x": values}}):
        study = study_of({"x": parameter}, exhaustive)
        while (job := study.ask()) is not None:
            study.tell(job, {"loss": 0.0})
        assert {repr(trial.params["x"]) for trial in study.state.trials} == expected
        assert len(study.state.trials) == len(expected)
    for points in ({}, {"points": {"x": values}}):
        grid = fresh(make_spec(space={"x": parameter}, search={"method": "grid", **points}))
        while (job := grid.ask()) is not None:
            grid.tell(job, {"loss": 0.0})
        assert same([trial.params["x"] for trial in grid.state.trials], values)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(FINITE)
def test_what_the_study_file_does_not_say_is_refused_everywhere(parameter: Plain) -> None:
    values = written(parameter)
    keys = {(isinstance(value, bool), str(value)) for value in values if isinstance(value, int | float)}
    others: list[Any] = ["nothing", {"a": 1}, [9, 9], True, False, 0, 1]
    if "low" in parameter:
        step = parameter["step"]
        others += [values[0] + step / 2, values[0] - step, values[-1] + step, str(values[0])]
    for other in others:
        if any(same(other, value) for value in values):
            continue
        number = isinstance(other, int | float) and not isinstance(other, bool)
        if number and any(not bold and float(text) == other for bold, text in keys):
            continue  # 1 for 1.0
        spec = make_spec(space={"x": parameter})
        with pytest.raises(HpoError):
            Study.create(spec).enqueue({"x": other})
        with pytest.raises(SpecError):
            make_spec(space={"x": parameter}, start_with=[{"x": other}])
        with pytest.raises(SpecError):
            make_spec(space={"x": parameter}, search={"method": "grid", "points": {"x": [other]}})
        with pytest.raises(SpecError):
            make_spec(space={"x": parameter, "y": {"type": "int", "low": 0, "high": 1, "when": {"x": [other]}}})


@pytest.mark.parametrize(
    ("choices", "sampler"),
    [([0, False], "TPESampler"), ([True, 1], "TPESampler"), ([[1], "[1]"], "TPESampler"), ([1, True], "ranked_gp")],
)
def test_a_sampler_learns_which_of_two_choices_is_better_that_python_calls_equal(
    choices: list[Any], sampler: str
) -> None:
    study = study_of({"c": {"type": "categorical", "choices": choices}, "x": UNIT}, {"name": sampler})
    good = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(25):
            job = study.ask()
            best = same(job.params["c"], choices[0])
            good += best and number >= 12
            study.tell(job, {"loss": float(not best) + 0.001 * float(job.params["x"])})
    assert good >= 7


UNIT: Plain = {"type": "float", "low": 0.0, "high": 1.0}
WIDE: dict[str, Plain] = {
    "integers to 10^12": {"type": "int", "low": 0, "high": 10**12},
    "integers on a log scale": {"type": "int", "low": 1, "high": 10**12, "log": True},
    "integers with a step": {"type": "int", "low": -(10**15), "high": 10**15, "step": 7},
    "large ones": {"type": "int", "low": 2**62, "high": 2**62 + 5},
    "floats with a small step": {"type": "float", "low": 0.0, "high": 1.0, "step": 1e-12},
    "small": {"type": "float", "low": 1e-300, "high": 1e-290, "log": True},
    "all magnitudes": {"type": "float", "low": 1e-300, "high": 1e300, "log": True},
    "large": {"type": "float", "low": -8e307, "high": 8e307},
    "narrow": {"type": "float", "low": 1.0, "high": math.nextafter(1.0, 2.0)},
    "one": {"type": "float", "low": 0.3, "high": 0.3},
    "least": {"type": "float", "low": 0.0, "high": 5e-324},
    "far from 0": {"type": "float", "low": 1e9 - 1e-3, "high": 1e9 + 1e-3},
}


@pytest.mark.parametrize(
    ("kind", "sampler"), [(kind, SAMPLERS[at % 7]) for at, kind in enumerate([*WIDE, *WIDE])], ids=str
)
def test_no_range_is_too_wide_or_too_narrow_for_a_sampler(sampler: Plain, kind: str) -> None:
    space = {"n": {"type": "int", "low": 5, "high": 10**12}, "x": WIDE[kind], "y": UNIT}
    study = study_of(space, sampler)
    tracemalloc.start()
    try:
        train(study, 7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    found = study.spec.search_space()
    for params in (trial.params for trial in study.state.trials):
        assert found.complaints(params) == []
        again = Study.create(study.spec)
        again.enqueue(params)
        job = again.ask()
        assert job is not None and same(job.params, params)
    parameter = found.parameters["x"]
    values = [trial.params["x"] for trial in study.state.trials]
    assert [parameter.from_scale(parameter.on_scale(value)) for value in values] == pytest.approx(values, rel=1e-12)
    if WIDE[kind]["type"] == "int" or "step" in WIDE[kind]:
        assert all(map(same, (one["x"] for one in told(study)), values))


@pytest.mark.parametrize("sampler", [one for one in SAMPLERS if one["name"] != "random"], ids=lambda one: one["name"])
@pytest.mark.parametrize(
    "parameter",
    [{"low": 0, "high": 2**60}, {"low": 1, "high": 2**60, "log": True}, {"low": 2**60, "high": 2**60 + 9, "log": True}],
)
def test_a_sampler_that_calculates_with_floats_is_refused_where_they_cannot_tell_values_apart(
    sampler: Plain, parameter: Plain
) -> None:
    with pytest.raises(SpecError, match=r"x .* use random, or"):
        study_of({"x": {"type": "int", **parameter}}, sampler)
    study_of({"x": {"type": "int", **parameter}}, {"name": "random"})


def test_steps_that_floats_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(SpecError, match=r"space.x.step = 0.1 is too small beside 1"):
        make_spec(space={"x": {"type": "float", "low": 1e17, "high": 1e17 + 64, "step": 0.1}})


def test_the_start_of_cma_es_on_a_scale_of_its_own_is_refused() -> None:
    with pytest.raises(SpecError, match="x0 is not offered, and Optuna drops it; give it in start_with"):
        study_of({"x": UNIT}, {"name": "CmaEsSampler", "x0": {"x": 0.5}})


def test_a_copy_in_optuna_shows_equal_choices_as_what_they_are() -> None:
    import optuna

    spec = make_spec(space={"c": {"type": "categorical", "choices": [0, False, [0], "[0]"]}}, search={"method": "grid"})
    study = fresh(spec)
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": 0.0})
    copy = copy_to_optuna(study.journal.entries(study.name), optuna.storages.InMemoryStorage(), "copy", ended=True)
    assert [trial.params["c"] for trial in copy.trials] == ["0", "false", "[0]", '"[0]"']
