"""Values, texts and names in messages: short, whatever they are; what a mistyped name may have meant; limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from hpo_core.model import limits

_NEAR = 0.66
"""Least likeness of a name that is suggested, by :mod:`difflib`."""
_FEW = 3
"""Characters of a name that is suggested because the other one begins with it."""


def shown(value: Any) -> str:
    """A value as an error repeats it: short, whatever it is.

    >>> shown("abc"), shown(10**5000)
    ("'abc'", 'a whole number of about 5,000 digits')
    >>> shown(str), shown([1, 2])
    ('the class str', 'a list of 2')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1000:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)):,} digits"
    if isinstance(value, str) and len(value) > limits.SHOWN:
        return f"{value[: limits.SHOWN]!r}... ({len(value):,} characters)"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value):,}"
    if isinstance(value, type):
        in_python = getattr(value, "in_python", None)  # of a setting
        return f"the class {in_python() if in_python else value.__name__}"
    return f"a {type(value).__name__}"


def shortened(text: str) -> str:
    return text if len(text) <= limits.SHOWN else f"{text[: limits.SHOWN]}... ({len(text):,} characters)"


def cut(message: str) -> str:
    most = 10 * limits.SHOWN
    return message if len(message) <= most else f"{message[: most // 2]} ... {message[-most // 2 :]}"


def some(names: Any, most: int = 10) -> str:
    listed = list(names)
    few = ", ".join(shortened(str(name)) for name in listed[:most])
    return few if len(listed) <= most else f"{few}, ... ({len(listed):,} in all)"


def near_name(typed: object, known: Iterable[object]) -> str:
    """The known name nearest to the typed one; empty where none is near.

    Large and small letters are the same. A name is near, too, where one of the two begins with the other.

    >>> near_name("TPESampller", ["random", "TPESampler"]), near_name("minimum", ["min", "max"])
    ('TPESampler', 'min')
    >>> near_name("lr", ["learning_rate", "width"])
    ''
    """
    text, names = str(typed)[:100].casefold(), {name.casefold(): name for name in map(str, known)}
    begun = (name for name in names if name.startswith(text) or text.startswith(name))
    near = get_close_matches(text, names, 1, _NEAR) or [name for name in begun if len(name) >= _FEW <= len(text)]
    return names[near[0]] if near else ""


def did_you_mean(typed: object, known: Iterable[object]) -> str:
    near = near_name(typed, known)
    return f"did you mean {near!r}?" if near and near != str(typed) else ""


def fitting_name(text: str) -> str:
    """A name of a study like ``text``, as the end of a message about it; empty where nothing of it would do.

    >>> fitting_name("my study, no. 2"), fitting_name("???")
    ("; 'my-study-no.-2' would do", '')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:100]
    return f"; {name!r} would do" if name else ""


def meant_or_known(typed: object, known: Iterable[object], has: str = "there are") -> str:
    """``did you mean 'x'?``, or else the names that there are.

    Args:
        has: what stands before those names.

    >>> meant_or_known("lr", ["width", "depth"], "it has")
    'it has width, depth'
    """
    known = list(known)
    return did_you_mean(typed, known) or f"{has} {some(known) or 'none'}"


def listed_and_meant(typed: object, known: Iterable[object]) -> str:
    """The names that there are, and the one that was meant, or that one of them is to be chosen.

    >>> listed_and_meant("ahsa", ["asha", "random"])
    "there are asha, random; did you mean 'asha'?"
    """
    known = list(known)
    return f"there are {', '.join(map(str, known))}; {did_you_mean(typed, known) or 'choose one of them'}"


def at_most(where: str, value: float, most: float, words: str) -> None:
    """Refuse a value above a limit.

    Args:
        where: the setting, as the study file spells it.
        words: what is counted, and the cure: ``parameters; drop some``.

    Raises:
        ValueError: the value is larger.
    """
    if value > most:
        message = f"{where} = {as_number(value)} is too large: at most {as_number(most)} {words}"
        raise ValueError(message.replace(" ;", ";"))


def as_number(value: float) -> str:
    if not isinstance(value, int):
        return f"{value:,.6g}"
    return f"{value:,}" if abs(value) < 10**30 else shown(value) if value.bit_length() > 1000 else f"{float(value):.3g}"
