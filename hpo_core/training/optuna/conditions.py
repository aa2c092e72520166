"""When a parameter is suggested, told from calls of an objective: the values of one or two parameters before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

from hpo_core.training.optuna.suggestions import Description, same

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


class Conditions:
    """What the calls show so far."""

    def __init__(self, space: Mapping[str, Description], calls: Calls) -> None:
        self._space = space
        self._calls = calls
        self._order = [{name: place for place, name in enumerate(call)} for call in calls]
        self._places = {  # of the values of each call, where a parameter has a list of values
            name: [same_place(call[name], asked) if name in call else None for call in calls]
            for name, asked in space.items()
            if values_of(asked) is not None
        }
        self._tried = {
            name: set(places) - {None} for name, places in self._places.items() if self._went_through(name, places)
        }

    def of(self, name: str) -> dict[str, Any] | None:
        """``{other: value or values}``, with one or two others; None where the calls show no such rule.

        Every value of the others must have been tried, and of two others every pair that the rule allows.
        """
        present = [k for k, call in enumerate(self._calls) if name in call]
        rules: dict[str, set[int | None]] = {}
        for other in self._tried:
            if other == name or not all(other in self._order[k] for k in present):
                continue
            if any(self._order[k][other] > self._order[k][name] for k in present):
                continue  # nothing depends on what is not known yet
            wanted = {self._places[other][k] for k in present}
            if self._tells(name, {other: wanted}):
                return {other: self._values(other, wanted)}
            if wanted != self._tried[other]:
                rules[other] = wanted
        for one, two in combinations(rules, 2):
            rule = {one: rules[one], two: rules[two]}
            if self._tells(name, rule) and self._has_seen(rule):
                return {other: self._values(other, wanted) for other, wanted in rule.items()}
        return None

    def _went_through(self, name: str, places: Sequence[int | None]) -> bool:
        return len(set(places) - {None}) == len(values_of(self._space[name]) or ())

    def _tells(self, name: str, rule: Mapping[str, set[int | None]]) -> bool:
        """Whether exactly the calls that the rule allows have the parameter, of those that have all of the others."""
        return all(
            (name in call) == all(self._places[other][k] in wanted for other, wanted in rule.items())
            for k, call in enumerate(self._calls)
            if all(other in call for other in rule)
        )

    def _has_seen(self, rule: Mapping[str, set[int | None]]) -> bool:
        one, two = rule
        seen = set(zip(self._places[one], self._places[two], strict=True))
        return all(pair in seen for pair in product(rule[one], rule[two]))

    def _values(self, name: str, places: set[int | None]) -> Any:
        values = [value for place, value in enumerate(values_of(self._space[name]) or ()) if place in places]
        return values[0] if len(values) == 1 else values
