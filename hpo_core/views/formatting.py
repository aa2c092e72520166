"""Numbers and durations as people read them: one spelling for terminal, report, Prefect and MLflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN = "?"
"""A duration that nobody knows yet."""


def duration(seconds: float | None) -> str:
    """A time span, in as few words as its size needs.

    >>> duration(9.7e-05), duration(0.0123)
    ('0 s', '0.012 s')
    >>> duration(4.21), duration(64), duration(240), duration(5000), duration(9000), duration(200000), duration(None)
    ('4.21 s', '1 min 4 s', '4 min', '83 min', '2 h 30 min', '2 d 8 h', '?')
    """
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{round(seconds, 3):.3g} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    if whole < 7200:
        return f"{round(whole / 60)} min"
    if whole < 172800:
        minutes = round(whole / 60)
        return f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")
    hours = round(whole / 3600)
    return f"{hours // 24} d {hours % 24} h".removesuffix(" 0 h")


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; an integer in full.

    >>> number(0.123456), number(None), number(120000.0), number(120000), number(0.123456, 5)
    ('0.1235', '–', '1.2e+05', '120,000', '0.12346')
    """
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def parameter_value(item: object) -> str:
    """A parameter's value, floats with six digits."""
    return f"{item:.6g}" if isinstance(item, float) else str(item)


def percent(share: float) -> str:
    """A share as a whole number of percent.

    >>> percent(0.254)
    '25%'
    """
    return f"{100 * share:.0f}%"


def listed(names: Sequence[object], most: int) -> str:
    """The first of some names, and how many more there are.

    >>> listed(["a", "b", "c"], 2), listed([1, 2], 2)
    ('a, b and 1 more', '1, 2')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "result"), plural(1200, "result")
    ('1 result', '1,200 results')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def byte_count(amount: float) -> str:
    """An amount of data.

    >>> byte_count(100), byte_count(81_920), byte_count(6_442_450_944), byte_count(2.14e12)
    ('100 B', '81.9 kB', '6.44 GB', '2.14 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} PB" if amount < 999.5 else f"{amount:,.0f} PB"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of one figure over the runs that have it."""

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
        """Spread of the values that are known; None where there is none.

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


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of an ascending sequence, by linear interpolation between the two nearest values."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
