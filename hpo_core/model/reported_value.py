"""Names and values of metrics: what a training function may report."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real
from typing import Any

COLUMNS = frozenset({"trial", "state", "resource", "at", "trained", "bracket", "parent", "attempts"})
"""Columns of a result's tables beside metrics and ``params.NAME``."""
_REAL_DTYPE = re.compile(r"(torch\.)?(float|bfloat|int|uint)\d+\w*")


def refused_name(name: str) -> str:
    """The rule and the cure where a metric's name is that of a column of a result's tables; empty: it is not."""
    if name not in COLUMNS and not name.startswith("params."):
        return ""
    others = ", ".join(sorted(COLUMNS - {name}))
    return (
        f"is a column of the tables of a result, which also have {others} and params.NAME; give the metric another "
        f"name, such as my_{name.replace('.', '_')}"
    )


def real_number(value: Any) -> float | None:
    """One real number as a float; None for anything else: truth values, complex numbers, texts, times, masked values.

    Integers and floats of Python, fractions, decimals, and scalars or arrays without dimensions of NumPy, torch and
    other libraries whose arrays have ``dtype``, ``ndim`` and ``item()``.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is not None and not isinstance(value, type):
        if not _REAL_DTYPE.fullmatch(getattr(dtype, "name", str(dtype))) or getattr(value, "ndim", None) != 0:
            return None
        if getattr(value, "mask", False):  # numpy.ma.masked is 0.0 for float()
            return None
        value = value.item()
    elif type(value) is bool or not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):  # too large; a signaling NaN of decimal
        return None
