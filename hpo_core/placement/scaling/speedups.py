"""Speed-ups by number of GPUs, and kappa: how many GPUs are worth their while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpo_core.placement.scaling.step_time import StepModel

EFFICIENCY = 0.75
"""Wanted part of a linear speed-up by default: that of the example in the paper on ASHA (section 5.2)."""


def doublings(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``.

    >>> doublings(20)
    (1, 2, 4, 8, 16)
    """
    return tuple(1 << level for level in range(most.bit_length()))


def speedups(model: StepModel, sizes: Iterable[int]) -> dict[int, float]:
    """How many times faster a step is than on one GPU, by number of GPUs; at most linear."""
    alone = model.step(1).total
    return {gpus: min(float(gpus), alone / model.step(gpus).total) for gpus in sizes}


def kappa(gains: Mapping[int, float], efficiency: float = EFFICIENCY) -> int:
    """The largest number of GPUs whose speed-up is at least ``efficiency`` of linear; 1 where there is none.

    >>> kappa({2: 1.9, 4: 3.4, 8: 5.0}), kappa({2: 1.9, 4: 3.4, 8: 5.0}, 0.9)
    (4, 2)
    """
    wanted = efficiency * (1 - 1e-12)  # 0.7 * 3 is below 2.1 in floats
    return max((gpus for gpus, gain in gains.items() if gain >= wanted * gpus), default=1)
