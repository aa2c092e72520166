"""Conditions: infers from calls of an objective when a parameter is suggested.

A condition names the values of one or two parameters suggested before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

from hpo_core.training.optuna.suggestions import Description, equal_values

Calls = Sequence[Mapping[str, Any]]
"""The parameters of each call, in the order of their suggestions."""


def values_of(asked: Description) -> Sequence[Any] | None:
    """All values of a parameter; None for a range of floats."""
    if "choices" in asked:
        return list(asked["choices"])
    return range(asked["low"], asked["high"] + 1, asked["step"]) if asked["type"] == "int" else None


def value_index(value: Any, asked: Description) -> int | None:
    """Index of ``value`` among the parameter's values; None where it is none of them, or for floats."""
    values = values_of(asked)
    if isinstance(values, range):
        return values.index(value) if value in values else None
    return next((index for index, known in enumerate(values or ()) if equal_values(value, known)), None)


class Conditions:
    """The conditions that agree with all calls so far."""

    def __init__(self, space: Mapping[str, Description], calls: Calls) -> None:
        self._space = space
        self._calls = calls
        self._order = [{name: index for index, name in enumerate(call)} for call in calls]
        self._indices = {  # of the values of each call, where a parameter has a list of values
            name: [value_index(call[name], asked) if name in call else None for call in calls]
            for name, asked in space.items()
            if values_of(asked) is not None
        }
        self._tried = {
            name: set(places) - {None} for name, places in self._indices.items() if self._all_values_tried(name, places)
        }

    def rule_for(self, name: str) -> dict[str, Any] | None:
        """The condition of a parameter: ``{other: value or values}`` with one or two others; None if there is none.

        Every value of the others must have been tried, and for two others every pair that the rule allows.
        """
        present = [k for k, call in enumerate(self._calls) if name in call]
        rules: dict[str, set[int | None]] = {}
        for other in self._tried:
            if other == name or not all(other in self._order[k] for k in present):
                continue
            if any(self._order[k][other] > self._order[k][name] for k in present):
                continue  # a condition can only name parameters suggested before
            wanted = {self._indices[other][k] for k in present}
            if self._explains(name, {other: wanted}):
                return {other: self._values(other, wanted)}
            if wanted != self._tried[other]:
                rules[other] = wanted
        for one, two in combinations(rules, 2):
            rule = {one: rules[one], two: rules[two]}
            if self._explains(name, rule) and self._all_pairs_tried(rule):
                return {other: self._values(other, wanted) for other, wanted in rule.items()}
        return None

    def _all_values_tried(self, name: str, places: Sequence[int | None]) -> bool:
        return len(set(places) - {None}) == len(values_of(self._space[name]) or ())

    def _explains(self, name: str, rule: Mapping[str, set[int | None]]) -> bool:
        """Whether, among calls with all parameters of the rule, exactly those that it allows suggested ``name``."""
        return all(
            (name in call) == all(self._indices[other][k] in wanted for other, wanted in rule.items())
            for k, call in enumerate(self._calls)
            if all(other in call for other in rule)
        )

    def _all_pairs_tried(self, rule: Mapping[str, set[int | None]]) -> bool:
        one, two = rule
        seen = set(zip(self._indices[one], self._indices[two], strict=True))
        return all(pair in seen for pair in product(rule[one], rule[two]))

    def _values(self, name: str, places: set[int | None]) -> Any:
        values = [value for place, value in enumerate(values_of(self._space[name]) or ()) if place in places]
        return values[0] if len(values) == 1 and not isinstance(values[0], list) else values
