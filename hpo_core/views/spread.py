"""Several values of one figure: median, quartiles, smallest and largest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the runs that have it."""

    median: float
    low: float
    high: float
    """Quartiles."""
    least: float
    most: float
    count: int
    """Runs that have it."""

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where no run has the figure.

        >>> Spread.of([3.0, None, 1.0, 2.0])
        Spread(median=2.0, low=1.5, high=2.5, least=1.0, most=3.0, count=3)
        """
        found = sorted(value for value in values if value is not None)
        if not found:
            return None
        return cls(
            median=quantile(found, 0.5),
            low=quantile(found, 0.25),
            high=quantile(found, 0.75),
            least=found[0],
            most=found[-1],
            count=len(found),
        )


def spans_decades(low: float, high: float, *, maximize: bool) -> bool:
    """Whether a metric between ``low`` and ``high`` belongs on a logarithmic axis.

    >>> spans_decades(0.01, 30.0, maximize=False), spans_decades(0.001, 0.9, maximize=True)
    (True, False)
    """
    share = maximize and high <= 1  # an accuracy is read near 1, where a logarithm has no room
    return low > 0 and high / low > 100 and not share


def quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between the two nearest values of an ascending sequence."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
