"""The performance model against the figures of Paleo and of the paper on ASHA, and against loops that count."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.performance_model import (
    K40,
    Convolution,
    Dense,
    ExchangeModel,
    FittedModel,
    LayerModel,
    Link,
    fitted,
    rounds,
    seconds,
    speedups,
)
from hpo_core.gangs.growth import doublings, kappa, measured_speedups
from tests.scaling.paleo_nin import BACKWARD_K40, FORWARD_K40, NIN, PUBLISHED, nin


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"batch-{row[0]}-workers-{row[1]}")
def test_network_in_network_takes_what_paleo_says(row: tuple[float, ...]) -> None:
    batch, workers, *times = row
    model, samples = nin(int(batch)), -(-int(batch) // int(workers))
    tree, butterfly = (seconds(int(workers), model.size, model.link, scheme) for scheme in ("tree", "butterfly"))
    found = [model.forward(samples), model.backward(samples), model.update(), tree, butterfly]
    assert [1000 * seconds for seconds in found] == pytest.approx(times, rel=1e-12)
    assert model.step(int(workers)).total == pytest.approx(sum(found[:3]) + butterfly, rel=1e-12)


def test_each_layer_takes_what_paleo_says() -> None:
    for layer, (compute, memory) in zip(NIN, FORWARD_K40, strict=False):
        assert 1000 * K40.seconds(layer.forward(128)) == pytest.approx(compute + memory, rel=1e-12)
    for number, (layer, (compute, memory)) in enumerate(zip(NIN, BACKWARD_K40, strict=False)):
        found = [layer.weight_gradient(128)] if isinstance(layer, Convolution) else []
        found += [layer.input_gradient(128)] if number else []
        assert 1000 * sum(map(K40.seconds, found)) == pytest.approx(compute + memory, rel=1e-12)


def test_a_dense_layer_reads_and_writes_its_matrices() -> None:
    layer = Dense(3, 5)
    arrays = {"x": 7 * 3, "w": 3 * 5, "y": 7 * 5}
    for work in (layer.forward(7), layer.input_gradient(7), layer.weight_gradient(7)):
        assert work.flops == 2 * 7 * 3 * 5
        assert sorted(work.transfers) == sorted(4 * size for size in arrays.values())
    assert layer.weights == 3 * 5 + 5


INCEPTION = ExchangeModel(seconds=11.82207685931826, size=94937248, link=Link(20, 0.72), all_reduce="butterfly")
"""Inception V3 on a K80 at 62 % of its peak, batch 1024: seconds and bytes are what Paleo computes."""


def test_inception_may_use_16_gpus_at_three_quarters_of_linear() -> None:
    """The figure of section 5.2: 20G Ethernet, butterfly, batch 1024, K80."""
    assert kappa(speedups(INCEPTION, doublings(128))) == 16
    assert kappa(speedups(INCEPTION, range(1, 129))) == 16


def test_kappa_is_the_largest_number_that_is_efficient_enough() -> None:
    gains = speedups(INCEPTION, doublings(128))
    for efficiency in (0.01, 0.3, 0.5, 0.75, 0.9, 0.99, 1.0):
        enough = [gpus for gpus in (1, 2, 4, 8, 16, 32, 64, 128) if gains[gpus] / gpus >= efficiency]
        assert kappa(gains, efficiency) == max(enough)
    assert kappa({3: 2.1}, 0.7) == 3  # 0.7 * 3 is above 2.1 in floats, or 2.1 / 3 below 0.7
    assert kappa({}, 0.75) == 1
    assert kappa({2: 1.2, 4: 3.2}) == 4


def test_ring_and_tree_move_what_their_steps_move() -> None:
    size, link = 8.0e9, Link(10)
    for ranks in (2, 3, 4, 8, 16):
        ring = sum(link.seconds(size / ranks) for _ in range(2 * (ranks - 1)))
        assert seconds(ranks, size, link, "ring") == pytest.approx(ring)
        levels, reached = 0, 1
        while reached < ranks:
            levels, reached = levels + 1, 2 * reached
        assert rounds(ranks, "butterfly") == levels
        assert rounds(ranks, "tree") == 2 * levels
    assert [rounds(1, scheme) for scheme in ("butterfly", "tree", "ring")] == [0, 0, 0]


def test_more_measured_times_than_parameters_are_fitted_by_least_squares() -> None:
    true = FittedModel(60.0, 1.5)
    times = {gpus: true.step(gpus).total for gpus in (1, 2, 4, 8)}
    assert fitted(times).exchange == pytest.approx(1.5)
    noisy = fitted({**times, 8: times[8] * 1.05})

    def error(exchange: float) -> float:
        model = FittedModel(60.0, exchange)
        return sum((model.step(gpus).total / (times[gpus] * (1.05 if gpus == 8 else 1)) - 1) ** 2 for gpus in times)

    assert error(noisy.exchange) <= min(error(noisy.exchange + step) for step in (-0.01, 0.01))
    for found in (times, {**times, 8: times[8] * 1.05}, {1: 10.0}, {1: 10.0, 2: 4.0}):
        assert measured_speedups(found, doublings(16)) == speedups(fitted(found), doublings(16)), "as studies count"


@pytest.mark.parametrize("measured", [{2: 1.0}, {}, {1: 0.0}, {1: 1.0, 0: 2.0}, {1: 1.0, 2: float("nan")}])
def test_measured_times_that_say_nothing_are_refused(measured: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="one of 1 GPU"):
        fitted(measured)


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
@given(positive, st.floats(0.4, 1.5), st.floats(1e-3, 1e3), schemes)
def test_the_unit_of_measured_times_does_not_matter(base: float, second: float, unit: float, scheme: str) -> None:
    times = {1: base, 2: base * second}
    gains = speedups(fitted(times, scheme), SIZES)  # type: ignore[arg-type]
    scaled = speedups(fitted({size: unit * time for size, time in times.items()}, scheme), SIZES)  # type: ignore[arg-type]
    assert scaled == pytest.approx(gains, rel=1e-6)
    assert gains[2] == pytest.approx(min(2.0, 1 / second))
