"""Checks that a description is plain data of a bounded size.

Iterative, and it ends at the first thing that is too large, so that neither depth nor size can hurt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shortened, shown

_LARGEST = f"{limits.LARGEST_INTEGER:,}"
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_plain(data: Any, where: str, lines: Mapping[tuple[Any, ...], int] | None = None) -> None:
    """Refuse what is no plain data or too large (see :mod:`hpo_core.model.limits`).

    Args:
        lines: of the places in the file, where there is one.

    Raises:
        SpecError: place, value, rule and cure.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), data)]
    seen = 0
    while waiting:
        place, value = waiting.pop()
        problem = _problem(value)
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple):
            inner = enumerate(value)
        if inner:
            seen += len(value)
            if seen > limits.VALUES:
                raise SpecError(
                    f"{where}: holds more than {limits.VALUES:,} values, the most a description may have; make it "
                    "smaller (a number with low and high instead of many choices, fewer parameters)."
                )
            if len(place) >= limits.DEPTH:
                problem = f"is nested deeper than {limits.DEPTH} levels, or contains itself; no setting is that deep"
        for key, one in () if problem else inner:
            if isinstance(value, Mapping) and (problem := _problem_of_key(key)):
                break
            waiting.append(((*place, key), one))
        if problem:
            raise SpecError(f"{line_of(place, where, lines or {})}: {named(place)}: {problem}")


def _problem_of_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        return f"the key {shown(key)} is no text; put it in quotes"
    return _problem(key) and f"a key: {_problem(key)}"


def _problem(value: Any) -> str:
    """What is wrong with one value, looked at alone; empty: nothing."""
    if value is None or isinstance(value, bool | Mapping | list | tuple | BaseModel):
        return ""
    if isinstance(value, int):
        if abs(value) <= limits.LARGEST_INTEGER:
            return ""
        return f"{shown(value)} must fit into 64 bits (-{_LARGEST} to {_LARGEST}); give a smaller one"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no finite number; give one, or leave the setting out"
    if not isinstance(value, str):
        return f"{shown(value)} is no plain value (text, number, true, false, null); put it in quotes"
    if len(value) > limits.TEXT:
        return f"{shown(value)} is too long: a text has at most {limits.TEXT:,} characters; shorten it"
    if "\0" in value:
        return f"{shown(value)} holds the character NUL, which databases refuse; remove it"
    if _SURROGATE.search(value):
        return f"{shown(value)} holds half a character (a lone surrogate); remove it"
    return ""


def line_of(place: tuple[Any, ...], where: str, lines: Mapping[tuple[Any, ...], int]) -> str:
    """Where something stands: the description's name, and the line of the file where that is known."""
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    return where if line is None else f"{where}:{line}"


def named(place: tuple[Any, ...]) -> str:
    """A place in a description for people, such as ``space.x.low``."""
    few = ".".join(shortened(part) if isinstance(part, str) else shown(part) for part in place[: limits.DEPTH])
    return few or "the study"
