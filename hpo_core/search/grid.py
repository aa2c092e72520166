"""Grid search: every point of a grid over the search space, in a stated order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import at_most, meant_or_known, shown
from hpo_core.model.space import ParameterType, SearchSpace
from hpo_core.model.space.search_space import MOST_DRAWS
from hpo_core.model.trial import Params
from hpo_core.search.method import SearchMethod
from hpo_core.search.random import Straight
from hpo_core.search.search_settings import WHOLE, Outline, Resource, SearchContext, SearchSettings, check_configs


class GridSearch(SearchSettings):
    """Every point of a grid, in a stated order, trained to ``max_resource``.

    The first parameter of the space varies slowest, the last one fastest; values ascend (choices in their
    order); a parameter with ``when`` takes part only where it is active. Parameters named in ``random`` are
    drawn anew for each point.
    """

    title: ClassVar[str] = "Grid"

    method: Literal["grid"] = "grid"
    max_resource: Resource | None = Field(default=None, description=WHOLE)
    configs: int | None = Field(
        default=None, ge=1, description="How many points of the grid are trained; default: all (extend goes on)."
    )
    points: dict[str, Annotated[int, Field(ge=1, le=1_000_000)] | list[Any]] = Field(
        default_factory=dict,
        description="Per parameter the number of points (evenly spaced, on a log scale where the parameter is) or "
        "their list; needed for continuous parameters.",
    )
    random: list[str] = Field(default_factory=list, description="Parameters drawn at random instead.")
    order: Literal["product", "shuffled"] = Field(default="product", description="Shuffled: by the study's seed.")

    def create(self, context: SearchContext) -> Straight:
        total = Grid(context.space, self, context.seed).size
        first, target = context.start_with, self.max_resource or 1
        if self.random:
            return Straight((self.configs or total) + first, target, queue_counts=False)
        configs = min(self.configs or total, total) + first
        return Straight(configs, target, limit=total + first, queue_counts=False)

    def outline(self) -> Outline:
        return Outline(max_resource=self.max_resource or 1, own_configurations=True, independent=True)

    def unit_is_whole(self) -> bool:
        return self.max_resource is None

    def sampled(self) -> int | None:
        return None

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        check_configs(self.configs)
        axes = sum(
            parameter.grid_size(self.points.get(name)) for name, parameter in space.items() if name not in self.random
        )
        at_most("values on all axes of the grid", axes, limits.GRID_VALUES, "; give fewer points, or draw parameters")

    def check_space(self, space: SearchSpace, seed: int) -> None:
        try:
            Grid(space, self, seed)
        except SpecError as error:
            raise ValueError(str(error)) from None

    def configurations(self, context: SearchContext) -> Callable[[int], Params]:
        return Grid(context.space, self, context.seed).at

    def grid(self, space: SearchSpace, seed: int) -> Grid:
        return Grid(space, self, seed)

    def refuse_extension(self, study: str, method: SearchMethod | None = None) -> str | None:
        if not isinstance(method, Straight) or method.limit is None or method.width != method.limit:
            return None
        return (
            f"Study {study!r}: its grid has {method.limit} configurations and all of them are in the study. Start a "
            "new study with more points, or with random search."
        )


class Grid:
    """The points of a grid: trial ``n`` gets point ``n``, modulo their number.

    Order: the first parameter of the space varies slowest, the last one fastest, values ascending, choices as
    they stand; with ``order: shuffled`` that list in a random order that follows from the seed. A parameter
    with ``when`` takes part only where it is active. Parameters in ``random`` are drawn per trial.

    Raises:
        SpecError: a continuous parameter has no ``points``, a value lies outside its parameter's range, a name
            is unknown, or the grid has more than a million points.
    """

    def __init__(self, space: SearchSpace, settings: GridSearch, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._drawn = set(settings.random)
        for name in [*settings.points, *settings.random]:
            if name not in space.parameters:
                raise SpecError(
                    f"search.grid: {shown(name)} is no parameter of the space; "
                    f"{meant_or_known(name, space.parameters, 'it has')}"
                )
        both = self._drawn & set(settings.points)
        if both:
            raise SpecError(f"search.grid: {sorted(both)[0]!r} stands in points and in random; drop it from one.")
        for name in self._space.order:
            above = sorted(self._drawn & set(self._space.above(name)))
            if above and name not in self._drawn:
                raise SpecError(
                    f"search.grid: {name!r} is active depending on {above[0]!r}, which is drawn; draw both "
                    f"(random: [{above[0]}, {name}]), or neither."
                )
        if dependent := [
            name for name in self._space.order if self._space.is_dependent(name) and name not in self._drawn
        ]:
            raise SpecError(
                f"search.grid: the range of {dependent[0]!r} depends on another parameter, so it has no fixed points; "
                f"draw it (random: [{dependent[0]}])."
            )
        values = {
            name: self._space.parameters[name].grid_values(name, settings.points.get(name))
            for name in self._space.order
            if name not in self._drawn
        }
        self._values = values
        conditional = self._space.has_forbidden or any(self._space.parameters[name].conditions() for name in values)
        self._listed = space.combinations(values, "search.grid") if conditional else None
        self.size = math.prod(map(len, values.values())) if self._listed is None else len(self._listed)
        """Points of the grid."""
        if self.size > limits.GRID_POINTS:
            raise SpecError(
                f"search.grid: the grid has more than {limits.GRID_POINTS:,} points; give fewer points, or draw some "
                "parameters (random: [...])."
            )
        self._shuffled = settings.order == "shuffled"

    @cached_property
    def _order(self) -> Sequence[int]:
        points = range(self.size)
        return Stream(self._seed, "grid", 0).shuffled(points) if self._shuffled else points

    @property
    def names(self) -> list[str]:
        """The parameters that tell points apart; the others are drawn."""
        return [name for name in self._space.order if name not in self._drawn]

    @property
    def points(self) -> list[Params]:
        """All points, in the order in which they are tried; made for each call."""
        return [self._point(number) for number in self._order]

    def _point(self, number: int) -> Params:
        """Point ``number`` in the order of the product; parameters that are off are absent."""
        if self._listed is not None:
            return dict(self._listed[number])
        places = {}
        for name, values in reversed(self._values.items()):
            number, places[name] = divmod(number, len(values))
        return {name: values[places[name]] for name, values in self._values.items()}

    def at(self, number: int) -> Params:
        point = self._point(self._order[number % self.size])
        if not self._drawn:
            return point
        for attempt in range(MOST_DRAWS):
            values = self._filled(point, number, f"again-{attempt}/" if attempt else "")
            if not self._space.has_forbidden or not self._space.forbidden_by(values):
                return values
        raise SpecError(
            f"search.grid: {MOST_DRAWS:,} draws for the point {point} were all forbidden; forbid less, or draw less."
        )

    def _filled(self, point: Params, number: int, purpose: str) -> Params:
        values: Params = {}
        for name in self._space.order:
            if name in point:
                values[name] = point[name]
            elif name in self._drawn and self._space.is_active(name, values):
                stream = Stream(self._seed, f"grid/{purpose}{name}", number)
                values[name] = self._space.resolved(name, values).draw(stream)
        return values
