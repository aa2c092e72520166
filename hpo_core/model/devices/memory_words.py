"""Amounts of memory in words."""

from __future__ import annotations

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def memory_words(amount: int, *, beside: tuple[int, ...] = ()) -> str:
    """An amount with three digits, or as many as tell it apart from others.

    Args:
        beside: amounts that a reader compares it with.

    >>> memory_words(212_400_000), memory_words(6_442_450_944), memory_words(81_920), memory_words(999_999_999)
    ('212 MB', '6.44 GB', '81.9 kB', '1000 MB')
    >>> memory_words(400_000_000, beside=(399_990_000,)), memory_words(399_990_000, beside=(400_000_000,))
    ('400 MB', '399.99 MB')
    """
    others = [other for other in beside if other != amount]
    digits = 3
    while any(_rounded(amount, digits) == _rounded(other, digits) for other in others):
        digits += 1
    return _rounded(amount, digits)


def _rounded(amount: int, digits: int) -> str:
    size, name = next(((size, name) for size, name in _UNITS if abs(amount) >= size), _UNITS[-1])
    return f"{float(f'{amount / size:.{digits}g}'):.15g} {name}"
