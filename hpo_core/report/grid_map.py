"""A grid study as maps: the state of each point (HyperSack, Figure 7), and its metric.

Two parameters are the axes of a map, a third one makes panels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpo_core.model.space import Parameter, scalar_key
from hpo_core.report.parameters import ParameterAxis
from hpo_core.report.series import Series
from hpo_core.report.style import (
    CANDIDATE,
    DARKER,
    FAILED,
    Figure,
    Trace,
    axis,
    axis_key,
    layout,
    panels,
    rounded,
    scale,
    text,
    word,
)
from hpo_core.views.formatting import number
from hpo_core.views.grid_states import GridPoint, JobState, grid_points, grid_states, joint_state

PANELS = 8
"""Values of a third parameter that have a panel each; of more, its points fall together in one cell."""
COLORS = {
    JobState.PENDING: "#dfe5ec",
    JobState.IN_PROGRESS: CANDIDATE,
    JobState.COMPLETE: "#3aa76d",
    JobState.FAILED: FAILED,
}
_CELL, _TALLEST, _GAP, _AROUND = 32, 460, 46, 118
"""Pixels: a cell's height, a panel's at most, between two panels, and around all."""


class Side:
    """The values that a parameter takes on the grid, in its own order; no parameter has one value."""

    def __init__(self, name: str = "", parameter: Parameter | None = None, points: Sequence[GridPoint] = ()) -> None:
        self.name = name
        values = {self._key(point): point.params.get(name) for point in points} if name else {None: None}
        keys = list(values)
        if parameter is not None:
            along = ParameterAxis(name, parameter)
            keys.sort(key=lambda key: -1e300 if key is None else along.place(values[key]))
        self._places = {key: place for place, key in enumerate(keys)}
        self.words = [word(values[key], 14) if name else "" for key in keys]

    def __len__(self) -> int:
        return len(self.words)

    def _key(self, point: GridPoint) -> Any:
        return scalar_key(point.params[self.name]) if self.name in point.params else None

    def place(self, point: GridPoint) -> int:
        """Number of the point's value."""
        return self._places[self._key(point)]

    def axis(self, *, titled: bool = True, most: int) -> dict[str, Any]:
        """The axis with about ``most`` of its values."""
        shown = list(range(0, len(self), max(1, -(-len(self) // max(most, 1)))))
        return axis(
            f"<b>{text(self.name, 30)}</b>" if self.name and titled else "",
            range=[-0.5, len(self) - 0.5],
            tickvals=shown,
            ticktext=[self.words[k] for k in shown],
            showgrid=False,
        )


class GridCells:
    """All points over the two parameters with most values; a third one, of few values, makes panels.

    Points that differ in further parameters alone fall together in one cell.
    """

    def __init__(self, space: Mapping[str, Parameter], points: Sequence[GridPoint]) -> None:
        used = [name for name in space if any(name in point.params for point in points)]
        sides = sorted((Side(name, space[name], points) for name in used), key=lambda side: -len(side))
        self.across = sides[0] if sides else Side()
        self.up = sides[1] if len(sides) > 1 and len(sides[1]) > 1 else Side()
        others = [side for side in sides[2:] if len(side) > 1]
        self.panel = next((side for side in others if len(side) <= PANELS), Side())
        self.summed = [side.name for side in others if side is not self.panel]
        self.panels: list[list[list[list[GridPoint]]]] = [
            [[[] for _ in range(len(self.across))] for _ in range(len(self.up))] for _ in range(len(self.panel))
        ]
        for point in points:
            self.panels[self.panel.place(point)][self.up.place(point)][self.across.place(point)].append(point)

    def together(self, rule: str) -> str:
        """Sentence about cells that hold several points; empty where none does."""
        names = ", ".join(text(name, 24) for name in self.summed)
        return f" A cell holds all values of {names}. {rule}" if names else ""


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
    shade = {"colorscale": colors, "zmin": -0.5, "zmax": many - 0.5, "showscale": False}

    def state(points: Sequence[GridPoint]) -> float | None:
        return order.index(joint_state([point.state for point in points])) if points else None

    data, shape = _maps(series, cells, state, shade)
    data += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [None],
            "y": [None],
            "marker": {"color": color, "size": 12, "symbol": "square"},
            "hoverinfo": "skip",
        }
        for name, color in COLORS.items()
    ]
    counts = grid_states(series.study)
    title = f"The grid: {counts.words}" if counts is not None else "The grid"
    rule = "It is failed where one of them is, complete where all are."
    caption = (
        "Each cell is a configuration. In progress is one that was granted; failed one whose last attempt failed: it "
        f"is tried again, or was abandoned.{cells.together(rule)}"
    )
    return Figure("grid-states", title, caption, data, shape, zoom=False, narrow={"layout": _narrow(cells)})


def _metric(series: Series, cells: GridCells) -> Figure | None:
    values = [value for panel in cells.panels for row in panel for cell in row for value in _values(series, cell)]
    if len(set(values)) < 2:
        return None
    drawn = scale(values, maximize=series.maximize)

    def best(points: Sequence[GridPoint]) -> float | None:
        own = _values(series, points)
        return rounded(drawn.place(_best(series, own))) if own else None

    data, shape = _maps(series, cells, best, {"coloraxis": "coloraxis"})
    height = shape["height"] - _AROUND
    low, high = drawn.ends
    most = max(3, min(8, height // 28))
    shape["coloraxis"] = drawn.colors(series.metric, maximize=series.maximize, most=most) | {"cmin": low, "cmax": high}
    shape["margin"] |= {"r": 80}
    below = {"orientation": "h", "x": 0.5, "y": -90 / height, "yanchor": "top", "title": {"side": "bottom"}}
    narrow = _narrow(cells) | {
        "height": shape["height"] + 70,
        "margin": {"r": 20, "b": 130},
        "coloraxis": {"colorbar": below},
    }
    caption = (
        f"{text(series.metric, 30)} of each configuration where it has a result: {DARKER} is better."
        f"{cells.together('It shows the best of them.')}"
    )
    title = f"The grid by {series.metric[:30]}"
    return Figure("grid-metric", title, caption, data, shape, zoom=False, narrow={"layout": narrow})


def _values(series: Series, points: Sequence[GridPoint]) -> list[float]:
    found = [series.final(series.trials[trial]) for point in points for trial in point.trials]
    return [value for value in found if value is not None]


def _best(series: Series, values: Sequence[float]) -> float:
    return max(values) if series.maximize else min(values)


def _maps(
    series: Series, cells: GridCells, shade: Callable[[Sequence[GridPoint]], float | None], colors: dict[str, Any]
) -> tuple[list[Trace], dict[str, Any]]:
    count = len(cells.panels)
    panel = min(_TALLEST, max(_CELL * len(cells.up), 2 * _CELL if count > 1 else 5 * _CELL))
    name = text(cells.panel.name, 24)
    titles = [f"<b>{name} = {value}</b>" for value in cells.panel.words] if cells.panel.name else ()
    shape = panels(count, 1, height=panel, gap=_GAP, titles=titles)
    gap = 0 if len(cells.across) * len(cells.up) > 2500 else 2
    data: list[Trace] = []
    for place, rows in enumerate(cells.panels):
        key, is_last = axis_key(place), place == count - 1
        data.append(
            {
                "type": "heatmap",
                "z": [[shade(cell) for cell in row] for row in rows],
                "text": [[_words(series, cells, cell) for cell in row] for row in rows],
                "hoverinfo": "text",
                "xaxis": f"x{key}",
                "yaxis": f"y{key}",
                "xgap": gap,
                "ygap": gap,
                **colors,
            }
        )
        shape[f"xaxis{key}"] |= cells.across.axis(titled=is_last, most=12) | {"showticklabels": is_last}
        shape[f"yaxis{key}"] |= cells.up.axis(most=panel // 18)
    plot = shape.pop("height")
    made = layout(plot + _AROUND, **shape)
    made["margin"] |= {"t": 46}
    made["legend"] |= {"y": 1 + (24 if titles else 6) / plot, "itemsizing": "constant"}
    return data, made


def _narrow(cells: GridCells) -> dict[str, Any]:
    thinned = cells.across.axis(titled=False, most=5)
    ticks = {name: thinned[name] for name in ("tickvals", "ticktext")} | {"tickangle": 0}
    return {f"xaxis{axis_key(len(cells.panels) - 1)}": ticks}


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
    sides = [side for side in (cells.across, cells.up, cells.panel) if side.name]
    lines = [f"{text(side.name, 24)} = {text(points[0].params.get(side.name, '–'), 24)}" for side in sides]
    if values := _values(series, points):
        lines.append(f"{'best ' * (len(values) > 1)}{text(series.metric, 24)} {number(_best(series, values))}")
    return "<br>".join([head, *lines])
