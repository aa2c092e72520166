"""What was measured, by key and architecture, and what follows from it for keys that were not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.measurement import Measurement

QUANTILE = 0.95
"""Share of past configurations that a predicted memory would have covered."""
FEWEST = 8
"""Measurements below which nothing is predicted: a quantile of fewer residuals says little."""
RIDGE = 1.0
"""Strength of the penalty on the slopes, in standardized parameters."""


class Prediction(NamedTuple):
    """One predicted amount."""

    expected: float
    """In the middle of what may come."""
    safe: float
    """Not exceeded by ``quantile`` of the past, each predicted from the others."""


class Predictor:
    """Predicts an amount from measured ones; made once, asked for many configurations.

    The logarithm of the amount is linear in the logarithms of positive numbers, in other numbers and in indicators of
    choices (ridge regression), or simply constant: whichever predicts the past better, each measurement from all
    others. On recorded memory of 872 translation models no parameter helps, and a slope would only cost.

    Args:
        past: (parameters, amount) of finished measurements; amounts above 0.
        quantile: share of past measurements that the safe amount would have covered, between 0 and 1.
    """

    def __init__(self, past: Sequence[tuple[Mapping[str, Any], float]], *, quantile: float = QUANTILE) -> None:
        amounts = np.array([amount for _, amount in past], dtype=float)
        rows = [known for known, _ in past]
        self._measurements = len(past)
        if len(past) < FEWEST:
            return
        self._columns = [_Column(name, rows) for name in sorted({name for row in rows for name in row})]
        table = np.array([self._features(row) for row in rows])
        kept = table.std(axis=0) > 0
        self._mean, self._std = np.where(kept, table.mean(axis=0), 0.0), np.where(kept, table.std(axis=0), np.inf)
        logs, constant = np.log(amounts), np.ones((len(past), 1))
        found = [(constant, *_from_others(constant, logs))]
        if kept.any():
            design = np.hstack([constant, (table - self._mean) / self._std])
            found.append((design, *_from_others(design, logs)))
        _, self._weights, residuals = min(found, key=lambda one: float(np.quantile(np.abs(one[2]), 0.9)))
        place = math.ceil(as_written(quantile) * (len(residuals) - 1))
        self._margin = max(float(np.sort(residuals)[place]), 0.0)

    def predict(self, parameters: Mapping[str, Any]) -> Prediction | None:
        """Six digits of the amount, for the last ones differ between processors; None where nothing is known.

        That is where there are fewer than :data:`FEWEST` measurements, or the job lies outside of what was measured:
        a number beyond the range, a choice or a parameter never seen, or one missing that all of them had.
        """
        if self._measurements < FEWEST:
            return None
        names = {column.name for column in self._columns}
        if not names.issuperset(parameters) or not all(column.holds(parameters) for column in self._columns):
            return None
        features = (np.array(self._features(parameters)) - self._mean) / self._std
        expected = float(self._weights @ np.concatenate([[1.0], features])[: len(self._weights)])
        return Prediction(*(float(f"{np.exp(log):.6g}") for log in (expected, expected + self._margin)))

    def _features(self, row: Mapping[str, Any]) -> list[float]:
        return [feature for column in self._columns for feature in column.features(row)]


class _Column:
    """One parameter as it was seen: a range of numbers, or choices; missing is a choice, too."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        values = [row.get(name) for row in rows]
        self.name = name
        numbers = [float(value) for value in values if _is_number(value)]
        self._range = (min(numbers), max(numbers)) if numbers else None
        self._is_number = len(numbers) == len(values)
        self._is_log = min(numbers, default=0) > 0
        self._choices = sorted(set(map(repr, values)))

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a value lies within what was seen."""
        value = row.get(self.name)
        if self._range is not None and _is_number(value):
            return self._range[0] <= value <= self._range[1]
        return not self._is_number and repr(value) in self._choices

    def features(self, row: Mapping[str, Any]) -> list[float]:
        value = row.get(self.name)
        if self._is_number:
            return [math.log(value) if self._is_log else float(value)]  # type: ignore[arg-type]
        return [float(repr(value) == choice) for choice in self._choices]


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _from_others(design: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights, and the residual of each row as predicted from the rest.

    Leaving one out of a ridge regression needs no second fit: its residual is the residual of the whole fit, divided
    by one minus its leverage.
    """
    penalty = RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0.0
    solved = np.linalg.solve(design.T @ design + penalty, design.T)
    weights = solved @ logs
    leverage = np.einsum("ij,ji->i", design, solved)
    return weights, (logs - design @ weights) / np.maximum(1.0 - leverage, 1e-9)


