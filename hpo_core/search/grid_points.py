"""Counts the points of a grid, and finds one by its number.

A parameter with conditions is on or off depending on the values before it. Which ones are off is all that the
number of points below a prefix depends on, so the points are counted from the last parameter backwards, for each set
of parameters that can be off there (a bit each). Parameters that no condition joins are counted apart: their numbers
multiply.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.space import Parameter, SearchSpace, scalar_key

MOST_STEPS = 200_000
"""Pairs of a set of parameters that are off and a value's effect on it, over all parameters."""


class TooEntangledError(ValueError):
    """Too many combinations of parameters are on and off to count the grid's points."""


class Points:
    """The points of a grid in order: the first parameter varies slowest.

    Args:
        values: of each parameter, in order; conditions name parameters that stand before.
        parameters: their conditions.

    Raises:
        TooEntangledError: the conditions make too many combinations.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], parameters: Mapping[str, Parameter]) -> None:
        self._values = values
        self._groups = [_Group(names, values, parameters) for names in _joined(list(values), parameters)]
        self._group_of = {name: group for group in self._groups for name in group.names}
        self.size = math.prod(group.size for group in self._groups)

    def at(self, number: int) -> dict[str, Any]:
        """Point ``number``, from 0; parameters that are off are absent."""
        off = {id(group): 0 for group in self._groups}
        left = {id(group): group.size for group in self._groups}
        below = self.size  # points that begin as this one does
        found: dict[str, Any] = {}
        for name, values in self._values.items():
            group = self._group_of[name]
            key, place = id(group), group.place[name]
            state = off[key]
            if not state >> place & 1:
                others = below // left[key]
                if group.joined(name):
                    for value in values:
                        count = group.below(place, state, value) * others
                        if number < count:
                            break
                        number -= count
                else:
                    i, number = divmod(number, group.below(place, state, values[0]) * others)
                    value = values[i]
                found[name] = value
                below = group.below(place, state, value) * others
                left[key] = group.below(place, state, value)
                off[key] = group.after(place, state, value)
            else:
                off[key] = group.after(place, state, None)
        return found


class ListedPoints:
    """The points of a small grid, gone through one by one: for conditions with alternatives, forbidden combinations.

    Args:
        values: of each parameter, in order.
        space: says which points there are.

    Raises:
        SpecError: there are too many points to list, or none.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], space: SearchSpace) -> None:
        self._found: list[dict[str, Any]] = []
        waiting: list[tuple[int, dict[str, Any]]] = [(0, {})]
        names = list(values)
        steps = 0
        while waiting:
            place, point = waiting.pop()
            steps += 1
            if steps > MOST_STEPS:
                raise SpecError(
                    f"search.grid: with forbidden combinations or alternative conditions a grid has at most about "
                    f"{MOST_STEPS:,} points; give fewer points, or draw some parameters (random: [...])."
                )
            if place == len(names):
                if not space.forbidden_by(point):
                    self._found.append(point)
            elif not space.is_active(names[place], point):
                waiting.append((place + 1, point))
            else:
                name = names[place]
                waiting += [(place + 1, point | {name: value}) for value in reversed(values[name])]
        self.size = len(self._found)
        if not self._found:
            raise SpecError("search.grid: every point of the grid is forbidden; give other points, or forbid less.")

    def at(self, number: int) -> dict[str, Any]:
        """Point ``number``, from 0; parameters that are off are absent."""
        return dict(self._found[number])


class _Group:
    """Parameters that conditions join."""

    def __init__(
        self, names: list[str], values: Mapping[str, Sequence[Any]], parameters: Mapping[str, Parameter]
    ) -> None:
        self.names = names
        self.place = {name: i for i, name in enumerate(names)}
        self._depending = [0] * len(names)
        """By parameter: those with a condition on it, a bit each."""
        self._allowed: list[dict[tuple[bool, Any], int]] = [{} for _ in names]
        """By parameter and value: those whose condition on it holds."""
        for i, name in enumerate(names):
            for other, test in next(iter(parameters[name].conditions()), {}).items():
                above = self.place[other]
                self._depending[above] |= 1 << i
                for key in {scalar_key(value) for value in values[other] if test.holds(value)}:
                    self._allowed[above][key] = self._allowed[above].get(key, 0) | 1 << i
        self._below = self._count([self._effects(i, values[name]) for i, name in enumerate(names)])
        self.size = self._below[0][0]

    def _effects(self, place: int, values: Sequence[Any]) -> Counter[int]:
        """How many values have each effect."""
        if not self._depending[place]:
            return Counter({0: len(values)})
        return Counter(self._effect(place, value) for value in values)

    def _effect(self, place: int, value: Any) -> int:
        """Parameters that a value switches off."""
        return self._depending[place] & ~self._allowed[place].get(scalar_key(value), 0)

    def _count(self, effects: list[Counter[int]]) -> list[dict[int, int]]:
        """By place and by what is off there: points of the parameters from there on."""
        states: list[set[int]] = [{0}]
        steps = 0
        for place, counts in enumerate(effects):
            following: set[int] = set()
            for state in states[-1]:
                if state >> place & 1:
                    following.add(self.after(place, state, None))
                    steps += 1
                else:
                    following.update(state | effect for effect in counts)
                    steps += len(counts)
                if steps > MOST_STEPS:
                    raise TooEntangledError
            states.append(following)
        found: list[dict[int, int]] = [{} for _ in effects] + [dict.fromkeys(states[-1], 1)]
        for place in range(len(effects) - 1, -1, -1):
            after = found[place + 1]
            for state in states[place]:
                if state >> place & 1:
                    found[place][state] = after[self.after(place, state, None)]
                else:
                    found[place][state] = sum(count * after[state | e] for e, count in effects[place].items())
        return found

    def joined(self, name: str) -> bool:
        """Whether others depend on the parameter."""
        return bool(self._depending[self.place[name]])

    def after(self, place: int, state: int, value: Any) -> int:
        """What is off after a parameter took a value, or was off itself."""
        if state >> place & 1:
            return state & ~(1 << place) | self._depending[place]
        return state | self._effect(place, value)

    def below(self, place: int, state: int, value: Any) -> int:
        """Points of the parameters after this one."""
        return self._below[place + 1][self.after(place, state, value)]


def _joined(names: list[str], parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """The parameters in groups that no condition leaves, in order."""
    above = {name: name for name in names}

    def root(name: str) -> str:
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    for name in names:
        for other in parameters[name].parents():
            above[root(name)] = root(other)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(root(name), []).append(name)
    return list(groups.values())
