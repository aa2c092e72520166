"""Values, texts and names in messages: short, whatever they are; what a mistyped name may have meant; limits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hpo_core.model import limits

_SUGGESTED = 3
"""Names that are suggested at most."""
_FEW = 3
"""Characters of a name that is suggested because the other one begins with it."""


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


def some(names: Any, most: int = 10) -> str:
    """The first of many names, and how many there are."""
    listed = list(names)
    few = ", ".join(shortened(str(name)) for name in listed[:most])
    return few if len(listed) <= most else f"{few}, ... ({len(listed):,} in all)"


def near_names(typed: object, known: Iterable[object]) -> list[str]:
    """The known names nearest to the typed one, where they are a slip away; empty: none is.

    A slip is a letter that is wrong, missing or too many, or two that changed places: one for every three letters,
    three at most, and one in names of two to five. Or one of the two names begins with the other. Large and small
    letters are the same.

    >>> near_names("TPESampller", ["random", "TPESampler"]), near_names("minimum", ["min", "max"])
    (['TPESampler'], ['min'])
    >>> near_names("nope", ["open", "nodes"])
    []
    """
    text = str(typed)[:100].casefold()
    most = min(3, max(len(text) > 1, len(text) // 3))
    found = []
    for name in dict.fromkeys(map(str, known)):
        other = name.casefold()
        slips = _slips(text, other, most)
        begins = min(len(text), len(other)) >= _FEW and (text.startswith(other) or other.startswith(text))
        if slips <= most or begins:
            found.append((slips if slips <= most else most + 1, abs(len(text) - len(other)), name))
    found.sort(key=lambda one: one[:2])
    return [name for slips, _, name in found if slips == found[0][0]][:_SUGGESTED]


def did_you_mean(typed: object, known: Iterable[object]) -> str:
    """``did you mean 'x' or 'y'?``; empty where no known name is near."""
    near = near_names(typed, known)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


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


def _slips(one: str, other: str, most: int) -> int:
    """The optimal string alignment distance of two texts, or any number above ``most``."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, that in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != that))
            if older and j > 1 and letter == other[j - 2] and one[i - 2] == that:
                best = min(best, older[j - 2] + 1)
            row.append(best)
        if min(row) > most:
            return most + 1
    return row[-1]


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
    """A number as an error shows it, however large it is."""
    if not isinstance(value, int):
        return f"{value:,.6g}"
    return f"{value:,}" if abs(value) < 10**30 else shown(value) if value.bit_length() > 1000 else f"{float(value):.3g}"
