"""Laws of the performance model."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.performance_model import CorrectedModel, LayerModel, Link, StepModel, corrected, fitted, speedups
from hpo_core.study.gang_sizes import doublings, kappa
from tests.scaling.paleo_nin import NIN, nin

SIZES = doublings(128)
few = settings(max_examples=30)
"""These are simple laws, and a step of a network is many operations."""
schemes = st.sampled_from(["butterfly", "tree", "ring"])
positive = st.floats(1e-3, 1e6)


@st.composite
def models(draw: st.DrawFn) -> LayerModel:
    layers = draw(st.lists(st.sampled_from(NIN), min_size=1, max_size=6))
    link = Link(draw(st.floats(0.1, 1000)), draw(st.floats(0.05, 1)))
    found = nin(draw(st.integers(1, 4096)))
    return msgspec.structs.replace(found, layers=tuple(layers), link=link, all_reduce=draw(schemes))


@few
@given(models(), st.lists(st.floats(0.01, 1), min_size=2, max_size=5))
def test_kappa_falls_as_the_wanted_efficiency_rises(model: LayerModel, wanted: list[float]) -> None:
    gains = speedups(model, SIZES)
    found = [kappa(gains, efficiency) for efficiency in sorted(wanted)]
    assert found == sorted(found, reverse=True)
    assert all(
        gains[size] >= efficiency * size * 0.999999 for size, efficiency in zip(found, sorted(wanted), strict=True)
    )


@few
@given(models())
def test_a_speedup_is_at_most_linear_and_one_on_one_gpu(model: LayerModel) -> None:
    gains = speedups(model, range(1, 40))
    assert gains[1] == 1
    assert all(0 < gain <= gpus for gpus, gain in gains.items())


@few
@given(models(), positive, positive, st.sampled_from(SIZES))
def test_a_correction_finds_the_factors_of_times_that_follow_the_model(
    model: StepModel, compute: float, ratio: float, gpus: int
) -> None:
    true = CorrectedModel(model, compute, compute * ratio)
    found = corrected(model, {size: true.step(size).total for size in (1, 2)})
    assert found.step(gpus).total == pytest.approx(true.step(gpus).total, rel=1e-6)


@few
@given(positive, st.floats(0.4, 1.5), st.floats(1e-3, 1e3), schemes)
def test_the_unit_of_measured_times_does_not_matter(base: float, second: float, unit: float, scheme: str) -> None:
    times = {1: base, 2: base * second}
    gains = speedups(fitted(times, scheme), SIZES)  # type: ignore[arg-type]
    scaled = speedups(fitted({size: unit * time for size, time in times.items()}, scheme), SIZES)  # type: ignore[arg-type]
    assert scaled == pytest.approx(gains, rel=1e-6)
    assert gains[2] == pytest.approx(min(2.0, 1 / second))
