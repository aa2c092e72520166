"""Which oversubscription ratio lets a device do the most work, learned from attempts that shared it."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import msgspec
import numpy as np

from hpo_core.model.devices.measurement import Measurement

LADDER = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Ratios that are tried, the next one where the last one gained."""
GAIN = 1.05
"""Least work done per second, relative to a smaller ratio, for which the larger ratio is taken."""
FEWEST = 8
"""Attempts at a ratio until something is said of it."""
_FULL = 0.75
"""Attempts count whose device was at least so full, of the fullest at the same ratio."""
_MOST = 400
"""Attempts that are looked at, the newest."""


class RatioSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one oversubscription ratio, from attempts."""

    ratio: float
    load: float
    """Compute that jobs claimed of the device together, in the mean; 1 is all of it."""
    work: float
    """Work done at once: the load times the speed of the jobs, relative to their speed at the smallest ratio."""
    attempts: int


class _Attempt(NamedTuple):
    at: float
    key: str
    load: float
    of_each: float
    """The load, divided by the jobs that it is made of."""
    seconds: float


class LearnedRatios:
    """Ratios by architecture. The order of attempts does not matter.

    An attempt counts for the smallest ratio of :data:`LADDER` that its load stays within. Jobs of one key train as long
    for a unit wherever they do, but for the load; so by least squares of the logarithm of seconds per unit, a term for
    each key and one for each ratio, the speeds at different ratios are compared. A ratio of which at least
    :data:`FEWEST` attempts tell is known. Of those known, the smallest is best whose work is within :data:`GAIN` of the
    most. While that is the largest one known, the next one that has room for one more job is tried.

    Where no two jobs have one key nothing is learned, and the ratio stays at 1.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, list[_Attempt]] = {}
        self._stale: set[str] = set()
        self._seen: dict[str, list[RatioSeen]] = {}
        self._ratios: dict[str, float] = {}

    def add(self, architecture: str, key: str, one: Measurement) -> None:
        """Take up an attempt; one of which nobody knows how full its device was says nothing."""
        if not one.load or one.out_of_memory or not one.unit_seconds > 0:
            return
        found = _Attempt(one.measured_at, key, one.load, one.load / (one.jobs or 1.0), one.unit_seconds)
        self._attempts.setdefault(architecture, []).append(found)
        self._stale.add(architecture)

    def ratios(self) -> dict[str, float]:
        """By architecture that attempts tell of: the ratio to use from now on."""
        self._refresh()
        return dict(self._ratios)

    def seen(self, architecture: str) -> list[RatioSeen]:
        self._refresh()
        return self._seen.get(architecture, [])

    def _refresh(self) -> None:
        for architecture in sorted(self._stale):
            attempts = sorted(self._attempts[architecture])[-_MOST:]
            self._seen[architecture] = rows = _rows(attempts)
            self._ratios[architecture] = _next(rows, attempts)
        self._stale.clear()


def _level(load: float) -> int:
    return next((place for place, ratio in enumerate(LADDER) if load <= ratio + 1e-9), len(LADDER) - 1)


def _rows(attempts: list[_Attempt]) -> list[RatioSeen]:
    # Ratios whose attempts can be compared: each has enough whose key is known at a smaller ratio.
    by_level: dict[int, list[_Attempt]] = {}
    for one in attempts:
        by_level.setdefault(_level(one.load), []).append(one)
    repeated = Counter(one.key for one in attempts)
    known = {key for key, count in repeated.items() if count > 1}
    kept: dict[int, list[_Attempt]] = {}
    for level in sorted(by_level):
        fullest = max(one.load for one in by_level[level])
        full = [one for one in by_level[level] if one.load >= _FULL * fullest and one.key in known]
        if len(full) >= FEWEST:
            known = {one.key for one in full} | (known if kept else set())
            kept[level] = full
    if not kept:
        return []
    levels, keys = sorted(kept), sorted(known)
    equations = np.zeros((sum(map(len, kept.values())), len(keys) + len(levels)))
    seconds: list[float] = []
    for one in (one for level in levels for one in kept[level]):
        equations[len(seconds), keys.index(one.key)] = 1.0
        equations[len(seconds), len(keys) + levels.index(_level(one.load))] = 1.0
        seconds.append(math.log(one.seconds))
    equations[:, len(keys)] = 0.0  # the smallest ratio is what the others are compared with
    slower = np.linalg.lstsq(equations, np.array(seconds), rcond=None)[0][len(keys) :]
    loads = [math.fsum(one.load for one in kept[level]) / len(kept[level]) for level in levels]
    return [
        RatioSeen(ratio=LADDER[level], load=load, work=load * math.exp(-float(log)), attempts=len(kept[level]))
        for level, load, log in zip(levels, loads, slower, strict=True)
    ]


def _next(rows: list[RatioSeen], attempts: list[_Attempt]) -> float:
    if not rows:
        return LADDER[0]
    best = next(row for row in rows if GAIN * row.work >= max(row.work for row in rows))
    if best is not rows[-1]:
        return best.ratio
    room = best.load + sorted(one.of_each for one in attempts)[len(attempts) // 2]
    if room <= best.ratio:  # something else is short: more compute would change nothing
        return best.ratio
    return next((ratio for ratio in LADDER if ratio >= room - 1e-9), best.ratio)
