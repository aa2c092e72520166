"""Values and texts as messages repeat them: short, whatever they are."""

from __future__ import annotations

import math
from typing import Any

from hpo_core.model import limits


def shown(value: Any) -> str:
    """A value as an error repeats it: short, whatever it is.

    >>> shown("abc"), shown(10**5000)
    ("'abc'", 'a whole number of about 5,000 digits')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1000:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)):,} digits"
    if isinstance(value, str) and len(value) > limits.SHOWN:
        return f"{value[: limits.SHOWN]!r}... ({len(value):,} characters)"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value):,}"
    return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    """The beginning of a long text, as an error shows it."""
    return text if len(text) <= limits.SHOWN else f"{text[: limits.SHOWN]}... ({len(text):,} characters)"


def cut(message: str) -> str:
    """A message without the middle of a very long one: its end has the cure."""
    most = 10 * limits.SHOWN
    return message if len(message) <= most else f"{message[: most // 2]} ... {message[-most // 2 :]}"


def some(names: Any) -> str:
    """The first ten of many names, and how many there are."""
    listed = list(names)
    few = ", ".join(shortened(str(name)) for name in listed[:10])
    return few if len(listed) <= 10 else f"{few}, ... ({len(listed):,} in all)"
