"""A performance model of data-parallel training (Paleo): from the layers of a network and figures of the hardware.

Qi, Sparks, Talwalkar: Paleo: A Performance Model for Deep Neural Networks, ICLR 2017. The paper on ASHA (section 5.2)
takes speed-ups from it. A convolution is counted as a matrix product; bias, activation, normalisation and joins of
branches are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

AllReduce = Literal["butterfly", "tree", "ring"]
"""The way in which ranks exchange their sums."""


def rounds(ranks: int, scheme: AllReduce) -> float:
    """Number of times that all bytes cross one link, one after another.

    Butterfly: ceil(log2 g) exchanges of everything. Tree: as many to sum, as many to tell the sum. Ring: 2 (g - 1)
    steps of one g-th. The first two are Paleo's; the ring is what NCCL and gloo do for large arrays.

    >>> [rounds(8, scheme) for scheme in ("butterfly", "tree", "ring")]
    [3, 6, 1.75]
    >>> rounds(1, "tree")
    0
    """
    levels = (ranks - 1).bit_length()
    if scheme == "butterfly":
        return levels
    return 2 * levels if scheme == "tree" else 2 * (ranks - 1) / ranks


class StepTime(NamedTuple):
    """Seconds of a step; communication follows computation."""

    compute: float
    communication: float

    @property
    def total(self) -> float:
        return self.compute + self.communication


class StepModel(Protocol):
    """Seconds of a step."""

    def step(self, gpus: int) -> StepTime:
        """Each of ``gpus`` computes its part of the global batch, then all sum their gradients."""
        ...


class FittedModel(msgspec.Struct, frozen=True):
    """Two parameters, fitted to measured times alone: c / g + m * rounds(g)."""

    compute: float
    """c: seconds on one GPU."""
    exchange: float
    """m: seconds of one round of communication."""
    all_reduce: AllReduce = "butterfly"

    def step(self, gpus: int) -> StepTime:
        return StepTime(self.compute / gpus, self.exchange * rounds(gpus, self.all_reduce))


def fitted(measured: Mapping[int, float], all_reduce: AllReduce = "butterfly") -> FittedModel:
    """The model of two parameters for measured seconds of the same work.

    c = M(1); m is the least squares solution, at least 0, of  (c / g + m * rounds(g)) / M(g) = 1  over g > 1.
    With M(1) and M(2) alone, m = (M(2) - M(1) / 2) / rounds(2). With M(1) alone, m is 0.

    >>> model = fitted({1: 100.0, 2: 55.0})
    >>> [round(model.step(gpus).total, 2) for gpus in (1, 2, 4, 8)]
    [100.0, 55.0, 35.0, 27.5]
    """
    base = seconds_alone(measured)
    pairs = [
        (rounds(gpus, all_reduce) / seconds, 1 - base / gpus / seconds)
        for gpus, seconds in measured.items()
        if gpus > 1
    ]
    return FittedModel(base, slope(pairs) if pairs else 0.0, all_reduce)


def seconds_alone(measured: Mapping[int, float]) -> float:
    """The seconds that were measured on one GPU.

    Raises:
        ValueError: there are none, or a time is not positive.
    """
    wrong = {gpus: seconds for gpus, seconds in measured.items() if gpus < 1 or not 0 < seconds < float("inf")}
    if wrong or 1 not in measured:
        raise ValueError(
            f"Measured seconds {dict(measured)}: there must be one of 1 GPU, and all must be positive numbers. "
            "Measure the same work on one GPU, too."
        )
    return measured[1]


def slope(pairs: list[tuple[float, float]]) -> float:
    """b of y = b x by least squares, at least 0."""
    return max(0.0, sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs))


def speedups(model: StepModel, sizes: Iterable[int]) -> dict[int, float]:
    """Speed-up of a step over one GPU, by number of GPUs; at most linear."""
    alone = model.step(1).total
    return {gpus: min(float(gpus), alone / model.step(gpus).total) for gpus in sizes}


_FLOAT = 4
"""Bytes of a number."""


class Work(NamedTuple):
    """What one operation costs, whatever does it."""

    flops: float
    transfers: tuple[float, ...]
    """Bytes of each array that is read from or written to the processor's memory."""


