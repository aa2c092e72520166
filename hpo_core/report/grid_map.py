"""A grid study as maps: the state of each point (HyperSack, Figure 7), and its metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpo_core.model.space import ListedParameter, Parameter
from hpo_core.report.series import Series
from hpo_core.report.style import CANDIDATE, DARKER, FAILED, Figure, Trace, axis, layout, rounded, scale, text
from hpo_core.views.formatting import number, parameter_value
from hpo_core.views.states import GridPoint, JobState, grid_points, grid_states, joint_state

COLORS = {
    JobState.PENDING: "#dfe5ec",
    JobState.IN_PROGRESS: CANDIDATE,
    JobState.COMPLETE: "#3aa76d",
    JobState.FAILED: FAILED,
}
_CELL, _LEAST, _TALLEST, _AROUND = 32, 160, 620, 150
"""Pixels: a row's height, the map's at least and at most, and around it."""


class GridCells:
    """All points over the two parameters with most values; a third one divides the columns of a map.

    Points that differ in further parameters alone fall together in one cell.
    """

    def __init__(self, space: Mapping[str, Parameter], points: Sequence[GridPoint]) -> None:
        sides = {name: _values_of(name, space[name], points) for name in space}
        varied = sorted((name for name in sides if len(sides[name]) > 1), key=lambda name: -len(sides[name]))
        self.across, self.up, self.third = (*varied, "", "", "")[:3]
        self.names = [name for name in (self.across, self.up, self.third) if name]
        self.summed = varied[3:]
        self.rows = sides.get(self.up, [""])
        self.columns = [(a, b) for a in sides.get(self.third, [""]) for b in sides.get(self.across, [""])]
        self._cells: dict[tuple[str, str, str], list[GridPoint]] = {}
        for point in points:
            place = (_word(point, self.third), _word(point, self.across), _word(point, self.up))
            self._cells.setdefault(place, []).append(point)
        self.cells = [[self._cells.get((*column, row), []) for column in self.columns] for row in self.rows]

    def together(self, rule: str) -> str:
        """Sentence about cells that hold several points; empty where none does."""
        names = ", ".join(text(name, 24) for name in self.summed)
        return f" A cell holds all values of {names}. {rule}" if names else ""


def _word(point: GridPoint, name: str) -> str:
    return "" if not name else text(parameter_value(point.params[name])) if name in point.params else "–"


def _values_of(name: str, parameter: Parameter, points: Sequence[GridPoint]) -> list[str]:
    # In the order of the parameter; a grid may be shuffled.
    found = {_word(point, name): point.params.get(name, -math.inf) for point in points}
    if isinstance(parameter, ListedParameter):
        listed = [text(parameter_value(choice)) for choice in parameter.listed()]
        found = {word: listed.index(word) if word in listed else -1 for word in found}
    return sorted(found, key=lambda word: found[word])


def grid_figures(series: Series) -> list[Figure | None]:
    """The maps of a grid study; none for another method, and for a very large grid."""
    points = grid_points(series.study)
    if len(points) < 2:
        return []
    cells = GridCells(series.study.spec.search_space().parameters, points)
    return [_states(series, cells), _metric(series, cells)]


def _states(series: Series, cells: GridCells) -> Figure:
    order, many = list(COLORS), len(COLORS)
    colors = [[(k + end) / many, color] for k, color in enumerate(COLORS.values()) for end in (0, 1)]

    def state(points: Sequence[GridPoint]) -> float | None:
        return order.index(joint_state([point.state for point in points])) if points else None

    legend = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "hoverinfo": "skip"}
    data, shape = _map(series, cells, state, colorscale=colors, zmin=-0.5, zmax=many - 0.5, showscale=False)
    data += [
        {**legend, "name": name, "marker": {"color": color, "size": 12, "symbol": "square"}}
        for name, color in COLORS.items()
    ]
    counts = grid_states(series.study)
    title = f"The grid: {counts.words}" if counts is not None else "The grid"
    rule = "It is failed where one of them is, complete where all are."
    caption = (
        "Each cell is a configuration. In progress is one that was granted; failed one whose last attempt failed: it "
        f"is tried again, or was abandoned.{cells.together(rule)}"
    )
    return Figure("grid-states", title, caption, data, shape, zoom=False)


def _metric(series: Series, cells: GridCells) -> Figure | None:
    values = [value for row in cells.cells for cell in row for value in _values(series, cell)]
    if len(set(values)) < 2:
        return None
    drawn = scale(values, maximize=series.maximize)

    def best(points: Sequence[GridPoint]) -> float | None:
        own = _values(series, points)
        return rounded(drawn.place(_best(series, own))) if own else None

    low, high = drawn.ends
    data, shape = _map(
        series, cells, best, zmin=low, zmax=high, **drawn.colors(series.metric, maximize=series.maximize)
    )
    caption = (
        f"{text(series.metric, 30)} of each configuration where it has a result: {DARKER} is better."
        f"{cells.together('It shows the best of them.')}"
    )
    return Figure("grid-metric", f"The grid by {series.metric[:30]}", caption, data, shape, zoom=False)


def _values(series: Series, points: Sequence[GridPoint]) -> list[float]:
    found = [series.final(series.trials[trial]) for point in points for trial in point.trials]
    return [value for value in found if value is not None]


def _best(series: Series, values: Sequence[float]) -> float:
    return max(values) if series.maximize else min(values)


def _map(
    series: Series, cells: GridCells, shade: Callable[[Sequence[GridPoint]], float | None], **colors: Any
) -> tuple[list[Trace], dict[str, Any]]:
    gap = 0 if len(cells.columns) * len(cells.rows) > 2500 else 2
    thirds, firsts = ([*words] for words in zip(*cells.columns, strict=True))
    drawn = {
        "type": "heatmap",
        "x": [thirds, firsts] if cells.third else firsts,
        "y": cells.rows,
        "z": [[shade(cell) for cell in row] for row in cells.cells],
        "text": [[_words(series, cells, cell) for cell in row] for row in cells.cells],
        "hoverinfo": "text",
        "xgap": gap,
        "ygap": gap,
        **colors,
    }
    names = [text(name, 30) for name in (cells.across, cells.third) if name]
    across = axis(" within ".join(names), type="multicategory" if cells.third else "category", showgrid=False)
    up = axis(text(cells.up, 30), type="category", showgrid=False)
    height = min(_TALLEST, max(_LEAST, _CELL * len(cells.rows))) + _AROUND
    return [drawn], layout(height, xaxis=across, yaxis=up)


def _words(series: Series, cells: GridCells, points: Sequence[GridPoint]) -> str:
    # Hover words of a cell; with one trial they begin with its number, by which a click finds it.
    if not points:
        return "no point of the grid"
    trials = [trial for point in points for trial in point.trials]
    counts = Counter(point.state for point in points)
    head = ", ".join(f"{counts[state]} {state}" for state in JobState if counts[state])
    if len(points) == 1:
        head = str(points[0].state) + (f": trials {', '.join(map(str, trials))}" if len(trials) > 1 else "")
        head = f"trial {trials[0]}: {head}" if len(trials) == 1 else head
    lines = [f"{text(name, 24)} = {_word(points[0], name)}" for name in cells.names]
    if values := _values(series, points):
        lines.append(f"{'best ' * (len(values) > 1)}{text(series.metric, 24)} {number(_best(series, values))}")
    return "<br>".join([head, *lines])
