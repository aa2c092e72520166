"""The points of a grid in the cells of a map: two parameters are its axes, a third one makes panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpo_core.model.space import Parameter, scalar_key
from hpo_core.report.study.parameters import position
from hpo_core.report.style import text
from hpo_core.views.formatting import number
from hpo_core.views.grid_states import GridPoint

PANELS = 8
"""Values of a third parameter that have a panel each; of more, its points fall together in one cell."""
_OFF = "–"
"""Of a parameter that a point does not use."""
Cells = list[list[list[GridPoint]]]
"""By row, then column."""


class Side:
    """The values that a parameter takes on the grid, in its own order; no parameter has one value."""

    def __init__(self, name: str = "", parameter: Parameter | None = None, points: Sequence[GridPoint] = ()) -> None:
        self.name = name
        values = {_key(point, name): point.params.get(name) for point in points} if name else {None: None}
        if parameter is not None:
            keys = sorted(values, key=lambda key: -1e300 if key is None else position(parameter, values[key], False))
        else:
            keys = list(values)
        self._places = {key: place for place, key in enumerate(keys)}
        self.words = [_word(values[key]) if name else "" for key in keys]

    def __len__(self) -> int:
        return len(self.words)

    def place(self, point: GridPoint) -> int:
        return self._places[_key(point, self.name) if self.name else None]


class GridCells:
    """All points over the two parameters with most values; a third one, of few values, makes panels.

    What further parameters tell apart falls together in one cell.
    """

    def __init__(self, space: Mapping[str, Parameter], points: Sequence[GridPoint]) -> None:
        used = [name for name in space if any(name in point.params for point in points)]
        sides = sorted((Side(name, space[name], points) for name in used), key=lambda side: -len(side))
        self.across = sides[0] if sides else Side()
        self.up = sides[1] if len(sides) > 1 and len(sides[1]) > 1 else Side()
        others = [side for side in sides[2:] if len(side) > 1]
        self.panel = next((side for side in others if len(side) <= PANELS), Side())
        self.summed = [side.name for side in others if side is not self.panel]
        self.panels: list[Cells] = [
            [[[] for _ in range(len(self.across))] for _ in range(len(self.up))] for _ in range(len(self.panel))
        ]
        for point in points:
            self.panels[self.panel.place(point)][self.up.place(point)][self.across.place(point)].append(point)


def _key(point: GridPoint, name: str) -> Any:
    return scalar_key(point.params[name]) if name in point.params else None


def _word(value: Any) -> str:
    if value is None:
        return _OFF
    return number(value, 4) if isinstance(value, float) else text(value, 14)