def _product(samples: float, inputs: float, outputs: float) -> Work:
    """A matrix product of (samples, inputs) and (inputs, outputs)."""
    arrays = samples * inputs, inputs * outputs, samples * outputs
    return Work(2 * samples * inputs * outputs, tuple(_FLOAT * array for array in arrays))


class Dense(msgspec.Struct, frozen=True):
    """A fully connected layer.

    >>> Dense(1000, 10).weights, Dense(1000, 10).forward(32).flops
    (10010, 640000)
    """

    inputs: int
    outputs: int

    @property
    def weights(self) -> int:
        """Numbers that are trained."""
        return (self.inputs + 1) * self.outputs

    def forward(self, samples: int) -> Work:
        return _product(samples, self.inputs, self.outputs)

    def input_gradient(self, samples: int) -> Work:
        return _product(samples, self.outputs, self.inputs)

    def weight_gradient(self, samples: int) -> Work:
        return _product(self.inputs, samples, self.outputs)


class Pooling(msgspec.Struct, frozen=True):
    """Takes the maximum or mean of windows. Sizes are (height, width)."""

    inputs: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    outputs: tuple[int, int]

    weights = 0

    def forward(self, samples: int) -> Work:
        read, written = (samples * size[0] * size[1] * self.channels for size in (self.inputs, self.outputs))
        return Work(2 * self.kernel[0] * self.kernel[1] * written, (_FLOAT * read, _FLOAT * written))

    input_gradient = forward


class Elementwise(msgspec.Struct, frozen=True):
    """One operation for each number, such as dropout."""

    size: int
    """Numbers of one sample."""

    weights = 0

    def forward(self, samples: int) -> Work:
        count = samples * self.size
        return Work(count, (_FLOAT * count, _FLOAT * count))

    input_gradient = forward


