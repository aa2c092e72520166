"""Seconds of one training step on g GPUs at a fixed global batch: models, and their correction by measured times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from hpo_core.placement.scaling.all_reduce import AllReduce, rounds, seconds
from hpo_core.placement.scaling.hardware import Link, Processor
from hpo_core.placement.scaling.layers import Convolution, Dense, Layer, Work


class StepTime(NamedTuple):
    """Seconds of a step; communication follows computation."""

    compute: float
    communication: float

    @property
    def total(self) -> float:
        return self.compute + self.communication


class StepModel(Protocol):
    """How long a step takes."""

    def step(self, gpus: int) -> StepTime:
        """Each of ``gpus`` computes its part of the global batch, then all sum their gradients."""
        ...


class LayerModel(msgspec.Struct, frozen=True, kw_only=True):
    """From the layers of the network and the figures of the hardware, as in Paleo."""

    layers: tuple[Layer, ...]
    """From input to output. The first layer with weights needs no gradient of its input."""
    processor: Processor
    link: Link
    batch: int
    """Samples of a step, over all GPUs; each computes ceil(batch / g) of them."""
    all_reduce: AllReduce = "butterfly"

    @property
    def size(self) -> int:
        """Bytes of all gradients."""
        return 4 * sum(layer.weights for layer in self.layers)

    def step(self, gpus: int) -> StepTime:
        samples = -(-self.batch // gpus)
        compute = self.forward(samples) + self.backward(samples) + self.update()
        return StepTime(compute, seconds(gpus, self.size, self.link, self.all_reduce))

    def forward(self, samples: int) -> float:
        """Seconds of the forward pass."""
        return sum(self.processor.seconds(layer.forward(samples)) for layer in self.layers)

    def backward(self, samples: int) -> float:
        """Seconds of the backward pass."""
        total, first = 0.0, True
        for layer in self.layers:
            if isinstance(layer, Convolution | Dense):
                total += self.processor.seconds(layer.weight_gradient(samples))
                if first:
                    first = False
                    continue
            total += self.processor.seconds(layer.input_gradient(samples))
        return total

    def update(self) -> float:
        """Seconds to change all weights: two operations each; weights and gradients read, weights written."""
        at_peak = msgspec.structs.replace(self.processor, reached=1.0)  # as in Paleo
        return at_peak.seconds(Work(self.size // 2, (float(self.size),) * 3))


class ExchangeModel(msgspec.Struct, frozen=True, kw_only=True):
    """From the seconds of a step on one GPU and the bytes of the gradients."""

    seconds: float
    size: float
    link: Link
    all_reduce: AllReduce = "ring"

    def step(self, gpus: int) -> StepTime:
        return StepTime(self.seconds / gpus, seconds(gpus, self.size, self.link, self.all_reduce))


class FittedModel(msgspec.Struct, frozen=True):
    """Two parameters, fitted to measured times alone: c / g + m * rounds(g)."""

    compute: float
    """c: seconds on one GPU."""
    exchange: float
    """m: seconds of one round of communication."""
    all_reduce: AllReduce = "butterfly"

    def step(self, gpus: int) -> StepTime:
        return StepTime(self.compute / gpus, self.exchange * rounds(gpus, self.all_reduce))


class CorrectedModel(msgspec.Struct, frozen=True):
    """A model whose parts are multiplied by what was measured."""

    model: StepModel
    compute: float
    """Measured computation by that of the model."""
    communication: float

    def step(self, gpus: int) -> StepTime:
        compute, communication = self.model.step(gpus)
        return StepTime(compute * self.compute, communication * self.communication)


def corrected(model: StepModel, measured: Mapping[int, float], *, steps: float | None = None) -> CorrectedModel:
    """``model`` with its computation and communication scaled to measured seconds of the same work.

    With M(g) measured on g GPUs, and compute(g) and communication(g) of the model:

        a = M(1) / compute(1)
        b = the least squares solution, at least 0, of  (a * compute(g) + b * communication(g)) / M(g) = 1  over g > 1

    With M(1) and M(2) alone, b = (M(2) - a * compute(2)) / communication(2), and both times are met exactly. Where
    computing alone took longer than M(2), b is 0.

    Args:
        measured: seconds by number of GPUs; 1 is among them. Any amount of work, the same for all.
        steps: of that work. Then b is ``steps`` where nothing but M(1) was measured: communication as the model has it.
            Without it, b is a: how much of M(1) / compute(1) is the amount of work cannot be told.
    """
    base = _base(measured)
    factor = base / model.step(1).compute
    rest = {gpus: model.step(gpus) for gpus in measured if gpus > 1}
    pairs = [
        (part.communication / measured[gpus], 1 - factor * part.compute / measured[gpus])
        for gpus, part in rest.items()
        if part.communication > 0
    ]
    if not pairs:
        return CorrectedModel(model, factor, factor if steps is None else steps)
    return CorrectedModel(model, factor, _slope(pairs))


def fitted(measured: Mapping[int, float], all_reduce: AllReduce = "butterfly") -> FittedModel:
    """The model of two parameters for measured seconds of the same work.

    c = M(1); m is the least squares solution, at least 0, of  (c / g + m * rounds(g)) / M(g) = 1  over g > 1.
    With M(1) and M(2) alone, m = (M(2) - M(1) / 2) / rounds(2). With M(1) alone, m is 0.

    >>> model = fitted({1: 100.0, 2: 55.0})
    >>> [round(model.step(gpus).total, 2) for gpus in (1, 2, 4, 8)]
    [100.0, 55.0, 35.0, 27.5]
    """
    base = _base(measured)
    pairs = [
        (rounds(gpus, all_reduce) / seconds, 1 - base / gpus / seconds)
        for gpus, seconds in measured.items()
        if gpus > 1
    ]
    return FittedModel(base, _slope(pairs) if pairs else 0.0, all_reduce)


def _base(measured: Mapping[int, float]) -> float:
    wrong = {gpus: seconds for gpus, seconds in measured.items() if gpus < 1 or not 0 < seconds < float("inf")}
    if wrong or 1 not in measured:
        raise ValueError(
            f"Measured seconds {dict(measured)}: there must be one of 1 GPU, and all must be positive numbers. "
            "Measure the same work on one GPU, too."
        )
    return measured[1]


def _slope(pairs: list[tuple[float, float]]) -> float:
    """b of y = b x by least squares, at least 0."""
    return max(0.0, sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs))
