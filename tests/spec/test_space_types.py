from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import Study, StudySpec
from hpo_core.execution.in_process import first_job
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.space import FloatParameter, IntParameter, SearchSpace
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import NestedParams, nested
from hpo_core.model.space.search_space import distributions, seen
from hpo_core.replay.audit import audit
from hpo_core.spec.assembly import notices
from tests.conftest import World, fresh, make_spec

Plain = dict[str, Any]
UNIT: Plain = {"type": "float", "low": 0.0, "high": 1.0}
NET: Plain = {
    "optimizer": {
        "name": {"type": "categorical", "choices": ["sgd", "adam", "lion"]},
        "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
        "momentum": UNIT | {"when": {"optimizer.name": {"not": "adam"}}},
    },
    "x": UNIT,
    "kernel": {"type": "categorical", "choices": [[3, 3], [5, 5], None]},
    "batch": {"type": "int", "low": 32, "high": 512, "step": 32},
    "noise": {"type": "float", "low": -1.0, "high": 2.0, "when": [{"kernel": [[5, 5]]}, {"x": {"low": 0.8}}]},
    "decay": {"type": "float", "low": 0.001, "high": 0.1, "log": True},
}  # fmt: skip
FORBIDDEN = [{"optimizer.name": "sgd", "x": {"high": 0.3}}, {"kernel": None, "batch": {"low": 256}}]


def space_of(space: Plain, **changes: Any) -> SearchSpace:
    return make_spec(space=space, **changes).search_space()


def chi_square(counts: Counter[Any], chances: dict[Any, float]) -> float:
    total = sum(counts.values())
    return sum((counts[one] - total * chance) ** 2 / (total * chance) for one, chance in chances.items())


@pytest.mark.parametrize(
    ("when", "active"),
    [
        ({"c": "a"}, lambda c, n: c == "a"),
        ({"c": ["a", "b"]}, lambda c, n: c in "ab"),
        ({"c": {"not": "a"}}, lambda c, n: c != "a"),
        ({"c": {"not": ["a", "b"]}}, lambda c, n: c == "z"),
        ({"n": {"low": 3}}, lambda c, n: n >= 3),
        ({"n": {"low": 2, "high": 3}}, lambda c, n: 2 <= n <= 3),
        ({"n": {"not": 2, "high": 3}}, lambda c, n: n <= 3 and n != 2),
        ({"c": "a", "n": {"low": 3}}, lambda c, n: c == "a" and n >= 3),
        ([{"c": "a"}, {"n": 4}], lambda c, n: c == "a" or n == 4),
        ([{"c": "a", "n": 1}, {"c": "b", "n": {"not": 1}}], lambda c, n: (c, n) == ("a", 1) or (c == "b" and n != 1)),
    ],
)
def test_conditions_hold_as_they_read_also_in_a_grid(when: Any, active: Any) -> None:
    names = {"c": {"type": "categorical", "choices": ["a", "b", "z"]}, "n": {"type": "int", "low": 1, "high": 4}}
    search = {"method": "grid", "points": {"x": [0.25, 0.5]}}
    spec = make_spec(space={**names, "x": UNIT | {"when": when}}, search=search)
    space = spec.search_space()
    for c, n in itertools.product("abz", range(1, 5)):
        assert space.is_active("x", {"c": c, "n": n}) is active(c, n)
    configurations = spec.search.configurations(_context(spec))
    assert configurations is not None
    size = spec.search.create(_context(spec)).width  # type: ignore[attr-defined]
    found = [configurations(number) for number in range(size)]
    wanted = [
        {"c": c, "n": n, **rest}
        for c, n in itertools.product("abz", range(1, 5))
        for rest in ([{"x": 0.25}, {"x": 0.5}] if active(c, n) else [{}])
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def _context(spec: StudySpec) -> Any:
    from hpo_core.search.search_settings import SearchContext

    return SearchContext(spec.search_space(), spec.seed, 1)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"x": UNIT | {"when": {"c": {"nott": "a"}}}}, "c has a test 'nott'; tests are not, low and high"),
        ({"x": UNIT | {"when": {"c": {}}}}, "c has an empty test"),
        ({"x": UNIT | {"when": [{"c": "a"}, {}]}}, "is empty and always holds"),
        ({"x": UNIT | {"when": {"c": {"not": ["a", "b"]}}}}, "no value of c is not 'a' or 'b'"),
        ({"x": UNIT | {"when": {"c": {"not": "z"}}}}, "wants c not 'z', a value that c never takes"),
        ({"x": UNIT | {"when": {"n": {"low": 9}}}}, "no value of n is at least 9"),
        ({"x": UNIT | {"when": {"n": {"low": "a"}}}}, "low and high are numbers"),
        ({"x": UNIT | {"when": {"y": 1}}}, "space.x.when names 'y', which is no parameter"),
        ({"x": UNIT | {"when": {"x": 1}}}, "form a circle"),
        ({"x": {"type": "int", "low": 5, "high": {"param": "n"}}}, "space.x.high: .* valid integer"),
        ({"x": {"type": "int", "low": 1, "high": 9, "step": 2, "log": True}}, "log: true and a step cannot be"),
        ({"x": {"type": "categorical", "choices": [1, 2], "weights": [1]}}, "space.x.weights: is no setting any more"),
        ({"x": UNIT | {"default": 2}}, "space.x.default: is no setting any more: name the configuration in start_with"),
        ({"c.d": UNIT}, "'c.d' is in the group 'c'"),
        ({"x": UNIT | {"when": {"n": {"not": [2, 3], "low": 2, "high": 3}}}}, "no value of n is not 2 or 3"),
        ({"x": {"type": "normal", "mean": 0, "std": 1}}, "type = 'normal' is gone: draw u with"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(space: Plain, says: str) -> None:
    others: Plain = {
        "c": {"type": "categorical", "choices": ["a", "b"]},
        "n": {"type": "int", "low": 1, "high": 4},
        "f": UNIT,
        "m": UNIT | {"when": {"c": "a"}},
    }
    with pytest.raises(SpecError, match=says) as refused:
        make_spec(space=others | space)
    assert len(str(refused.value).splitlines()) == 1


def test_a_condition_on_what_an_exclusion_leaves_is_taken() -> None:
    n = {"type": "int", "low": 1, "high": 4}
    make_spec(space={"n": n, "x": UNIT | {"when": {"n": {"not": [1, 2, 4]}}}})
    with pytest.raises(SpecError, match=r"forbidden\[0\] is empty, which forbids everything"):
        make_spec(space={"n": n}, forbidden=[{}])


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ({"type": "float", "low": 0.0, "high": 0.3, "step": 0.1}, {0.0, 0.1, 0.2, 0.3}),
        ({"type": "int", "low": 1, "high": 12, "step": 4}, {1, 5, 9}),
        ({"type": "int", "low": 2**62, "high": 2**63 - 1, "step": 2**62 - 1}, {2**62, 2**63 - 1}),
    ],
)  # fmt: skip
def test_no_rounding_leaves_the_steps(parameter: Plain, values: set[float]) -> None:
    space = space_of({"x": parameter})
    one = space.parameters["x"]
    assert isinstance(one, NumberParameter)
    found = {one.at_share(place / 50) for place in range(51)}
    assert found == values and all(one.taken(value) == value for value in found)


