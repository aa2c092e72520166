"""What a job will need, from what jobs with other parameters needed.

HyperSack's sampler takes known models from the history and profiles the others. Between the two lie configurations
close to known ones: their need is predicted, with a margin that says how wrong such predictions have been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
import numpy as np

from hpo_core.model.arithmetic import as_written

FEWEST = 8
"""Measurements below which nothing is predicted: a quantile of fewer residuals says little."""
RIDGE = 1.0
"""Strength of the penalty on the slopes, in standardized parameters."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted amount."""

    expected: float
    """In the middle of what may come."""
    safe: float
    """Not exceeded by ``quantile`` of the past, each predicted from the others."""
    measurements: int


class Predictor:
    """Predicts an amount from measured ones; made once, asked for many configurations.

    The logarithm of the amount is linear in the logarithms of positive numbers, in other numbers and in indicators of
    choices (ridge regression), or simply constant: whichever predicts the past better, each measurement from all
    others. On recorded memory of 872 translation models no parameter helps, and a slope would only cost.

    Args:
        past: (parameters, amount) of finished measurements; amounts above 0.
        quantile: share of past measurements that the safe amount would have covered, between 0 and 1.

    Raises:
        ValueError: ``quantile`` is not between 0 and 1, or an amount is not positive.
    """

    def __init__(self, past: Sequence[tuple[Mapping[str, Any], float]], *, quantile: float = 0.95) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"prediction: quantile = {quantile} must lie between 0 and 1.")
        amounts = np.array([amount for _, amount in past], dtype=float)
        if not (np.isfinite(amounts) & (amounts > 0)).all():
            raise ValueError("prediction: each measured amount must be finite and above 0.")
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
        """None where nothing is known.

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
        return Prediction(
            expected=_known_digits(np.exp(expected)),
            safe=_known_digits(np.exp(expected + self._margin)),
            measurements=self._measurements,
        )

    def _features(self, row: Mapping[str, Any]) -> list[float]:
        return [feature for column in self._columns for feature in column.features(row)]


def predict(
    past: Sequence[tuple[Mapping[str, Any], float]], parameters: Mapping[str, Any], *, quantile: float = 0.95
) -> Prediction | None:
    """Predict an amount for ``parameters`` from measured ones, see :class:`Predictor`.

    >>> past = [({"width": width}, 100.0 * width) for width in (8, 16, 32, 64, 128, 256, 512, 1024)]
    >>> found = predict(past, {"width": 100})
    >>> 9000 < found.expected < 11000 < found.safe, predict(past, {"width": 2048})
    (True, None)
    """
    return Predictor(past, quantile=quantile).predict(parameters)


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


def _known_digits(amount: float) -> float:
    """Six digits: the last ones differ between processors, and would decide between jobs that are expected alike."""
    return float(f"{amount:.6g}")


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
