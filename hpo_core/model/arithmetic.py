"""Arithmetic with the same answer everywhere: numbers exactly as they were written, sums from left to right."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

Number = Fraction | int
"""An exact number."""


@lru_cache(maxsize=1024)
def as_written(number: float) -> Number:
    """The decimal that a float was written as, exactly.

    Rules such as ``floor(n / eta)`` jump at exact multiples, and the nearest binary number to 3.7 lies above it.

    >>> 37 // 3.7, 37 // as_written(3.7), as_written(4.0)
    (9.0, 10, 4)
    """
    exact = Fraction(repr(float(number)))
    return exact.numerator if exact.denominator == 1 else exact


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
