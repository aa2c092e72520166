"""Grid search: every point of a grid over the search space, in a stated order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import at_most, meant_or_known, shown
from hpo_core.model.space import ParameterType, SearchSpace
from hpo_core.model.trial import Params
from hpo_core.search.method import SearchMethod
from hpo_core.search.random import Straight
from hpo_core.search.search_settings import WHOLE, Outline, Resource, SearchContext, SearchSettings


class GridSearch(SearchSettings):
    """Every point of a grid, in a stated order, trained to ``max_resource``.

    The first parameter of the space varies slowest, the last one fastest; values ascend (choices in their
    order); a parameter with ``when`` takes part only where it is active.
    """

    title: ClassVar[str] = "Grid"

    method: Literal["grid"] = "grid"
    max_resource: Resource | None = Field(default=None, description=WHOLE)
    points: dict[str, Annotated[int, Field(ge=1, le=1_000_000)] | list[Any]] = Field(
        default_factory=dict,
        description="Per parameter the number of points (evenly spaced, on a log scale where the parameter is) or "
        "their list; needed for continuous parameters.",
    )

    def create(self, context: SearchContext) -> Straight:
        total = Grid(context.space, self).size
        first, target = context.start_with, self.max_resource or 1
        return Straight(total + first, target, limit=total + first, queue_counts=False)

    def outline(self) -> Outline:
        return Outline(max_resource=self.max_resource or 1, own_configurations=True, independent=True)

    def unit_is_whole(self) -> bool:
        return self.max_resource is None

    def sampled(self) -> int | None:
        return None

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        axes = sum(parameter.grid_size(self.points.get(name)) for name, parameter in space.items())
        at_most("values on all axes of the grid", axes, limits.GRID_VALUES, "; give fewer points")

    def check_space(self, space: SearchSpace, seed: int) -> None:
        try:
            Grid(space, self)
        except SpecError as error:
            raise ValueError(str(error)) from None

    def configurations(self, context: SearchContext) -> Callable[[int], Params]:
        return Grid(context.space, self).at

    def grid(self, space: SearchSpace) -> Grid:
        return Grid(space, self)

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
    they stand. A parameter with ``when`` takes part only where it is active.

    Raises:
        SpecError: a continuous parameter has no ``points``, a value lies outside its parameter's range, a name
            is unknown, or the grid has more than a million points.
    """

    def __init__(self, space: SearchSpace, settings: GridSearch) -> None:
        self.names = list(space.order)
        for name in settings.points:
            if name not in space.parameters:
                raise SpecError(
                    f"search.grid: {shown(name)} is no parameter of the space; "
                    f"{meant_or_known(name, space.parameters, 'it has')}"
                )
        self._values = {
            name: space.parameters[name].grid_values(name, settings.points.get(name)) for name in space.order
        }
        conditional = space.has_forbidden or any(space.parameters[name].conditions() for name in self._values)
        self._listed = space.combinations(self._values, "search.grid") if conditional else None
        self.size = math.prod(map(len, self._values.values())) if self._listed is None else len(self._listed)
        """Points of the grid."""
        if self.size > limits.GRID_POINTS:
            raise SpecError(
                f"search.grid: the grid has more than {limits.GRID_POINTS:,} points; give fewer points, or use method: "
                "random."
            )

    @property
    def points(self) -> list[Params]:
        return [self.at(number) for number in range(self.size)]

    def at(self, number: int) -> Params:
        number %= self.size
        if self._listed is not None:
            return dict(self._listed[number])
        places = {}
        for name, values in reversed(self._values.items()):
            number, places[name] = divmod(number, len(values))
        return {name: values[places[name]] for name, values in self._values.items()}
