"""Rungs of successive halving with several objectives: non-dominated sorting, then coverage of each front.

After MO-ASHA (Schmucker et al. 2021, arXiv:2106.12639, EpsNet; the net itself: Clarkson 2005, "Nearest-Neighbor
Searching and Metric Space Dimensions"). MO-ASHA stops trials and so ranks each once; here paused trials are
ranked again after each result, which asks for one more rule: see :class:`ParetoRung`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_core.model.arithmetic import Number
from hpo_core.search.method import Infeasible

Losses = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class ParetoRung:
    """Results at one resource level, ranked by several objectives.

    Ranking: the non-dominated results (front 0) before those that only front 0 dominates (front 1), and so on;
    infeasible results after them (:class:`~hpo_core.search.method.Infeasible`), each a front of its own; trials without
    finite losses last, by number. Within a front the losses are mapped to [0, 1] per objective,
    over that front, and the order is greedy: first the smallest loss in the first objective, then always the
    trial farthest (Euclidean) from those before it; the lower number between equals. Trials promoted already
    come before the others of their front. Without that rule each new result would reshuffle the order of a large
    front and make other trials candidates: with one decision per result, 546 instead of 250 of 1,000 results
    on one front would be promoted at eta 4.

    The ranking depends on which results and promotions there are, not on their order.

    The cost of a result and the decision after it grows with the size of a front times its promoted results; all on
    one front are the worst case. On a busy machine: 2 to 5 ms in the mean of 1,000 results, 8 ms of 3,000
    (``benchmarks/pareto.py``). :meth:`rank` and :meth:`ranking` are quadratic in the front.

    Args:
        level: resource of this rung.
        reduction_factor: eta; the best ``floor(n / eta)`` of ``n`` results are candidates.
    """

    __slots__ = (
        "_candidate",
        "_fronts",
        "_infeasible",
        "_known",
        "_last",
        "_promoted",
        "level",
        "reduction_factor",
        "size",
    )

    def __init__(self, level: int, reduction_factor: Number) -> None:
        self.level = level
        self.reduction_factor = reduction_factor
        self.size = 0
        self._fronts: list[_Front] = []
        self._infeasible: list[tuple[Infeasible, int]] = []  # of the last fronts, in their order
        self._last: list[int] = []  # trials without finite losses
        self._promoted: set[int] = set()
        self._known = True  # whether _candidate still holds
        self._candidate: int | None = None

    def add(self, trial: int, losses: Any) -> None:
        self.size += 1
        self._known = False
        if losses is None:
            insort(self._last, trial)
            return
        found = losses.losses if isinstance(losses, Infeasible) else losses
        point = np.array([found], dtype=np.float64)
        moved = _Front(np.array([trial]), point, np.array([trial in self._promoted]))
        fronts = self._fronts
        feasible = len(fronts) - len(self._infeasible)
        if isinstance(losses, Infeasible):
            place = bisect_left(self._infeasible, (losses, trial))
            self._infeasible.insert(place, (losses, trial))
            fronts.insert(feasible + place, moved)
            return
        low, high = 0, feasible
        while low < high:  # what front k dominates, the fronts before it dominate, too
            middle = (low + high) // 2
            if dominated_by(fronts[middle].losses, point)[0]:
                low = middle + 1
            else:
                high = middle
        for k in range(low, feasible):
            front = fronts[k]
            below = dominated_by(moved.losses, front.losses)
            if below.all():  # then it goes down as a whole, and so do all after it
                fronts.insert(k, moved)
                return
            fronts[k] = front.where(~below).joined(moved) if below.any() else front.joined(moved)
            if not below.any():
                return
            moved = front.where(below)
        fronts.insert(feasible, moved)

    def withdraw(self, trial: int) -> None:
        infeasible = self._infeasible
        entries: list[tuple[int, tuple[float, ...] | Infeasible]] = [
            (int(number), tuple(losses.tolist()))
            for front in self._fronts[: len(self._fronts) - len(infeasible)]
            for number, losses in zip(front.trials, front.losses, strict=True)
        ]
        last = sorted({*self._last, trial})
        self.size, self._fronts, self._infeasible, self._last, self._known = 0, [], [], [], False
        entries += [(number, loss) for loss, number in infeasible]
        for number, point in entries:
            if number != trial:
                self.add(number, point)
        for number in last:
            self.add(number, None)

    def candidate(self) -> int | None:
        if not self._known:
            self._candidate = next((front.first_free() for front, free in self._quotas() if free), None)
            self._known = True
        return self._candidate

    def _quotas(self) -> list[tuple[_Front, int]]:
        left = int(self.size // self.reduction_factor)
        found = []
        for front in self._fronts:
            if left <= 0:
                break
            found.append((front, max(0, min(left, len(front.trials)) - front.gone)))
            left -= len(front.trials)
        return found

    def promote(self, trial: int) -> None:
        self._promoted.add(trial)
        self._known = False
        for front in self._fronts:
            if front.promote(trial):
                return

    @property
    def promoted(self) -> int:
        return len(self._promoted)

    def promotable(self) -> int:
        return sum(free for _, free in self._quotas())

    def ranking(self) -> list[int]:
        return [trial for front in self._fronts for trial in front.order()] + self._last

    def rank(self, trial: int) -> int:
        before = 0
        for front in self._fronts:
            if front.index(trial) is not None:
                return before + len(front.order(until=trial))
            before += len(front.trials)
        return before + self._last.index(trial) + 1

    def check(self) -> None:
        for front in self._fronts:
            assert front.gone == np.count_nonzero(front.promoted) == len(self._promoted & set(front.trials.tolist()))
        ranked = self.ranking()
        assert len(set(ranked)) == len(ranked) == self.size
        top = ranked[: min(int(self.size // self.reduction_factor), self.size - len(self._last))]
        free = [trial for trial in top if trial not in self._promoted]
        assert self.candidate() == (free[0] if free else None) and self.promotable() == len(free)


def dominated_by(by: Losses, losses: Losses) -> Mask:
    nowhere_worse = by[:, 0, None] <= losses[:, 0]
    better = by[:, 0, None] < losses[:, 0]
    for i in range(1, losses.shape[1]):
        nowhere_worse &= by[:, i, None] <= losses[:, i]
        better |= by[:, i, None] < losses[:, i]
    return np.asarray((nowhere_worse & better).any(axis=0))


class _Front:
    """Results of which none dominates another, by ascending trial number."""

    __slots__ = ("gone", "losses", "promoted", "trials")

    def __init__(self, trials: npt.NDArray[np.int64], losses: Losses, promoted: Mask) -> None:
        self.trials = trials
        self.losses = losses
        self.promoted = promoted
        self.gone = int(np.count_nonzero(promoted))

    def joined(self, other: _Front) -> _Front:
        trials = np.concatenate([self.trials, other.trials])
        order = np.argsort(trials)
        losses = np.concatenate([self.losses, other.losses])[order]
        return _Front(trials[order], losses, np.concatenate([self.promoted, other.promoted])[order])

    def where(self, mask: Mask) -> _Front:
        return _Front(self.trials[mask], self.losses[mask], self.promoted[mask])

    def index(self, trial: int) -> int | None:
        i = int(np.searchsorted(self.trials, trial))
        return i if i < len(self.trials) and self.trials[i] == trial else None

    def promote(self, trial: int) -> bool:
        i = self.index(trial)
        if i is not None and not self.promoted[i]:
            self.promoted[i] = True
            self.gone += 1
        return i is not None

    def first_free(self) -> int:
        if not self.gone:
            return int(self.trials[np.argmin(self.losses[:, 0])])
        unit = _unit(self.losses)
        nearest = np.full(len(self.trials), math.inf)
        for chosen in unit[self.promoted]:
            np.minimum(nearest, _squared_distances(unit, chosen), out=nearest)
        return int(self.trials[np.argmax(np.where(self.promoted, -1.0, nearest))])

    def order(self, until: int | None = None) -> list[int]:
        unit = _unit(self.losses)
        nearest = np.full(len(self.trials), math.inf)
        allowed = self.promoted.copy() if self.gone else ~self.promoted
        chosen = int(np.argmin(np.where(allowed, self.losses[:, 0], math.inf)))
        found = [int(self.trials[chosen])]
        while len(found) < len(self.trials) and found[-1] != until:
            allowed[chosen] = False
            np.minimum(nearest, _squared_distances(unit, unit[chosen]), out=nearest)
            if len(found) == self.gone:
                allowed = ~self.promoted
            chosen = int(np.argmax(np.where(allowed, nearest, -1.0)))
            found.append(int(self.trials[chosen]))
        return found


def _unit(losses: Losses) -> Losses:
    low = losses.min(axis=0) * 0.5
    span = losses.max(axis=0) * 0.5 - low
    span[span == 0.0] = 1.0
    unit: Losses = (losses * 0.5 - low) / span
    return unit


def _squared_distances(points: Losses, point: Losses) -> Losses:
    # Added up one objective after the other, so that the last bit does not depend on the number of points.
    total: Losses = np.square(points[:, 0] - point[0])
    for i in range(1, points.shape[1]):
        total += np.square(points[:, i] - point[i])
    return total
