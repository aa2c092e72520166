"""When a parameter is suggested, told from calls of an objective: the values of one or two parameters before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

from hpo_core.training.suggestions import Description, same

Calls = Sequence[Mapping[str, Any]]
"""The parameters of each call, in the order they were suggested in."""


def values_of(asked: Description) -> Sequence[Any] | None:
    """All values; None for a range of floats."""
    if "choices" in asked:
        return list(asked["choices"])
    return range(asked["low"], asked["high"] + 1, asked["step"]) if asked["type"] == "int" else None


def same_place(value: Any, asked: Description) -> int | None:
    """Which of its values this is; None for any other one, and in a range of floats."""
    values = values_of(asked)
    if isinstance(values, range):
        return values.index(value) if value in values else None
    return next((place for place, known in enumerate(values or ()) if same(value, known)), None)


def condition_of(name: str, space: Mapping[str, Description], calls: Calls) -> dict[str, Any] | None:
    """``{other: value or values}``, with one or two others; None where the calls show no such rule.

    Every value of the others must have been tried, and of two others every pair that the rule allows.
    """
    present = [call for call in calls if name in call]
    others = [other for other in space if values_of(space[other]) is not None and _before(other, name, present)]
    for other in others:
        found = _by_one(name, other, space, calls)
        if found is not None:
            return found
    for one, two in combinations(others, 2):
        found = _by_two(name, one, two, space, calls)
        if found is not None:
            return found
    return None


def _before(other: str, name: str, calls: Calls) -> bool:
    """Whether it is suggested earlier each time: nothing depends on what is not known yet."""
    return other != name and all(other in call and _order(call, other) < _order(call, name) for call in calls)


def _order(call: Mapping[str, Any], name: str) -> int:
    return list(call).index(name)


def _by_one(name: str, other: str, space: Mapping[str, Description], calls: Calls) -> dict[str, Any] | None:
    seen: dict[int | None, set[bool]] = {}
    for call in calls:
        if other in call:
            seen.setdefault(same_place(call[other], space[other]), set()).add(name in call)
    if len(seen) < len(values_of(space[other]) or ()) or any(len(there) > 1 for there in seen.values()):
        return None
    return {other: _values(space[other], {place for place, there in seen.items() if there == {True}})}


def _by_two(name: str, one: str, two: str, space: Mapping[str, Description], calls: Calls) -> dict[str, Any] | None:
    seen = {
        (same_place(call[one], space[one]), same_place(call[two], space[two])): name in call
        for call in calls
        if one in call and two in call
    }
    first, second = ({places[k] for places, there in seen.items() if there} for k in (0, 1))
    told = all(
        (name in call) == (same_place(call[one], space[one]) in first and same_place(call[two], space[two]) in second)
        for call in calls
        if one in call and two in call
    )
    tried = all(
        len({places[k] for places in seen}) == len(values_of(space[other]) or ()) for k, other in enumerate((one, two))
    )
    if not told or not tried or not first or any(pair not in seen for pair in product(first, second)):
        return None
    return {one: _values(space[one], first), two: _values(space[two], second)}


def _values(asked: Description, places: set[Any]) -> Any:
    values = [value for place, value in enumerate(values_of(asked) or ()) if place in places]
    return values[0] if len(values) == 1 else values
