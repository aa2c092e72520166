"""What a job will need, from what jobs with other parameters needed.

HyperSack's sampler takes known models from the history and profiles the others. Between the two lie configurations
close to known ones: their need is predicted, with a margin that says how wrong such predictions have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

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


def predict(
    past: Sequence[tuple[Mapping[str, Any], float]], parameters: Mapping[str, Any], *, quantile: float = 0.95
) -> Prediction | None:
    """Predict an amount for ``parameters`` from measured ones.

    The logarithm of the amount is linear in the logarithms of positive numbers, in other numbers and in indicators of
    choices (ridge regression), or simply constant: whichever predicts the past better, each measurement from all
    others. On recorded memory of 872 translation models no parameter helps, and a slope would only cost.

    Args:
        past: (parameters, amount) of finished measurements; amounts above 0.
        parameters: of the job to come.
        quantile: share of past measurements that the safe amount would have covered, between 0 and 1.

    Returns:
        None where there are fewer than :data:`FEWEST` measurements, or the job lies outside of what was measured: a
        number beyond the range, or a choice never seen.

    Raises:
        ValueError: ``quantile`` is not between 0 and 1, or an amount is not positive.

    >>> past = [({"width": width}, 100.0 * width) for width in (8, 16, 32, 64, 128, 256, 512, 1024)]
    >>> found = predict(past, {"width": 100})
    >>> 9000 < found.expected < 11000 < found.safe, predict(past, {"width": 2048})
    (True, None)
    """
    if not 0 < quantile < 1:
        raise ValueError(f"prediction: quantile = {quantile} must lie between 0 and 1.")
    if len(past) < FEWEST or not _is_inside([known for known, _ in past], parameters):
        return None
    amounts = np.array([amount for _, amount in past], dtype=float)
    if not (np.isfinite(amounts) & (amounts > 0)).all():
        raise ValueError("prediction: each measured amount must be finite and above 0.")
    logs = np.log(amounts)
    table = _features([*(known for known, _ in past), parameters])
    candidates = [_from_others(np.ones((len(table), 1)), logs)]
    if table.shape[1] > 0:
        candidates.append(_from_others(np.hstack([np.ones((len(table), 1)), table]), logs))
    expected, residuals = min(candidates, key=lambda found: float(np.quantile(np.abs(found[1]), 0.9)))
    margin = max(float(np.quantile(residuals, quantile, method="higher")), 0.0)
    return Prediction(expected=float(np.exp(expected)), safe=float(np.exp(expected + margin)), measurements=len(past))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_inside(past: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> bool:
    for name, value in parameters.items():
        known = [one[name] for one in past if name in one]
        if not known:
            return False
        if _is_number(value) and all(map(_is_number, known)):
            if not min(known) <= value <= max(known):
                return False
        elif value not in known:
            return False
    return True


def _features(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Standardized columns, the same for all rows; those that do not vary are left out."""
    columns = []
    for name in sorted({name for row in rows for name in row}):
        values = [row.get(name) for row in rows]
        if all(map(_is_number, values)):
            numbers = np.array(values, dtype=float)
            columns.append(np.log(numbers) if (numbers > 0).all() else numbers)
        else:
            texts = np.array([repr(value) for value in values])
            columns += [(texts == choice).astype(float) for choice in sorted(set(texts))]
    kept = [(column - column.mean()) / column.std() for column in columns if column.std() > 0]
    return np.array(kept).T if kept else np.empty((len(rows), 0))


def _from_others(design: np.ndarray, logs: np.ndarray) -> tuple[float, np.ndarray]:
    """The last row's prediction, and the residual of each other row as predicted from the rest.

    Leaving one out of a ridge regression needs no second fit: its residual is the residual of the whole fit, divided
    by one minus its leverage.
    """
    known = design[:-1]
    penalty = RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 0.0
    solved = np.linalg.solve(known.T @ known + penalty, known.T)
    weights = solved @ logs
    leverage = np.einsum("ij,ji->i", known, solved)
    return float(design[-1] @ weights), (logs - known @ weights) / np.maximum(1.0 - leverage, 1e-9)