_GROWTH = 1.1
"""Predictions are fitted again when there are so many times as many measurements."""
ALLOWANCE = 1.05
"""A known key gets so many times the largest memory that was measured, or more where its runs differ."""
_FEWEST_REPEATS = 8
"""Repeated runs below which nothing is said of how much they differ."""
_MOST_KEYS = 1000
"""The newest keys that predictions are fitted to."""
_LEAST = {"memory": 1.0, "compute": 1e-3, "cores": 1e-3, "unit_seconds": 1e-9, "startup_seconds": 1e-9}
"""What is predicted is above 0."""


class NeedFigures(NamedTuple):
    """NeedFigures of one key; None where nothing is known."""

    memory: float | None = None
    """Bytes: of a known key the largest peak, of others the safe prediction."""
    compute: float | None = None
    """Mean share of a GPU's time."""
    cores: float | None = None
    unit_seconds: float | None = None
    startup_seconds: float | None = None


class KnownNeed:
    """Measured need of one key on one architecture: the largest memory, the means of the rest, in any order of adding.

    Args:
        values: of the parameters that decide.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.measurements = 0
        """Attempts that ended."""
        self._running = NeedFigures()
        self._memory = 0
        self._logs: list[float] = []
        self.failed = 0
        """Most bytes that an attempt had when it ran out of memory; 0: none did."""
        self._failed_peak = 0
        self._compute: list[float] = []
        self._sums = dict.fromkeys(("cores", "unit_seconds", "startup_seconds"), 0.0)

    def add(self, one: Measurement) -> None:
        if one.out_of_memory:
            self.failed = max(self.failed, one.out_of_memory)
            self._failed_peak = max(self._failed_peak, one.peak)
            return
        self.measurements += 1
        self._memory = max(self._memory, one.peak)
        if one.peak:
            self._logs.append(math.log(one.peak))
        if one.compute is not None:
            self._compute.append(one.compute)
        for name in self._sums:
            self._sums[name] += getattr(one, name)

    def observe(self, running: NeedFigures) -> None:
        """Take what a running attempt was seen to use; it counts until one has ended."""
        memory = max(running.memory or 0, self._running.memory or 0) or None
        self._running = running._replace(memory=memory)

    @property
    def is_known(self) -> bool:
        """Whether an attempt ended, or runs and was measured."""
        return self.measurements > 0 or self._running != NeedFigures()

    @property
    def figures(self) -> NeedFigures:
        """As measured; nothing where it was not."""
        count = self.measurements
        if not count:
            return self._running
        return NeedFigures(
            memory=self._memory or None,
            compute=math.fsum(self._compute) / len(self._compute) if self._compute else None,
            **{name: total / count for name, total in self._sums.items()},
        )

    @property
    def residuals(self) -> list[float]:
        """How far the logarithm of each run's memory is from the mean of the others, in units of one run's spread."""
        count = len(self._logs)
        if count < 2:
            return []
        mean, factor = math.fsum(self._logs) / count, math.sqrt(count / (count - 1))
        return [factor * (log - mean) for log in self._logs]

    def safe_memory(self, spread: float) -> float:
        """Bytes that another run stays below as often as one quantile says.

        Args:
            spread: that quantile of the :attr:`residuals` of all keys.
        """
        count = len(self._logs)
        return math.exp(math.fsum(self._logs) / count + spread * math.sqrt(1 + 1 / count)) if count else 0.0

    def memory_after_failure(self, capacity: int) -> int:
        """Bytes without which it is not tried again after it ran out of memory; 0 where it did not.

        Twice what it had, or what it was seen to have if that is more, within the capacity of its device, and never
        below what it had. Once a job of the key ended well with as much, that measurement is enough.
        """
        if self._memory >= self.failed:
            return 0
        return max(self.failed, min(max(2 * self.failed, self._failed_peak), capacity))


class KnownNeeds:
    """Measured needs of all keys.

    Args:
        quantile: share of the known keys whose memory its prediction would have covered.
    """

    def __init__(self, quantile: float = QUANTILE) -> None:
        self._quantile = quantile
        self._known: dict[str, dict[str, KnownNeed]] = {}
        self._counts: Counter[str] = Counter()
        self._spreads: dict[str, tuple[int, float]] = {}
        self._fits: dict[tuple[str, str], tuple[int, Predictor]] = {}

    def find(self, architecture: str, key: str) -> KnownNeed | None:
        return self._known.get(architecture, {}).get(key)

    def of(self, architecture: str, key: str, values: Mapping[str, Any]) -> KnownNeed:
        """Return the need of the key with these values, to be added to."""
        keys = self._known.setdefault(architecture, {})
        if key not in keys:
            keys[key] = KnownNeed(values)
        return keys[key]

    def add(self, architecture: str, key: str, values: Mapping[str, Any], one: Measurement) -> None:
        """Add a measurement of the key with these values."""
        self._counts[architecture] += 1
        self.of(architecture, key, values).add(one)

    def measurements(self, architecture: str) -> int:
        """On this architecture, of all keys."""
        return self._counts[architecture]

    def next_memory(self, architecture: str, known: KnownNeed) -> float:
        """Bytes for the next run of a key that was measured.

        The largest that was measured and 5 %. Where runs of the same key were seen to differ it is what another run
        stays below as often as the quantile says, but no more than is predicted from all keys. Recorded trainings of
        translation models with the same parameters differ by a factor of 1.4 to 1.8, and each third took more than
        all of its key before it and 5 %.
        """
        wanted, spread = ALLOWANCE * (known.figures.memory or 0.0), self._spread(architecture)
        if spread == 0.0:
            return wanted
        predicted = self._predictor(architecture, "memory").predict(known.values)
        safe = known.safe_memory(spread)
        return max(wanted, safe if predicted is None else min(safe, predicted.safe))

    def _spread(self, architecture: str) -> float:
        """The safety quantile of how far a run's memory is from that of others of its key; 0: too few were repeated."""
        count = self.measurements(architecture)
        kept = self._spreads.get(architecture)
        if kept is None or (count > kept[0] and count >= _GROWTH * kept[0]):
            groups = [known.residuals for known in self._known.get(architecture, {}).values()]
            pooled = sorted(residual for group in groups for residual in group)
            repeats = sum(len(group) - 1 for group in groups if group)
            place = math.ceil(as_written(self._quantile) * (len(pooled) + 1))  # of that many, the next is one more
            place = min(place, len(pooled))
            kept = count, max(pooled[place - 1], 0.0) if repeats >= _FEWEST_REPEATS else 0.0
            self._spreads[architecture] = kept
        return kept[1]

    def predicted(self, architecture: str, values: Mapping[str, Any]) -> NeedFigures:
        """For a key that was not measured; None where too little is known, or it lies outside of what is."""
        memory = self._predictor(architecture, "memory").predict(values)
        return NeedFigures(
            memory=None if memory is None else memory.safe,
            compute=self.expected(architecture, "compute", values),
            cores=self.expected(architecture, "cores", values),
            unit_seconds=self.expected(architecture, "unit_seconds", values),
            startup_seconds=self.expected(architecture, "startup_seconds", values),
        )

    def expected(self, architecture: str, part: str, values: Mapping[str, Any]) -> float | None:
        """In the middle of what is predicted for a key that was not measured; None as above."""
        found = self._predictor(architecture, part).predict(values)
        return None if found is None else found.expected

    def mean_seconds(self, architecture: str) -> tuple[float, float]:
        """(start-up, per unit) in the mean of all keys; 0 where there are none."""
        found = [known.figures for known in self._known.get(architecture, {}).values() if known.measurements]

        def mean(of: Callable[[NeedFigures], float | None]) -> float:
            return math.fsum(of(one) or 0.0 for one in found) / max(len(found), 1)

        return mean(lambda one: one.startup_seconds), mean(lambda one: one.unit_seconds)

    def _predictor(self, architecture: str, part: str) -> Predictor:
        count = self.measurements(architecture)
        fitted = self._fits.get((architecture, part))
        if fitted is None or (count > fitted[0] and count >= _GROWTH * fitted[0]):
            keys = sorted(list(self._known.get(architecture, {}).items())[-_MOST_KEYS:], key=lambda item: item[0])
            amounts = [(known.values, getattr(known.figures, part)) for _, known in keys if known.measurements]
            past = [(values, max(amount, _LEAST[part])) for values, amount in amounts if amount is not None]
            fitted = count, Predictor(past, quantile=self._quantile)
            self._fits[architecture, part] = fitted
        return fitted[1]
