"""Numbers exactly as they were written."""

from __future__ import annotations

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
