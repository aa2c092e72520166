"""A grid study as maps: the state of each point (HyperSack, Figure 7), and its metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpo_core.model.space import Parameter, scalar_key
from hpo_core.report.scale import Scale, scale
from hpo_core.report.series import Series
from hpo_core.report.study.parameters import WORST_TO_BEST, position
from hpo_core.report.style import CANDIDATE, DARKER, FAILED, Figure, axis, layout, rounded, text
from hpo_core.views.formatting import number
from hpo_core.views.grid_states import GridPoint, JobState, grid_points, grid_states, joint_state

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


COLORS = {
    JobState.PENDING: "#dfe5ec",
    JobState.IN_PROGRESS: CANDIDATE,
    JobState.COMPLETE: "#3aa76d",
    JobState.FAILED: FAILED,
}
_CELL, _TALLEST, _GAP, _AROUND = 32, 460, 46, 118
"""Pixels: of a cell's height and of a panel's at most, between two panels, and around all."""


def grid_figures(series: Series) -> list[Figure | None]:
    """The maps of a grid study; none for another method, and for a very large grid."""
    points = grid_points(series.study)
    if len(points) < 2:
        return []
    cells = GridCells(series.study.spec.search_space().parameters, points)
    return [_states(series, cells), _metric(series, cells)]


def _states(series: Series, cells: GridCells) -> Figure:
    counts = grid_states(series.study)
    steps = [share for k in range(len(COLORS)) for share in (k / len(COLORS), (k + 1) / len(COLORS))]
    shade = {
        "colorscale": [[share, list(COLORS.values())[k // 2]] for k, share in enumerate(steps)],
        "zmin": -0.5,
        "zmax": len(COLORS) - 0.5,
        "showscale": False,
    }
    order = list(COLORS)

    def state(points: Sequence[GridPoint]) -> float | None:
        return order.index(joint_state([point.state for point in points])) if points else None

    legend = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": state_,
            "x": [None],
            "y": [None],
            "marker": {"color": color, "size": 12, "symbol": "square"},
            "hoverinfo": "skip",
        }
        for state_, color in COLORS.items()
    ]
    data, shape = _maps(series, cells, state, shade)
    title = f"The grid: {counts.words}" if counts is not None else "The grid"
    caption = (
        "Each cell is a configuration. In progress is one that was granted; failed one whose last attempt failed: it "
        "is tried again, or was abandoned."
    )
    caption += _together(cells, "It is failed where one of them is, complete where all are.")
    return Figure("grid-states", title, caption, [*data, *legend], shape, zoom=False, narrow=_narrow(cells))


def _metric(series: Series, cells: GridCells) -> Figure | None:
    """Coloured by the metric; None before there are two results that differ."""
    values = [value for panel in cells.panels for row in panel for cell in row for value in _values(series, cell)]
    if len(set(values)) < 2:
        return None
    drawn = scale(values, maximize=series.maximize)
    low, high = drawn.place(drawn.low), drawn.place(drawn.high)

    def best(points: Sequence[GridPoint]) -> float | None:
        own = _values(series, points)
        return rounded(min(max(drawn.place(_best(series, own)), low), high)) if own else None

    data, shape = _maps(series, cells, best, {"coloraxis": "coloraxis"})
    shape["coloraxis"] = _colors(series, drawn, shape["height"] - _AROUND)
    shape["margin"] |= {"r": 80}
    below = {"orientation": "h", "x": 0.5, "y": -90 / (shape["height"] - _AROUND), "yanchor": "top"}
    narrow = _narrow(cells)
    narrow["layout"] |= {
        "height": shape["height"] + 70,
        "margin": {"r": 20, "b": 130},
        "coloraxis": {"colorbar": below | {"title": {"side": "bottom"}}},
    }
    metric = text(series.metric, 30)
    caption = (
        f"{metric} of each configuration where it has a result: {DARKER} is better."
        f"{_together(cells, 'It shows the best of them.')}"
    )
    return Figure("grid-metric", f"The grid by {metric}", caption, data, shape, zoom=False, narrow=narrow)


def _together(cells: GridCells, rule: str) -> str:
    names = ", ".join(text(name, 24) for name in cells.summed)
    return f" A cell holds all values of {names}. {rule}" if names else ""


def _values(series: Series, points: Sequence[GridPoint]) -> list[float]:
    found = [series.final(series.trials[trial]) for point in points for trial in point.trials]
    return [value for value in found if value is not None]


def _best(series: Series, values: Sequence[float]) -> float:
    return max(values) if series.maximize else min(values)


def _colors(series: Series, drawn: Scale, height: int) -> dict[str, Any]:
    low, high = drawn.place(drawn.low), drawn.place(drawn.high)
    ticks = [drawn.place(tick) for tick in drawn.ticks(drawn.low, drawn.high)]
    ticks = ticks[:: -(-len(ticks) // max(3, min(8, height // 28)))]
    colors = WORST_TO_BEST if series.maximize else [[1 - at, color] for at, color in reversed(WORST_TO_BEST)]  # type: ignore[operator]
    return {
        "colorscale": colors,
        "cmin": low,
        "cmax": high,
        "colorbar": {
            "title": {"text": text(series.metric, 16), "side": "top"},
            "tickvals": ticks,
            "ticktext": [number(10**tick if drawn.log else tick) for tick in ticks],
            "thickness": 12,
            "outlinewidth": 0,
        },
    }


def _maps(
    series: Series, cells: GridCells, shade: Callable[[Sequence[GridPoint]], float | None], colors: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A heat map per panel, one below the other, and their layout."""
    panel = min(_TALLEST, max(_CELL * len(cells.up), 2 * _CELL if len(cells.panels) > 1 else 5 * _CELL))
    plot = len(cells.panels) * (panel + _GAP) - _GAP
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    notes = []
    for place, rows in enumerate(cells.panels):
        key = "" if place == 0 else str(place + 1)
        top = 1 - place * (panel + _GAP) / plot
        is_last = place == len(cells.panels) - 1
        thin = len(cells.across) * len(cells.up) > 2500
        data.append(
            {
                "type": "heatmap",
                "z": [[shade(cell) for cell in row] for row in rows],
                "text": [[_words(series, cells, cell) for cell in row] for row in rows],
                "hoverinfo": "text",
                "xaxis": f"x{key}",
                "yaxis": f"y{key}",
                "xgap": 0 if thin else 2,
                "ygap": 0 if thin else 2,
                **colors,
            }
        )
        axes[f"xaxis{key}"] = _axis(cells.across.words, cells.across.name * is_last, 12) | {
            "anchor": f"y{key}",
            "showticklabels": is_last,
        }
        axes[f"yaxis{key}"] = _axis(cells.up.words, cells.up.name, panel // 18) | {
            "anchor": f"x{key}",
            "domain": [max(0.0, top - panel / plot), top],
        }
        if cells.panel.name:
            words = f"<b>{text(cells.panel.name, 24)} = {cells.panel.words[place]}</b>"
            at = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
            notes.append({"text": words, **at, "showarrow": False, "font": {"size": 12}})
    shape = layout(plot + _AROUND, **axes, annotations=notes)
    shape["margin"] |= {"t": 46}
    shape["legend"] |= {"y": 1 + (24 if notes else 6) / plot, "itemsizing": "constant"}
    return data, shape


