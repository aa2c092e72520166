"""Seconds that ranks take to sum their gradients, by the scheme of the sum."""

from __future__ import annotations

from typing import Literal

from hpo_core.placement.scaling.hardware import Link

AllReduce = Literal["butterfly", "tree", "ring"]
"""How ranks exchange what they sum."""


def rounds(ranks: int, scheme: AllReduce) -> float:
    """How many times all bytes cross one link, one after another.

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


def seconds(ranks: int, size: float, link: Link, scheme: AllReduce) -> float:
    """Time of one sum of ``size`` bytes; 0 for one rank."""
    return rounds(ranks, scheme) * link.seconds(size)
