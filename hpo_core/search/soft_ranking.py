"""Soft ranking: do two neighbouring rungs order the same configurations alike (Bohdal et al., ICLR 2023, section 4).

Two configurations are exchangeable where their losses lie within a tolerance, and the tolerance is learnt from
learning curves that cross and cross back: what changes hands twice on the way is taken for noise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hpo_core.model.arithmetic import Number

LEARN = 300
"""The tolerance of a rung is learnt from its first so many results; their 44,850 pairs fix a percentile well, and
the cost of a result stays bounded."""

_Floats = npt.NDArray[np.float64]


class SoftRanking:
    """Configurations of a rung that were all in the rung below too, in both orders.

    Equal losses above are ordered as below, so a tie never counts as a change.
    """

    def __init__(self) -> None:
        self._above: list[tuple[float, float, int]] = []  # (loss above, loss below, trial), the best first
        self._below: list[tuple[float, int]] = []  # (loss below, trial), the best first
        self._tolerance = 0.0
        self._stable = True

    def add(self, trial: int, *, below: float, above: float, tolerance: float) -> int | None:
        """Take in a configuration; the first place where the orders differ now, from 0, or None.

        They differ at a place where the configuration above and the one below have losses, in the rung below,
        that are further apart than the tolerance. Only places between the two that the new configuration took
        can have changed, unless the tolerance shrank.
        """
        upper, lower = (above, below, trial), (below, trial)
        places = bisect_left(self._above, upper), bisect_left(self._below, lower)
        self._above.insert(places[0], upper)
        self._below.insert(places[1], lower)
        changed = range(min(places), max(places) + 1)
        if tolerance < self._tolerance or not self._stable:
            changed = range(len(self._above))
        found = next((i for i in changed if abs(self._above[i][1] - self._below[i][0]) > tolerance), None)
        self._tolerance, self._stable = tolerance, found is None
        return found

    def trial_at(self, place: int) -> int:
        return self._above[place][2]

    def exchangeable(self, place: int, tolerance: float) -> tuple[int, ...]:
        """Trials whose losses in the rung below are within the tolerance of the one at that place there."""
        loss = self._below[place][0]
        first = bisect_left(self._below, (loss - tolerance, -1))
        last = bisect_right(self._below, (loss + tolerance, len(self._below)), lo=place)
        near = self._below[max(0, first - 1) : last + 1]  # rounding of a sum must not contradict that of a difference
        return tuple(trial for other, trial in near if abs(other - loss) <= tolerance)


class Tolerance:
    """The ``percentile`` of distances between configurations whose learning curves cross at least twice.

    A pair counts where, on the way to the rung's level, the order at the level was the other one before and
    the same one before that (section 4.2); its distance is taken at the level. Until a rung has such a
    pair, the tolerance of the rung before it holds, 0 at first.
    """

    def __init__(self, percentile: Number) -> None:
        self.value = 0.0
        self._percentile = percentile
        self.begin()

    def begin(self) -> None:
        """A new rung is looked at: its curves and distances replace those of the one before."""
        self._resources: list[int] = []
        self._curves: _Floats = np.empty((0, 0))
        self._distances: _Floats = np.empty(0)

    def add(self, curve: Iterable[tuple[int, float]], level: int, loss: float) -> None:
        """Learn from a configuration that reached the level.

        Args:
            curve: (resource, loss) before the level, in any order; of two at one resource the later counts.
            level: of the rung.
            loss: there; where it is not finite, nothing is learnt.
        """
        if len(self._curves) >= LEARN or not math.isfinite(loss):
            return
        points = {resource: value for resource, value in curve if resource < level and math.isfinite(value)}
        points[level] = loss
        self._widen(points)
        row = np.array([points.get(resource, np.nan) for resource in self._resources])
        with np.errstate(over="ignore", invalid="ignore"):
            found = _distances_of_crossing(self._curves - row)
        self._curves = np.vstack((self._curves, row))
        if found.size:
            found.sort()
            self._distances = np.insert(self._distances, np.searchsorted(self._distances, found), found)
            self.value = _percentile(self._distances, self._percentile)

    def _widen(self, points: Iterable[int]) -> None:
        new = sorted(set(points).difference(self._resources))
        if new:
            places = np.searchsorted(np.array(self._resources, dtype=np.int64), np.array(new, dtype=np.int64))
            self._curves = np.insert(self._curves, places, np.nan, axis=1)
            self._resources = sorted([*self._resources, *new])


def _distances_of_crossing(differences: _Floats) -> _Floats:
    # Final distances, of the rows whose sign changes at least twice; zeros and NaN have no sign.
    signs = np.sign(differences)
    final = signs[:, -1:]
    opposite = (signs == -final) & (final != 0)
    last_opposite = signs.shape[1] - 1 - np.argmax(opposite[:, ::-1], axis=1)
    first_same = np.argmax(signs == final, axis=1)
    distances: _Floats = np.abs(differences[opposite.any(axis=1) & (first_same < last_opposite), -1])
    return distances[np.isfinite(distances)]


def _percentile(ascending: _Floats, percent: Number) -> float:
    at = (len(ascending) - 1) * percent / 100
    low = int(at)
    a, b = float(ascending[low]), float(ascending[min(low + 1, len(ascending) - 1)])
    return a + (b - a) * float(at - low)
