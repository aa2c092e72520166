"""The points of a grid over a search space, in a stated order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import shown, some
from hpo_core.model.trial import Params
from hpo_core.search.grid_points import Points, TooEntangledError
from hpo_core.spec import GridSearch, StudySpec

LARGEST = limits.GRID_POINTS


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
                raise SpecError(f"search.grid: {shown(name)} is no parameter of the space; it has {some(spec.space)}.")
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
            name: self._space.parameters[name].grid_values(name, settings.points.get(name))
            for name in self._space.order
            if name not in self._drawn
        }
        try:
            self._points = Points(values, self._space.parameters)
        except TooEntangledError:
            raise SpecError(
                "search.grid: the conditions between parameters make too many combinations to count its points; draw "
                "some parameters (random: [...])."
            ) from None
        if self.size > LARGEST:
            raise SpecError(
                f"search.grid: the grid has more than {LARGEST:,} points; give fewer points, or draw some "
                "parameters (random: [...])."
            )
        self._shuffled = settings.order == "shuffled"

    @cached_property
    def _order(self) -> Sequence[int]:
        """The points' numbers in the order in which they are tried."""
        if not self._shuffled:
            return range(self.size)
        order = list(range(self.size))
        stream = Stream(self._seed, "grid", 0)
        for i in range(self.size - 1, 0, -1):
            j = stream.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order

    @property
    def points(self) -> list[Params]:
        """All points, in the order in which they are tried; made for each call."""
        return [self._points.at(number) for number in self._order]

    def at(self, number: int) -> Params:
        """Parameters of trial ``number``."""
        point = self._points.at(self._order[number % self.size])
        if not self._drawn:
            return point
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
        return self._points.size
