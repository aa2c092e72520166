"""The noise in losses: promotions may wait until a candidate leads by more.

ASHA promotes the best ``floor(n / eta)`` of a rung, by however little they lead. Here the candidate must lead the best
result outside them by more than one standard deviation of the noise in a difference of two losses; between equally
good configurations it does so by chance in 16 % of cases. A candidate that does not is promoted when there is no
configuration left to try instead.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from typing import Literal

from hpo_core.model.events import JobCompleted

WINDOW = 200
"""Latest readings that an estimate is the median of."""
LEAST = 5
"""Readings before there is an estimate."""
_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal variable."""


class NoiseEstimate:
    """Standard deviation of the noise in a difference of two losses, at each level.

    Given the noise of one loss it is ``sqrt(2)`` times that. Else it is estimated from the curves of trials that
    went on from the level: of two that stood next to each other there, the difference should run straight over
    the level and the two points behind it; how far the middle one is off that line is noise. Neighbours,
    since the noise of bad configurations says little about that of good ones, and what is common to both
    curves cancels. While a level has fewer than ``LEAST`` such readings, its noise counts as zero.

    This is the jitter from point to point. What another seed would have changed for good stays out of it.
    """

    def __init__(self, fixed: float | None) -> None:
        self._fixed = fixed
        self._last: dict[int, tuple[int, float]] = {}
        self._levels: dict[int, _Level] = {}

    @classmethod
    def create(cls, setting: float | Literal["auto"] | None) -> NoiseEstimate | None:
        """None where promotions ignore noise."""
        if setting is None:
            return None
        return cls(None if setting == "auto" else setting)

    @property
    def reads_curves(self) -> bool:
        return self._fixed is None

    def add(self, event: JobCompleted) -> None:
        """Learn from a result and its curve."""
        if self._fixed is not None:
            return
        before = self._last.get(event.trial)
        if before is not None and math.isfinite(before[1]):
            behind = [point for point in event.curve if point[0] > before[0] and math.isfinite(point[1])][:2]
            if len(behind) == 2:
                self._levels.setdefault(before[0], _Level()).add((before, behind[0], behind[1]))
        self._last[event.trial] = (event.resource, math.inf if event.loss is None else event.loss)

    def of_difference(self, level: int) -> float:
        """Standard deviation of the noise in a difference of two losses at a level; 0 while unknown."""
        if self._fixed is not None:
            return math.sqrt(2) * self._fixed
        found = self._levels.get(level)
        return found.estimate if found is not None else 0.0


_Point = tuple[int, float]
"""(resource, loss)"""


class _Level:
    """Trials that went on from one level, by their loss there."""

    __slots__ = ("_readings", "_starts", "estimate")

    def __init__(self) -> None:
        self._starts: list[tuple[float, _Point, _Point]] = []
        self._readings: deque[float] = deque(maxlen=WINDOW)
        self.estimate = 0.0

    def add(self, points: tuple[_Point, _Point, _Point]) -> None:
        """Take a reading against the trial whose loss at the level is nearest, where it has the same resources."""
        (start, loss), first, second = points
        place = bisect_left(self._starts, (loss,))
        near = self._starts[max(0, place - 1) : place + 1]
        insort(self._starts, (loss, first, second))
        if not near:
            return
        other, other_first, other_second = min(near, key=lambda one: abs(one[0] - loss))
        if (other_first[0], other_second[0]) != (first[0], second[0]):
            return
        weight = (second[0] - first[0]) / (second[0] - start)  # of the level on the line, at the first point
        line = weight * (loss - other) + (1 - weight) * (second[1] - other_second[1])
        off = abs(first[1] - other_first[1] - line)
        if math.isfinite(off):
            self._readings.append(off / math.sqrt(1 + weight**2 + (1 - weight) ** 2))
        if len(self._readings) >= LEAST:
            self.estimate = statistics.median(self._readings) / _MEDIAN
