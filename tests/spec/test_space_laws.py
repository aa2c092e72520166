"""Draws stay inside the space and have the stated distribution; streams repeat for ever."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.space import FloatParameter, IntParameter, SearchSpace

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
