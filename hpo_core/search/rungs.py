"""Rungs of successive halving: results at one level, and the next candidate.

A rung answers "best candidate not promoted yet" in O(log n) amortized: two heaps keep the best
``floor(n / eta)`` apart from the rest, a third offers those among them that were not promoted. Entries
that moved are left in their old heap and skipped when they surface.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hpo_core.model.arithmetic import Number
from hpo_core.search.method import Rankable

if TYPE_CHECKING:
    from hpo_core.search.pareto_rungs import ParetoRung

INFINITY = math.inf
MOST_UNITS = 2**53
"""The highest level of a ladder without a maximum resource."""


def rung_levels(min_resource: int, max_resource: int, reduction_factor: Number) -> list[int]:
    """Levels ``r * eta**k``, the top exactly ``R``.

    Where ``R / r`` is no power of eta, a level within a factor ``sqrt(eta)`` below R gives way to R, so
    that no promotion buys next to nothing. ``r < R`` gives at least two rungs.

    >>> rung_levels(1, 9, 3), rung_levels(1, 200, 3), rung_levels(1, 100, 3), rung_levels(1, 32, 4)
    ([1, 3, 9], [1, 3, 9, 27, 81, 200], [1, 3, 9, 27, 100], [1, 4, 32])
    """
    if min_resource == max_resource:
        return [max_resource]
    level, levels = reduction_factor * min_resource, [min_resource]
    while level**2 * reduction_factor < max_resource**2:
        levels.append(round(level))
        level *= reduction_factor
    return [level for level in dict.fromkeys(levels) if level < max_resource] + [max_resource]


def default_min_resource(max_resource: int, reduction_factor: Number, rungs: int = 5) -> int:
    """Smallest resource that gives at most ``rungs`` rungs (ASHA 5.1: at most five)."""
    smallest = max(1, round(max_resource / reduction_factor ** (rungs - 1)))
    while len(rung_levels(smallest, max_resource, reduction_factor)) > rungs:
        smallest += 1
    return smallest


class LossRung:
    """Results at one resource level.

    Args:
        level: resource of this rung.
        reduction_factor: eta; the best ``floor(n / eta)`` of ``n`` results are candidates.
    """

    __slots__ = ("_in_top", "_promoted", "_ready", "_rest", "_top", "level", "reduction_factor", "size")

    def __init__(self, level: int, reduction_factor: Number) -> None:
        self.level = level
        self.reduction_factor = reduction_factor
        self.size = 0
        self._top: list[tuple[Rankable, int]] = []  # max-heap of the candidates: (-loss, -trial)
        self._rest: list[tuple[Rankable, int]] = []  # min-heap of the others: (loss, trial)
        self._ready: list[tuple[Rankable, int]] = []  # min-heap of candidates to promote, with stale ones
        self._in_top: set[int] = set()
        self._promoted: set[int] = set()

    def add(self, trial: int, loss: Any) -> None:
        """Register a result; None (not finite, or abandoned) ranks last and is never promoted.

        Between equal losses the lower trial number ranks first.
        """
        key = (INFINITY if loss is None else loss, trial)
        self.size += 1
        top, rest = self._top, self._rest
        if top and key < (-top[0][0], -top[0][1]):
            self._enter(key)
        else:
            heapq.heappush(rest, key)
        wanted = int(self.size // self.reduction_factor)
        if len(top) > wanted:
            negative = heapq.heappop(top)
            self._in_top.discard(-negative[1])
            heapq.heappush(rest, (-negative[0], -negative[1]))
        elif len(top) < wanted:
            self._enter(heapq.heappop(rest))

    def withdraw(self, trial: int) -> None:
        """Rank a result last from now on, for its trial was abandoned; O(n log n)."""
        entries = [(-loss, -number) for loss, number in self._top] + self._rest
        self.size = 0
        self._top, self._rest, self._ready, self._in_top = [], [], [], set()
        for loss, number in entries:
            self.add(number, None if number == trial or loss == INFINITY else loss)

    def _enter(self, key: tuple[Rankable, int]) -> None:
        heapq.heappush(self._top, (-key[0], -key[1]))
        self._in_top.add(key[1])
        if key[1] not in self._promoted and key[0] != INFINITY:
            heapq.heappush(self._ready, key)

    def candidate(self) -> int | None:
        """The best trial among the top ``floor(n / eta)`` that was not promoted, or None."""
        ready = self._ready
        while ready:
            trial = ready[0][1]
            if trial in self._in_top and trial not in self._promoted:
                return trial
            heapq.heappop(ready)
        return None

    def promote(self, trial: int) -> None:
        self._promoted.add(trial)

    @property
    def promoted(self) -> int:
        return len(self._promoted)

    def promotable(self) -> int:
        return len({key[1] for key in self._ready} & self._in_top - self._promoted)

    def ranking(self) -> list[int]:
        """All trials here, the best first; O(n log n), for looking."""
        return [trial for _, trial in sorted([(-loss, -trial) for loss, trial in self._top] + self._rest)]

    def rank(self, trial: int) -> int:
        return self.ranking().index(trial) + 1

    def check(self) -> None:
        top = {(-loss, -trial) for loss, trial in self._top}
        ranked = sorted(top | set(self._rest))
        assert len(ranked) == self.size == len(self._top) + len(self._rest)
        wanted = int(self.size // self.reduction_factor)
        assert len(self._top) == wanted and top == set(ranked[:wanted])
        assert {trial for _, trial in top} == self._in_top
        free = [t for loss, t in ranked[:wanted] if t not in self._promoted and loss != INFINITY]
        assert self.candidate() == (free[0] if free else None)


AnyRung: TypeAlias = "LossRung | ParetoRung"


def make_rung(level: int, reduction_factor: Number, objectives: int = 1) -> AnyRung:
    if objectives == 1:
        return LossRung(level, reduction_factor)
    from hpo_core.search.pareto_rungs import ParetoRung

    return ParetoRung(level, reduction_factor)


class Ladder:
    """The rungs of one bracket, or of all where they share them.

    Args:
        levels: resource of each rung; with ``endless``, the base alone, and rungs are added as they are needed.
        endless: no maximum resource: levels go on as ``r * eta**k`` (ASHA 3.3, infinite horizon).
    """

    __slots__ = ("_objectives", "ceiling", "endless", "reduction_factor", "rungs")

    def __init__(
        self,
        levels: list[int],
        reduction_factor: Number,
        *,
        objectives: int = 1,
        endless: bool = False,
    ) -> None:
        self.reduction_factor = reduction_factor
        self.endless = endless
        self.ceiling = len(levels) - 1
        """The highest rung that promotions may reach now."""
        self._objectives = objectives
        self.rungs = [make_rung(level, reduction_factor, objectives) for level in levels]

    def rung(self, k: int) -> AnyRung:
        while self.endless and k >= len(self.rungs):
            level = max(self.rungs[-1].level + 1, round(self.rungs[0].level * self.reduction_factor ** len(self.rungs)))
            self.rungs.append(make_rung(level, self.reduction_factor, self._objectives))
        return self.rungs[k]

    def level(self, k: int) -> int:
        if k < len(self.rungs):
            return self.rungs[k].level
        level, base = self.rungs[-1].level, self.rungs[0].level
        for i in range(len(self.rungs), k + 1):
            level = max(level + 1, round(base * self.reduction_factor**i))
        return level

    def sources(self) -> range:
        if not self.endless:
            return range(self.ceiling - 1, -1, -1)
        top = len(self.rungs) - 1
        return range(top if self.rungs[top].level * self.reduction_factor <= MOST_UNITS else top - 1, -1, -1)

    def is_top(self, k: int) -> bool:
        return not self.endless and k == len(self.rungs) - 1


def highest_rung(entering: Mapping[int, int], rungs: int, reduction_factor: Number) -> int:
    """The highest rung of a ladder that holds a result.

    Args:
        entering: by rung, configurations that begin there.
    """
    highest, here = 0, 0
    for k in range(rungs):
        here = int(here // reduction_factor) + entering.get(k, 0)
        if here:
            highest = k
    return highest


def too_few(highest_level: Callable[[int], int], top: int, configs: int, reduction_factor: float) -> list[str]:
    """The notice that no trial may be promoted to the maximum resource; empty where the rule promotes one."""
    reached = highest_level(configs)
    if reached >= top:
        return []
    return [
        f"By the rule floor(n / {reduction_factor:g}) {configs:,} configurations bring a trial to {reached:,}, and may "
        f"not bring one to max_resource = {top:,}. Use more configurations, a larger min_resource, or a smaller "
        "max_resource; or extend the study later."
    ]
