"""Speed-up of a job on several slots, and the number of slots that are worth their while.

Training is data-parallel at a fixed global batch: each rank computes its part, then all sum their gradients.
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


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``.

    >>> doublings(20)
    (1, 2, 4, 8, 16)
    """
    return tuple(1 << level for level in range(most.bit_length()))


def speedups(model: StepModel, sizes: Iterable[int]) -> dict[int, float]:
    """Speed-up of a step over one GPU, by number of GPUs; at most linear."""
    alone = model.step(1).total
    return {gpus: min(float(gpus), alone / model.step(gpus).total) for gpus in sizes}


def kappa(gains: Mapping[int, float], efficiency: float = 0.75) -> int:
    """The largest number of GPUs whose speed-up is at least ``efficiency`` of linear; 1 where there is none.

    >>> kappa({2: 1.9, 4: 3.4, 8: 5.0}), kappa({2: 1.9, 4: 3.4, 8: 5.0}, 0.9)
    (4, 2)
    """
    wanted = efficiency * (1 - 1e-12)  # 0.7 * 3 is below 2.1 in floats
    return max((gpus for gpus, gain in gains.items() if gain >= wanted * gpus), default=1)