def test_forbidden_combinations_are_never_tried_and_the_others_as_often_as_before() -> None:
    space = {"c": {"type": "categorical", "choices": ["a", "b"]}, "n": {"type": "int", "low": 1, "high": 3}}
    found = space_of(space, forbidden=[{"c": "a", "n": {"low": 2}}])
    counts = Counter(tuple(found.draw(Stream(5, "test", i)).values()) for i in range(4000))
    assert chi_square(counts, dict.fromkeys([("a", 1), ("b", 1), ("b", 2), ("b", 3)], 0.25)) < 16.3
    assert set(counts) == {("a", 1), ("b", 1), ("b", 2), ("b", 3)}
    grid = make_spec(space=space, forbidden=[{"c": "a", "n": {"low": 2}}], search={"method": "grid"})
    study = fresh(grid)
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": 0.0})
    assert [tuple(t.params.values()) for t in study.state.trials] == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_a_space_that_is_forbidden_entirely_is_refused() -> None:
    with pytest.raises(SpecError, match="were all forbidden; forbid less"):
        make_spec(space={"x": UNIT}, forbidden=[{"x": {"low": 0.5}}, {"x": {"high": 0.5}}])
    with pytest.raises(SpecError, match="every point of the grid is forbidden"):
        make_spec(space={"x": UNIT}, forbidden=[{"x": {"low": 0.5}}], search={"method": "grid", "points": {"x": [1.0]}})
    with pytest.raises(SpecError, match=r"forbidden\[0\] names 'y', which is no parameter"):
        make_spec(space={"x": UNIT}, forbidden=[{"y": 1}])
    with pytest.raises(SpecError, match=r"start_with\[0\]: it is forbidden that x is at least 0.5"):
        make_spec(space={"x": UNIT}, forbidden=[{"x": {"low": 0.5}}], start_with=[{"x": 0.75}])


def test_groups_reach_a_training_function_as_dictionaries() -> None:
    flat = {"optimizer.lr": 0.1, "optimizer.name": "sgd", "x": 1, "a.b.c": 2}
    params = NestedParams(flat)
    assert params == {"optimizer": {"lr": 0.1, "name": "sgd"}, "x": 1, "a": {"b": {"c": 2}}}
    assert params["optimizer.lr"] == 0.1 and params["a.b.c"] == 2 and params["a.b"] == {"c": 2}
    with pytest.raises(KeyError, match=r"optimizer\.x"):
        params["optimizer.x"]
    assert nested({"a": 1, "a.b": 2}) == {"a": 1, "a.b": 2}