class Convolution(msgspec.Struct, frozen=True):
    """A convolution in two dimensions. Sizes are (height, width).

    >>> Convolution((224, 224), 3, (11, 11), 96, stride=(4, 4)).outputs
    (54, 54)
    """

    inputs: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    filters: int
    stride: tuple[int, int] = (1, 1)
    padding: Literal["valid", "same"] = "valid"

    @property
    def outputs(self) -> tuple[int, int]:
        """Size of each output map."""
        return self._output(0), self._output(1)

    @property
    def weights(self) -> int:
        """Numbers that are trained."""
        return self.kernel[0] * self.kernel[1] * self.channels * self.filters + self.filters

    def forward(self, samples: int) -> Work:
        (out_height, out_width), (kernel_height, kernel_width) = self.outputs, self.kernel
        flops = 2 * kernel_height * kernel_width * self.channels * out_height * out_width * self.filters * samples
        padded = [size + 2 * self._padding(axis) for axis, size in enumerate(self.inputs)]
        return Work(
            flops,
            (
                _FLOAT * samples * padded[0] * padded[1] * self.channels,
                _FLOAT * (self.weights - self.filters),
                _FLOAT * samples * out_height * out_width * self.filters,
            ),
        )

    def input_gradient(self, samples: int) -> Work:
        """A convolution of the gradient, spread by the stride, into an array of the input's size."""
        (height, spread_height), (width, spread_width) = self._spread(0), self._spread(1)
        size = self.inputs[0] * self.inputs[1] * self.channels * samples
        flops = 2.0 * self.kernel[0] * self.kernel[1] * self.filters * size
        filled = self.outputs[0] * self.outputs[1] / (height * width)
        if filled < 1:
            flops += 2 * samples * height * width * self.filters * filled
        padded = (height + 2 * spread_height) * (width + 2 * spread_width)
        return Work(
            flops,
            (_FLOAT * samples * padded * self.filters, _FLOAT * (self.weights - self.filters), _FLOAT * size),
        )

    def weight_gradient(self, samples: int) -> Work:
        """A convolution of the input with the gradient, which is as large as a kernel."""
        kernels = self.kernel[0] * self.kernel[1] * self.channels * self.filters
        outputs = self.outputs[0] * self.outputs[1]
        pads = (0, 0) if self.padding == "valid" else (self._spread(0)[1], self._spread(1)[1])
        padded = (self.inputs[0] + 2 * pads[0]) * (self.inputs[1] + 2 * pads[1])
        return Work(
            2.0 * outputs * samples * kernels,
            (
                _FLOAT * self.channels * padded * samples,
                _FLOAT * outputs * samples * self.filters,
                _FLOAT * kernels,
            ),
        )

    def _output(self, axis: int) -> int:
        size = self.inputs[axis] if self.padding == "same" else self.inputs[axis] - self.kernel[axis] + 1
        return -(-size // self.stride[axis])

    def _padding(self, axis: int) -> int:
        """Zeros on each side of the input."""
        if self.padding == "valid":
            return 0
        spread = (self._output(axis) - 1) * self.stride[axis] + self.kernel[axis]
        return (spread - self.inputs[axis]) // 2

    def _spread(self, axis: int) -> tuple[int, int]:
        """The gradient's size with the stride's gaps in it, and the zeros on each side of that."""
        size = (self._output(axis) - 1) * self.stride[axis] + 1
        before = self.kernel[axis] - 1 - self._padding(axis)
        after = self.inputs[axis] + self.kernel[axis] - 1 - size - before
        return size + (abs(before - after) == 1), min(before, after)


Layer = Convolution | Dense | Pooling | Elementwise
"""All kinds. Layers whose work does not count (softmax, joins) are left out."""


_GIB = 2**30


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or CPU, by its data sheet.

    >>> K80.seconds(Work(5.6e12, ()))
    1.0
    """

    clock_mhz: float
    peak_gflops: float
    memory_gb: float
    """Bandwidth of its memory in 2^30 bytes a second."""
    reached: float = 1.0
    """The part of peak and bandwidth that software reaches (Paleo: platform percent of peak)."""

    def seconds(self, work: Work) -> float:
        """Arithmetic and memory traffic, one after the other; each at least one tick of the clock."""
        tick = 1e-6 / self.clock_mhz
        arithmetic = max(tick, work.flops / (self.peak_gflops * 1e9 * self.reached)) if work.flops else 0.0
        return arithmetic + sum(
            max(tick, transfer / _GIB / self.memory_gb / self.reached) for transfer in work.transfers
        )


class Link(msgspec.Struct, frozen=True):
    """The network of each processor."""

    gbps: float
    """Gigabits (10^9) a second."""
    reached: float = 1.0
    """The part of it that software reaches."""

    def seconds(self, transfer: float) -> float:
        """For so many bytes."""
        return transfer * 8e-9 / self.gbps / self.reached


K20X = Processor(clock_mhz=1000, peak_gflops=3935, memory_gb=250)
K40 = Processor(clock_mhz=745, peak_gflops=4290, memory_gb=288)
K80 = Processor(clock_mhz=560, peak_gflops=5600, memory_gb=480)
TITAN_X = Processor(clock_mhz=1000, peak_gflops=6144, memory_gb=336.5)
"""Figures of Paleo (TalwalkarLab/paleo, ``paleo/device.py``)."""

ETHERNET_20 = Link(20)
INFINIBAND = Link(70)
"""As above."""


def seconds(ranks: int, size: float, link: Link, scheme: AllReduce) -> float:
    """Time of one sum of ``size`` bytes; 0 for one rank."""
    return rounds(ranks, scheme) * link.seconds(size)


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
