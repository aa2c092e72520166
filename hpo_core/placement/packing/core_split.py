"""How the cores of a node are best split among its devices: the most compute that they can hold together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from hpo_core.placement.packing.need import Need

MOST_UNITS = 64
"""Parts that the cores are counted in, at most: rounded up for jobs."""


def split_cores(needs: Sequence[Sequence[Need]], compute: Sequence[int], cores: int) -> tuple[list[int], int]:
    """By device: thousandths of cores that it gets, together no more than ``cores``; the compute that all then hold.

    One device's sums of compute are the bits of a whole number, one number for each amount of cores; the devices are
    then taken one after another. Memory is not looked at, nor that a job may be wanted on two devices.

    Args:
        needs: by device, of the jobs that may begin there.
        compute: by device, permille that are left.
        cores: left on the node.

    >>> small, large = Need(compute=300, cores=1000), Need(compute=900, cores=4000)
    >>> split_cores([[small, large]] * 2, [1000, 1000], 6000)
    ([4000, 1000], 1200)
    """
    unit = math.gcd(*(need.cores for some in needs for need in some)) or 1
    unit *= max(1, -(-cores // (unit * MOST_UNITS)))
    units = cores // unit
    totals = [0] * (units + 1)
    splits = []
    tables: dict[tuple[int, int], list[int]] = {}
    for some, left in zip(needs, compute, strict=True):
        key = id(some), left
        if key not in tables:
            tables[key] = _most(some, left, units, unit)
        table = tables[key]
        amounts = sorted({table.index(most) for most in table})  # more than one of these gains nothing
        best = [
            max((totals[of - amount] + table[amount], -amount) for amount in amounts if amount <= of)
            for of in range(units + 1)
        ]
        totals = [total for total, _ in best]
        splits.append([-amount for _, amount in best])
    found = []
    for split in reversed(splits):
        found.append(split[units] * unit)
        units -= split[units]
    return found[::-1], totals[-1]


def _most(needs: Sequence[Need], compute: int, units: int, unit: int) -> list[int]:
    """By units of cores: the largest sum of compute within ``compute`` that needs no more of them."""
    mask = (1 << (compute + 1)) - 1
    sums = [1] * (units + 1)
    count: Counter[tuple[int, int]] = Counter()
    for need in needs:
        size, cores = need.compute, -(-need.cores // unit)
        count[size, cores] += 1
        if count[size, cores] * size > compute or count[size, cores] * cores > units:
            continue
        for of in range(units, cores - 1, -1):
            sums[of] |= (sums[of - cores] << size) & mask
    return [one.bit_length() - 1 for one in sums]
