"""A sum of floats that is the same on every Python."""

from __future__ import annotations

from collections.abc import Iterable


def float_sum(values: Iterable[float]) -> float:
    """Adds from left to right and rounds after each addition.

    The built-in ``sum`` does so up to Python 3.11 only; from 3.12 on it compensates for the rounding. A decision that
    a journal holds has to come out the same on both.

    >>> float_sum([0.1] * 10)
    0.9999999999999999
    """
    total = 0.0
    for value in values:
        total += value
    return total
