"""What jobs reach together at a ratio, and which ratio is best."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

TOLERANCE = 0.05
"""Throughputs that differ by less are taken as equal: of equal ones the smaller ratio is better, for it needs less."""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs on all devices of one architecture reached together."""

    ratio: float | None
    """The oversubscription ratio; None: one job on each device."""
    jobs: int
    """That ran at once, on all devices of the architecture."""
    units_per_second: float
    """Of all jobs together, while they trained: start-up is left out."""
    memory: int
    """Bytes: the sum of the peaks of the jobs at once, on the device where it is largest."""
    capacity: int
    """Bytes that jobs may use of that device."""


def best_of(rows: Sequence[Together]) -> Together:
    """The smallest ratio whose throughput is nearly the largest.

    Args:
        rows: by rising ratio, at least one.
    """
    most = max(row.units_per_second for row in rows)
    return next(row for row in rows if row.units_per_second >= (1 - TOLERANCE) * most)


def is_falling(rows: Sequence[Together]) -> bool:
    """Whether the last ratio is clearly worse than the best one before it."""
    return rows[-1].units_per_second < (1 - TOLERANCE) * max(row.units_per_second for row in rows)
