"""The points of a grid over a search space, in a stated order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hpo_core.errors import SpecError
from hpo_core.rng import Stream
from hpo_core.space import FloatParameter, IntParameter, Parameter
from hpo_core.spec import GridSearch, StudySpec
from hpo_core.trial import Params

LARGEST = 1_000_000


class Grid:
    """Trial ``n`` gets point ``n`` of the grid (modulo its size), whatever else happened.

    Order: the first parameter of the space varies slowest, the last one fastest, values ascending, choices as
    they stand; with ``order: shuffled`` that list in a random order that follows from the seed. A parameter
    with ``when`` takes part only where it is active. Parameters in ``random`` are drawn per trial.

    Raises:
        SpecError: a continuous parameter has no ``points``, a value lies outside its parameter's range, a name
            is unknown, or the grid has more than a million points.
    """

    def __init__(self, spec: StudySpec) -> None:
        assert isinstance(spec.search, GridSearch)
        self._space = spec.search_space()
        self._seed = spec.seed
        settings = spec.search
        self._drawn = set(settings.random)
        for name in [*settings.points, *settings.random]:
            if name not in spec.space:
                raise SpecError(f"search.grid: {name!r} is no parameter of the space; it has {', '.join(spec.space)}.")
        both = self._drawn & set(settings.points)
        if both:
            raise SpecError(f"search.grid: {sorted(both)[0]!r} stands in points and in random; drop it from one.")
        for name in self._space.order:
            above = sorted(self._drawn & set(self._space.parameters[name].when))
            if above and name not in self._drawn:
                raise SpecError(
                    f"search.grid: {name!r} is active depending on {above[0]!r}, which is drawn; draw both "
                    f"(random: [{above[0]}, {name}]), or neither."
                )
        values = {
            name: grid_values(name, self._space.parameters[name], settings.points.get(name))
            for name in self._space.order
            if name not in self._drawn
        }
        self.points = self._enumerate(values)
        if settings.order == "shuffled":
            stream = Stream(spec.seed, "grid", 0)
            for i in range(len(self.points) - 1, 0, -1):
                j = stream.below(i + 1)
                self.points[i], self.points[j] = self.points[j], self.points[i]

    def _enumerate(self, values: dict[str, list[Any]]) -> list[Params]:
        names = [name for name in self._space.order if name in values]

        def rest(k: int, chosen: Params) -> Iterator[Params]:
            if k == len(names):
                yield dict(chosen)
            elif self._space.is_active(names[k], chosen):
                for value in values[names[k]]:
                    yield from rest(k + 1, chosen | {names[k]: value})
            else:
                yield from rest(k + 1, chosen)

        points: list[Params] = []
        for point in rest(0, {}):
            points.append(point)
            if len(points) > LARGEST:
                raise SpecError(
                    f"search.grid: the grid has more than {LARGEST:,} points; give fewer points, or draw some "
                    "parameters (random: [...])."
                )
        return points

    def at(self, number: int) -> Params:
        """Parameters of trial ``number``."""
        point = self.points[number % len(self.points)]
        if not self._drawn:
            return dict(point)
        values: Params = {}
        for name in self._space.order:
            if name in point:
                values[name] = point[name]
            elif name in self._drawn and self._space.is_active(name, values):
                values[name] = self._space.parameters[name].draw(Stream(self._seed, f"grid/{name}", number))
        return values

    @property
    def size(self) -> int:
        """Points of the grid."""
        return len(self.points)


def grid_values(name: str, parameter: Parameter, points: int | list[Any] | None) -> list[Any]:
    """The values of one parameter, in the grid's order.

    Raises:
        SpecError: see :class:`Grid`.
    """
    if isinstance(points, list):
        bad = [value for value in points if not parameter.contains(value)]
        if bad or not points or len(set(map(repr, points))) < len(points):
            raise SpecError(
                f"search.grid.points.{name} = {points}: {bad[0] if bad else 'the list'!r} "
                f"{'lies outside the parameter' if bad else 'is empty or holds a value twice'}; mend the list."
            )
        return list(points)
    if not isinstance(parameter, FloatParameter | IntParameter):
        if points is not None and points != len(parameter.choices):
            raise SpecError(
                f"search.grid.points.{name} = {points}: it has {len(parameter.choices)} choices; leave it out, or "
                "give the list of those you want."
            )
        return list(parameter.choices)
    if points is None:
        return _all_values(name, parameter)
    return _spread(parameter, points)


def _all_values(name: str, parameter: FloatParameter | IntParameter) -> list[Any]:
    step = parameter.step or (1 if isinstance(parameter, IntParameter) else None)
    if step is None or parameter.log:
        raise SpecError(
            f"search.grid: parameter {name!r} is continuous{' on a log scale' if parameter.log else ''}; "
            f"say how many points it has (points: {{{name}: 5}}) or draw it (random: [{name}])."
        )
    total = int((parameter.high - parameter.low) / step + 1e-9) + 1
    if total > LARGEST:
        raise SpecError(f"search.grid: parameter {name!r} has {total:,} values; say how many (points: {{{name}: 5}}).")
    values = [parameter.low + i * step for i in range(total)]
    return [round(v) for v in values] if isinstance(parameter, IntParameter) else [float(v) for v in values]


def _spread(parameter: FloatParameter | IntParameter, points: int) -> list[Any]:
    low, high = float(parameter.low), float(parameter.high)
    found: list[Any] = []
    for i in range(points):
        share = i / (points - 1) if points > 1 else 0.5
        value = math.exp(math.log(low) + share * math.log(high / low)) if parameter.log else low + share * (high - low)
        if parameter.step:
            value = low + round((value - low) / parameter.step) * parameter.step
        value = min(max(value, low), high)
        found.append(round(value) if isinstance(parameter, IntParameter) else value)
    return list(dict.fromkeys(found))
