"""Progressive ASHA: rungs open only while rankings change (Bohdal et al., ICLR 2023)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hpo_core.model.arithmetic import Number
from hpo_core.model.events import CeilingRaised, Event, JobCompleted, TrialCreated
from hpo_core.search.asha import Asha
from hpo_core.search.brackets import BracketPlan
from hpo_core.search.rungs import highest_rung, too_few
from hpo_core.search.search_settings import (
    CONFIGS,
    ETA,
    MAX,
    HalvingSettings,
    Outline,
    Resource,
    SearchContext,
    SearchProgress,
)

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


PERCENTILE = 90
"""Percentile of the distances between curves that cross twice: the tolerance of the soft ranking (section 4.2)."""


class PashaSearch(HalvingSettings):
    """Progressive ASHA: the maximum resource grows only while rankings change (Bohdal et al., ICLR 2023)."""

    title: ClassVar[str] = "PASHA"

    method: Literal["pasha"] = "pasha"
    configs: int | None = Field(default=None, ge=1, description=CONFIGS)
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource = Field(default=1, description="Steps of the shortest training: r in the paper.")
    reduction_factor: float = Field(default=3, ge=1.1, le=1e6, description=ETA)

    def create(self, context: SearchContext) -> Pasha:
        return Pasha(self)

    def outline(self) -> Outline:
        return Outline(
            max_resource=self.max_resource, reduction_factor=self.reduction_factor, endless=self.configs is None
        )

    def summary(self, progress: SearchProgress) -> str:
        return f"{self.method}, ceiling {progress.level:,} of {self.max_resource:,}"

    def check_objectives(self, objectives: int) -> None:
        if objectives > 1:
            raise ValueError("pasha ranks by one metric; use asha with several metrics, or give one metric")

    def notices(self, extra: int) -> list[str]:
        if self.configs is None:
            return []
        return too_few(self.highest_level, self.max_resource, self.configs + extra, self.reduction_factor)

    def highest_level(self, configs: int) -> int:
        levels = self.levels()
        return levels[highest_rung({0: configs}, len(levels), self.eta)]


class Pasha(Asha):
    """ASHA under a ceiling that begins at the second rung (Algorithm 1).

    Every result in the highest open rung is compared: where the configurations there are not in the order they
    had in the rung below, up to the tolerance, one more rung opens, up to the maximum resource. The base rung
    takes ``configs`` configurations in all, and the study drains below the ceiling.

    A loss that is not finite ranks last. An abandoned trial ranks last in its rung as well, but is not
    compared: nothing was measured.
    """

    reads_curves = True

    def __init__(self, settings: PashaSearch) -> None:
        self.settings = settings
        plan = BracketPlan(brackets=[0], levels=settings.levels(), reduction_factor=settings.eta)
        super().__init__(plan, settings.configs)
        self.ladder = self.ladders[0]
        self.ladder.ceiling = min(1, len(self.ladder.rungs) - 1)
        self._new_ranking = SoftRanking
        self._ranking = SoftRanking()
        self._tolerance = Tolerance(PERCENTILE)
        self._raised: CeilingRaised | None = None
        self._losses: list[float] = []
        """By trial: its loss at the highest rung it reached."""
        self._curves: list[tuple[tuple[int, float], ...]] = []
        """By trial: all points so far, in the order they came."""

    @property
    def tolerance(self) -> float:
        return self._tolerance.value

    @property
    def _all_open(self) -> bool:
        return self.ladder.ceiling == len(self.ladder.rungs) - 1

    def next_fact(self) -> Event | None:
        return self._raised

    def apply(self, event: Event) -> None:
        super().apply(event)
        if self._all_open:
            return
        if type(event) is TrialCreated:
            self._losses.append(math.inf)
            self._curves.append(())
        elif type(event) is JobCompleted:
            self._completed(event)
        elif type(event) is CeilingRaised:
            self._open(event)

    def _completed(self, event: JobCompleted) -> None:
        trial, below = event.trial, self._losses[event.trial]
        loss = math.inf if event.loss is None or event.violation else event.loss  # infeasible: all alike, and last
        if event.rung == self.ladder.ceiling:
            level = self.ladder.rungs[event.rung].level
            self._tolerance.add(self._curves[trial] + event.curve, level, loss)
            place = self._ranking.add(trial, below=below, above=loss, tolerance=self.tolerance)
            if place is not None and self._raised is None:
                self._raised = CeilingRaised(
                    0,
                    event.rung + 1,
                    self.ladder.rungs[event.rung + 1].level,
                    tolerance=self.tolerance,
                    place=place + 1,
                    trial=self._ranking.trial_at(place),
                    expected=self._ranking.exchangeable(place, self.tolerance),
                )
        self._losses[trial] = loss
        self._curves[trial] += (*event.curve, (event.resource, loss))

    def _open(self, event: CeilingRaised) -> None:
        self.ladder.ceiling = event.rung
        self._raised = None
        self._ranking = self._new_ranking()
        self._tolerance.begin()
        if self._all_open:
            self._losses.clear()
            self._curves.clear()

    def check(self) -> None:
        super().check()
        assert self._raised is None, "a ceiling that is due was not raised"
        assert all(rung.size == 0 for rung in self.ladder.rungs[self.ladder.ceiling + 1 :])
