"""Reservation: the oldest job that finds too few slots keeps younger ones from delaying it.

The rule of EASY backfilling (Lifka 1995), known from Slurm and Maui: of the jobs that wait, the oldest one that does
not fit is promised the earliest moment at which enough slots are free, by when the running jobs are expected to end. A
younger job may begin before it where it ends by that moment, or takes slots that will be free beside the promised ones.
So it begins no later than promised. Where nobody knows when running jobs end, no gap is filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Reservation:
    """What the oldest waiting job is promised.

    Args:
        slots: that it needs.
        free: slots that are free now.
        ends: (expected end, slots) of each running job; infinite where it is not known, and in the past where a job
            takes longer than expected.
        now: the present.

    >>> promised = Reservation(4, free=1, ends=[(10.0, 2), (30.0, 4)], now=0.0)
    >>> promised.begins, promised.spare
    (30.0, 3)
    >>> promised.admits(1, end=30.0), promised.admits(1, end=31.0), promised.admits(4, end=31.0)
    (True, True, False)
    """

    def __init__(self, slots: int, *, free: int, ends: Iterable[tuple[float, int]], now: float) -> None:
        self.begins = math.inf
        """When it begins at the latest; infinite: nobody knows."""
        self.spare = 0
        """Slots that will be free beside it then."""
        for end, count in sorted((max(end, now), count) for end, count in ends):
            if free >= slots and end > self.begins:
                break
            free += count
            if free >= slots:
                self.begins = end
        if self.begins < math.inf:
            self.spare = free - slots

    def admits(self, slots: int, *, end: float) -> bool:
        """Whether a younger job of so many slots, which would end then, cannot delay it."""
        return self.begins < math.inf and (end <= self.begins or slots <= self.spare)

    def admit(self, slots: int, *, end: float) -> None:
        """The younger job begins."""
        if end > self.begins:
            self.spare -= slots
