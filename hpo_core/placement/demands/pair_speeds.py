"""How much slower a kind of job trains beside another, learned from attempts that shared a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from hpo_core.model.devices.measurement import Measurement, neighbour_key

GAIN = 1.05
"""Two kinds share a device as long as they train together at least so many times as fast as one after the other."""
FEWEST = 3.0
"""Attempts of each kind that must have shared a device with the other before that is said of them."""
_ALONE = 0.9
"""Share of its training time that an attempt had its device to itself, for its time to count as that of one alone."""
_SHARED = 0.25
"""Share of its training time beside others below which an attempt says too little of them."""
_FEWEST_TO_BOUND = 3
"""Attempts whose fastest stands for one alone where none was alone."""
_PRIOR = 0.5
"""Attempts that the mean of a kind counts for in each of its pairs."""
_MOST = 200
"""Attempts of one kind that are looked at, the newest."""


class KeptApart(msgspec.Struct, frozen=True, kw_only=True):
    """Two kinds of jobs that gain too little from sharing a device."""

    architecture: str
    one: str
    """Key: the deciding parameters."""
    other: str
    """Key of the other, which may be the same."""
    one_speed: float
    """Of ``one`` beside ``other``, relative to alone."""
    other_speed: float
    attempts: float
    """Attempts of both that it rests on."""

    @property
    def together(self) -> float:
        """How many times as fast as one alone both train together."""
        return self.one_speed + self.other_speed


class _Attempt(NamedTuple):
    seconds: float
    """Per unit."""
    alone: float
    beside: tuple[tuple[str, float], ...]


class _Slower(NamedTuple):
    """Of one kind beside others, by their key."""

    extra: dict[str, float]
    """Time that each neighbour adds, relative to alone."""
    attempts: dict[str, float]


class PairSpeeds:
    """Speeds of kinds of jobs beside each other, by architecture. The order of attempts does not matter.

    An attempt's mean speed is its kind's time alone over its own time. What it lost while it shared its device is
    explained by who was there: each neighbour adds some time to each unit (so that two jobs that each keep the device
    busy double each other's time, and three treble it). The time that each kind of neighbour adds is that of least
    squares, drawn to the mean of all neighbours of the kind while it was seen rarely.

    A kind's time alone is the mean of attempts that had the device to themselves. Where there is none it is the
    fastest of at least three: then the kind looks less slowed down than it is, never more.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, list[_Attempt]]] = {}
        self._slower: dict[str, dict[str, _Slower]] = {}
        self._stale: dict[str, set[str]] = {}
        self._apart: dict[str, list[KeptApart]] = {}
        self._partners: dict[str, dict[str, frozenset[str]]] = {}

    def add(self, architecture: str, key: str, one: Measurement, beside: Iterable[tuple[str, float]]) -> None:
        """Take up an attempt; one of which nobody knows who was beside it says nothing.

        Args:
            beside: (key, mean number) of its neighbours.
        """
        if one.alone is None or one.out_of_memory or not one.unit_seconds > 0:
            return
        found = _Attempt(one.unit_seconds, one.alone, tuple(sorted(beside)))
        own = neighbour_key(key)
        self._attempts.setdefault(architecture, {}).setdefault(own, []).append(found)
        self._stale.setdefault(architecture, set()).add(own)

    def lacks_alone(self, architecture: str, key: str) -> bool:
        """Whether attempts of a kind shared devices often enough to say something, and none had one to itself."""
        own = self._attempts.get(architecture, {}).get(neighbour_key(key), [])
        return sum(1 - one.alone for one in own) >= FEWEST and not any(one.alone >= _ALONE for one in own)

    def kept_apart(self) -> list[KeptApart]:
        """All of it, by architecture; the pairs that gain least come first."""
        return [one for name in sorted(self._attempts) for one in self._of(name)]

    def apart(self) -> dict[str, Mapping[str, frozenset[str]]]:
        """By architecture and kind, the kinds that it does not share a device with; empty: none."""
        return {name: self._partners[name] for name in sorted(self._attempts) if self._of(name)}

    def speed(self, architecture: str, one: str, other: str) -> float | None:
        """Of ``one`` beside ``other``, relative to alone; None where they were never seen together."""
        self._of(architecture)
        slower = self._slower.get(architecture, {}).get(neighbour_key(one))
        extra = None if slower is None else slower.extra.get(neighbour_key(other))
        return None if extra is None else 1 / (1 + extra)

    def _of(self, architecture: str) -> list[KeptApart]:
        stale = self._stale.pop(architecture, None)
        if stale:
            slower = self._slower.setdefault(architecture, {})
            for key in stale:
                slower[key] = _slower(self._attempts[architecture][key][-_MOST:])
            self._apart[architecture] = _kept_apart(architecture, slower)
            partners: dict[str, set[str]] = {}
            for one in self._apart[architecture]:
                partners.setdefault(one.one, set()).add(one.other)
                partners.setdefault(one.other, set()).add(one.one)
            self._partners[architecture] = {key: frozenset(others) for key, others in partners.items()}
        return self._apart.get(architecture, [])


def _slower(attempts: list[_Attempt]) -> _Slower:
    """What each kind of neighbour adds to the time of one kind."""
    alone = [one.seconds for one in attempts if one.alone >= _ALONE]
    shared = [one for one in attempts if one.alone < _ALONE and 1 - one.alone >= _SHARED and one.beside]
    shared.sort()  # so that sums are the same in any order
    if not shared or not (alone or len(shared) >= _FEWEST_TO_BOUND):
        return _Slower({}, {})
    base = math.fsum(alone) / len(alone) if alone else min(one.seconds for one in shared)
    kinds = sorted({key for one in shared for key, _ in one.beside})
    places = {key: place for place, key in enumerate(kinds)}
    counts = np.zeros((len(shared), len(kinds)))
    added = np.zeros(len(shared))
    trust = np.array([1 - one.alone for one in shared])
    for row, one in enumerate(shared):
        speed = (base / one.seconds - one.alone) / (1 - one.alone)  # while it shared
        added[row] = 1 / min(max(speed, 0.05), 2.0) - 1
        for key, number in one.beside:
            counts[row, places[key]] = number / (1 - one.alone)
    total = counts.sum(axis=1)
    mean = float((trust * added * total).sum() / (trust * total * total).sum())
    left = (counts.T * trust) @ counts + _PRIOR * np.eye(len(kinds))
    extra = np.linalg.solve(left, (counts.T * trust) @ added + _PRIOR * mean)
    seen = np.minimum(counts * trust[:, None], 1.0).sum(axis=0)
    return _Slower(
        {key: max(float(extra[place]), -0.5) for key, place in places.items()},
        {key: float(seen[place]) for key, place in places.items()},
    )


def _kept_apart(architecture: str, slower: Mapping[str, _Slower]) -> list[KeptApart]:
    found = []
    for one, known in slower.items():
        for other, extra in known.extra.items():
            back = slower.get(other)
            if one > other or back is None or one not in back.extra:
                continue
            if known.attempts[other] < FEWEST or back.attempts[one] < FEWEST:
                continue
            speeds = 1 / (1 + extra), 1 / (1 + back.extra[one])
            if sum(speeds) < GAIN:
                attempts = known.attempts[other] + (back.attempts[one] if one != other else 0.0)
                found.append(
                    KeptApart(
                        architecture=architecture,
                        one=one,
                        other=other,
                        one_speed=speeds[0],
                        other_speed=speeds[1],
                        attempts=attempts,
                    )
                )
    return sorted(found, key=lambda pair: (pair.together, pair.one, pair.other))
