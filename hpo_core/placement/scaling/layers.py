"""Layers of a network: the arithmetic and the memory traffic of one training step.

Counted as in Paleo (Qi, Sparks, Talwalkar: Paleo: A Performance Model for Deep Neural Networks, ICLR 2017), where a
convolution is a matrix product. Bias, activation, normalisation and joins of branches are not counted.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

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
