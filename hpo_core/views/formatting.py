"""Numbers and durations as people read them: one spelling for terminal, report, Prefect and MLflow."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "?"
"""A duration that nobody knows yet."""


def duration(seconds: float | None) -> str:
    """A time span, in as few words as its size needs.

    >>> duration(4.21), duration(64), duration(240), duration(5000), duration(9000), duration(200000), duration(None)
    ('4.21 s', '1 min 4 s', '4 min', '83 min', '2 h 30 min', '2 d 8 h', '?')
    """
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
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