def _narrow(cells: GridCells) -> dict[str, Any]:
    """On a narrow screen: fewer values along the axis, so that they stay level."""
    last = "" if len(cells.panels) == 1 else str(len(cells.panels))
    thinned = _axis(cells.across.words, "", 5)
    return {"layout": {f"xaxis{last}": {name: thinned[name] for name in ("tickvals", "ticktext")} | {"tickangle": 0}}}


def _axis(words: Sequence[str], name: str, most: int) -> dict[str, Any]:
    every = max(1, -(-len(words) // max(most, 1)))
    title = f"<b>{text(name, 30)}</b>" if name else ""
    shown = list(range(0, len(words), every))
    return axis(
        title, range=[-0.5, len(words) - 0.5], tickvals=shown, ticktext=[words[k] for k in shown], showgrid=False
    )


def _words(series: Series, cells: GridCells, points: Sequence[GridPoint]) -> str:
    """What the mouse shows of a cell; of one trial it begins with its number, by which a click finds it."""
    if not points:
        return "no point of the grid"
    trials = [trial for point in points for trial in point.trials]
    counts = Counter(point.state for point in points)
    states = ", ".join(f"{counts[state]} {state}" for state in JobState if counts[state])
    head = f"trial {trials[0]}: {points[0].state}" if len(points) == len(trials) == 1 else states
    if len(points) == 1 and len(trials) != 1:
        head = f"{points[0].state}" + (f": trials {', '.join(map(str, trials))}" if trials else "")
    params = points[0].params
    sides = [side for side in (cells.across, cells.up, cells.panel) if side.name]
    lines = [f"{text(side.name, 24)} = {text(params.get(side.name, '–'), 24)}" for side in sides]
    values = _values(series, points)
    best = [f"{'best ' * (len(values) > 1)}{text(series.metric, 24)} {number(_best(series, values))}"] if values else []
    return "<br>".join([head, *lines, *best])