def test_a_group_can_be_written_as_a_mapping_or_with_dots() -> None:
    dotted = {"optimizer.lr": UNIT, "optimizer.type": {"type": "categorical", "choices": ["a"]}}
    grouped = {"optimizer": {"lr": UNIT, "type": {"type": "categorical", "choices": ["a"]}}}
    assert make_spec(space=dotted) == make_spec(space=grouped)
    both = make_spec(space={"optimizer.lr": UNIT, "optimizer": {"lr": {"high": 0.5}}})  # a file, and --set
    assert both.search_space().parameters["optimizer.lr"].high == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "sampler"), [("random", "TPESampler"), ("pbt", "random"), ("asha", "TPESampler")])
def test_every_method_plays_all_types_resumes_and_is_audited(method: str, sampler: str) -> None:
    search: Plain = {
        "random": {"method": "random", "configs": 20, "max_resource": 3},
        "pbt": {"method": "pbt", "population": 6, "generations": 4},
        "asha": {"method": "asha", "configs": 20, "max_resource": 9},
    }[method]
    spec = make_spec(study="all", space=NET, forbidden=FORBIDDEN, search=search, sampler={"name": sampler})
    study = fresh(spec)
    World(1).play(study, steps=9)
    again = Study.open("all", study.journal)
    again.recover("next")
    World(2).play(again)
    assert again.status == "finished" and audit(study.journal.entries("all")).clean
    space = spec.search_space()
    for trial in again.state.trials:
        assert space.complaints(trial.params) == []
        assert set(distributions(space, trial.params)) == set(trial.params)
        for name, distribution in distributions(space, trial.params).items():
            assert distribution._contains(distribution.to_internal_repr(seen(space, trial.params)[name]))


@pytest.mark.parametrize("sampler", ["random", "TPESampler"])
def test_what_a_sampler_does_not_express_is_said_at_the_start(sampler: str) -> None:
    search = {"method": "random", "configs": 3}
    said = notices(make_spec(space=NET, forbidden=FORBIDDEN, search=search, sampler={"name": sampler}))
    assert bool(said) == (sampler == "TPESampler") and all("knows nothing of forbidden" in one for one in said)
    assert not notices(make_spec(search=search, sampler={"name": sampler}))


def test_hpo_try_keeps_to_the_space() -> None:
    spec = make_spec(space=NET, forbidden=FORBIDDEN, constants={"data": "a"})
    params = first_job(spec, {"batch": "64"}).params
    assert (params["batch"], params["data"]) == (64, "a")
    with pytest.raises(SpecError, match="params.batch = 65 is off its steps"):
        first_job(spec, {"batch": "65"})


FLOATS = st.tuples(st.floats(1e-6, 1e3), st.floats(0, 1e3), st.booleans()).map(
    lambda t: FloatParameter(type="float", low=t[0], high=t[0] + t[1], log=t[2])
)
INTS = st.tuples(st.integers(1, 50), st.integers(0, 500), st.booleans()).map(
    lambda t: IntParameter(type="int", low=t[0], high=t[0] + t[1], log=t[2])
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.one_of(FLOATS, INTS), min_size=1), st.integers(0, 2**31))
def test_draws_are_inside(parameters: dict[str, Any], seed: int) -> None:
    space = SearchSpace(parameters)
    for number in range(5):
        values = space.draw(Stream(seed, "params", number))
        assert space.complaints(values) == []
        assert values == space.draw(Stream(seed, "params", number))


def test_streams_are_the_same_for_ever() -> None:
    # Golden values: a change would make every recorded study draw other parameters on resume.
    stream = Stream(1, "params", 0)
    assert [stream.below(1000) for _ in range(9)] == GOLDEN
    assert derive_seed(1, "training", 3) == derive_seed(1, "training", 3) < 2**31


GOLDEN = [695, 375, 317, 909, 434, 969, 630, 394, 29]


def test_uniform_and_log_uniform() -> None:
    wide = FloatParameter(type="float", low=1e-4, high=1.0, log=True)
    draws = [wide.draw(Stream(0, "test", i)) for i in range(4000)]
    below = sum(d < 1e-2 for d in draws) / 4000
    assert abs(below - 0.5) < 0.03
    ints = [IntParameter(type="int", low=1, high=6).draw(Stream(0, "die", i)) for i in range(6000)]
    chi2 = sum((ints.count(k) - 1000) ** 2 / 1000 for k in range(1, 7))
    assert chi2 < 20.5  # 0.1 % level, 5 degrees of freedom
    normal = [Stream(0, "normal", i).normal() for i in range(4000)]
    assert abs(sum(normal) / 4000) < 0.06
    assert abs(math.sqrt(sum(x * x for x in normal) / 4000) - 1) < 0.05
