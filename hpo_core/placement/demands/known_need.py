"""What was measured, by key and architecture, and what follows from it for keys that were not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hpo_core.model.devices.measurement import Measurement
from hpo_core.placement.packing.prediction import Predictor

_GROWTH = 1.1
"""Predictions are fitted again when there are so many times as many measurements."""
_MOST_KEYS = 1000
"""The newest keys that predictions are fitted to."""
_LEAST = {"memory": 1.0, "compute": 1e-3, "cores": 1e-3, "unit_seconds": 1e-9, "startup_seconds": 1e-9}
"""What is predicted is above 0."""


class Figures(NamedTuple):
    """Figures of one key; None where nothing is known."""

    memory: float | None = None
    """Bytes: of a known key the largest peak, of others the safe prediction."""
    compute: float | None = None
    """Mean share of a GPU's time."""
    cores: float | None = None
    unit_seconds: float | None = None
    startup_seconds: float | None = None


class KnownNeed:
    """Of one key on one architecture: the largest memory, the means of the rest. The order of adding does not matter.

    Args:
        values: of the parameters that decide.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.measurements = 0
        self._memory = 0
        self._failed = 0
        self._failed_peak = 0
        self._compute: list[float] = []
        self._sums = dict.fromkeys(("cores", "unit_seconds", "startup_seconds"), 0.0)

    def add(self, one: Measurement) -> None:
        if one.out_of_memory:
            self._failed = max(self._failed, one.out_of_memory)
            self._failed_peak = max(self._failed_peak, one.peak)
            return
        self.measurements += 1
        self._memory = max(self._memory, one.peak)
        if one.compute is not None:
            self._compute.append(one.compute)
        for name in self._sums:
            self._sums[name] += getattr(one, name)

    @property
    def figures(self) -> Figures:
        """As measured; nothing where it was not."""
        count = self.measurements
        if not count:
            return Figures()
        return Figures(
            memory=self._memory or None,
            compute=math.fsum(self._compute) / len(self._compute) if self._compute else None,
            **{name: total / count for name, total in self._sums.items()},
        )

    def memory_after_failure(self, capacity: int) -> int:
        """Bytes without which it is not tried again after it ran out of memory; 0 where it did not.

        Twice what it had, or what it was seen to have if that is more, within the capacity of its device, and never
        below what it had. Once a job of the key ended well with as much, that measurement is enough.
        """
        if self._memory >= self._failed:
            return 0
        return max(self._failed, min(max(2 * self._failed, self._failed_peak), capacity))


class KnownNeeds:
    """Of all keys.

    Args:
        quantile: share of the known keys whose memory its prediction would have covered.
    """

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._known: dict[str, dict[str, KnownNeed]] = {}
        self._counts: Counter[str] = Counter()
        self._fits: dict[tuple[str, str], tuple[int, Predictor]] = {}

    def find(self, architecture: str, key: str) -> KnownNeed | None:
        return self._known.get(architecture, {}).get(key)

    def add(self, architecture: str, key: str, values: Mapping[str, Any], one: Measurement) -> None:
        """Add a measurement of the key with these values."""
        self._counts[architecture] += 1
        keys = self._known.setdefault(architecture, {})
        if key not in keys:
            keys[key] = KnownNeed(values)
        keys[key].add(one)

    def measurements(self, architecture: str) -> int:
        """On this architecture, of all keys."""
        return self._counts[architecture]

    def predicted(self, architecture: str, values: Mapping[str, Any]) -> Figures:
        """For a key that was not measured; None where too little is known, or it lies outside of what is."""

        def expected(part: str) -> float | None:
            found = self._predictor(architecture, part).predict(values)
            return None if found is None else found.expected

        memory = self._predictor(architecture, "memory").predict(values)
        return Figures(
            memory=None if memory is None else memory.safe,
            compute=expected("compute"),
            cores=expected("cores"),
            unit_seconds=expected("unit_seconds"),
            startup_seconds=expected("startup_seconds"),
        )

    def mean_seconds(self, architecture: str) -> tuple[float, float]:
        """(start-up, per unit) in the mean of all keys; 0 where there are none."""
        found = [known.figures for known in self._known.get(architecture, {}).values() if known.measurements]

        def mean(of: Callable[[Figures], float | None]) -> float:
            return math.fsum(of(one) or 0.0 for one in found) / max(len(found), 1)

        return mean(lambda one: one.startup_seconds), mean(lambda one: one.unit_seconds)

    def _predictor(self, architecture: str, part: str) -> Predictor:
        count = self.measurements(architecture)
        fitted = self._fits.get((architecture, part))
        if fitted is None or (count > fitted[0] and count >= _GROWTH * fitted[0]):
            keys = list(self._known.get(architecture, {}).values())[-_MOST_KEYS:]
            amounts = [(known.values, getattr(known.figures, part)) for known in keys if known.measurements]
            past = [(values, max(amount, _LEAST[part])) for values, amount in amounts if amount is not None]
            fitted = count, Predictor(past, quantile=self._quantile)
            self._fits[architecture, part] = fitted
        return fitted[1]
