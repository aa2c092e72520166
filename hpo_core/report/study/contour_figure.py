"""The metric over the two most important parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter
from hpo_core.report.scale import Scale, scale
from hpo_core.report.series import Series
from hpo_core.report.study.importance import Importances
from hpo_core.report.study.parameters import WORST_TO_BEST, axis_ticks, position
from hpo_core.report.style import BEST, DARKER, Figure, axis, layout, rounded, text
from hpo_core.views.formatting import number

GRID = 32
"""Places along a parameter of numbers."""
WIDTH = 0.1
"""Of the kernel, as a share of a parameter's range: how far a result says something about its neighbours."""
SUPPORT = 0.3
"""Less weight of results than this near a place leaves it empty: nobody tried anything there."""
RESULTS = 600
"""Results smoothed over at most; of more, every so many-th."""

Point = tuple[float, float, float]
"""Places of both parameters, as shares of their ranges, and of the metric on its axis."""


def contour(series: Series, found: Importances) -> Figure | None:
    """A smoothed picture of the results at one resource, and the results themselves as dots."""
    space = series.study.spec.search_space().parameters
    names = [name for name in found.shares if name in space and _varies(space[name])][:2]
    if not found.enough or len(names) < 2:
        return None
    known = [
        (trial, series.study.metric_value(result.loss))
        for trial in series.trials
        for result in trial.results
        if result.resource == found.resource and result.loss is not None and all(n in trial.params for n in names)
    ]
    known = known[:: -(-len(known) // RESULTS) or 1]
    if len(known) < 10:
        return None
    drawn = scale((value for _, value in known), maximize=series.maximize)
    across, up = (_Side(name, space[name]) for name in names)
    low, high = drawn.place(drawn.low), drawn.place(drawn.high)
    points = [
        (
            across.share(trial.params[names[0]]),
            up.share(trial.params[names[1]]),
            min(max(drawn.place(value), low), high),
        )
        for trial, value in known
    ]
    surface = _smoothed(points, across, up)
    best = series.study.best
    winner = [(t, v) for t, v in known if best is not None and t.number == best.trial]
    data: list[dict[str, Any]] = [
        _surface(surface, across, up, drawn=drawn, series=series, ends=(low, high)),
        _dots(known, names, across, up, legend="results", marker={"color": "#1f2933", "size": 5, "opacity": 0.75}),
    ]
    if winner:
        marker = {"color": BEST, "size": 12}
        data.append(_dots(winner, names, across, up, legend=f"trial {winner[0][0].number}, the best", marker=marker))
    caption = (
        f"The two parameters that matter most, and {text(series.metric)} at resource {found.resource:,}: {DARKER} is "
        "better. The surface is smoothed between the results, which are the dots; it is empty where none is near."
    )
    shape = layout(500, xaxis=across.axis(), yaxis=up.axis())
    below = {"orientation": "h", "y": -0.22, "yanchor": "top", "title": {"side": "bottom"}}
    narrow = {"layout": {"height": 540}, "traces": {0: {"colorbar": below}}}
    return Figure("contour", "Two parameters together", caption, data, shape, narrow=narrow)


def _varies(parameter: Parameter) -> bool:
    if isinstance(parameter, ListedParameter):
        return len(parameter.listed()) > 1
    return not isinstance(parameter, NumberParameter) or parameter.ends[0] < parameter.ends[1]


class _Side:
    """One parameter of the two: its axis, and places along it as shares of its range."""

    def __init__(self, name: str, parameter: Parameter) -> None:
        self.name, self.parameter = name, parameter
        self.ticks, self.words, self.low, self.high, self.log = axis_ticks(parameter)
        self.listed = isinstance(parameter, ListedParameter)
        self.places = (
            self.ticks if self.listed else [self.low + (self.high - self.low) * k / (GRID - 1) for k in range(GRID)]
        )

    def place(self, value: Any) -> float:
        return position(self.parameter, value, self.log)

    def share(self, value: Any) -> float:
        return self.share_of(self.place(value))

    def share_of(self, place: float) -> float:
        return (place - self.low) / (self.high - self.low)

    def axis(self) -> dict[str, Any]:
        pad = 0.5 if self.listed else 0.0
        every = 1 if self.listed else -(-len(self.ticks) // 8)
        return axis(
            f"<b>{text(self.name, 30)}</b>",
            range=[self.low - pad, self.high + pad],
            tickvals=self.ticks[::every],
            ticktext=self.words[::every],
        )


def _smoothed(points: Sequence[Point], across: _Side, up: _Side) -> list[list[float | None]]:
    """A weighted mean at each place of the grid; choices are not neighbours of each other."""
    columns = [_weights([x for x, _, _ in points], across.share_of(place), across.listed) for place in across.places]
    rows = [_weights([y for _, y, _ in points], up.share_of(place), up.listed) for place in up.places]
    values = [value for _, _, value in points]
    surface: list[list[float | None]] = []
    for row in rows:
        line: list[float | None] = []
        for column in columns:
            weights = [a * b for a, b in zip(row, column, strict=True)]
            total = math.fsum(weights)
            mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total if total > SUPPORT else None
            line.append(None if mean is None else rounded(mean))
        surface.append(line)
    return surface


def _weights(shares: Sequence[float], place: float, listed: bool) -> list[float]:
    if listed:
        return [1.0 if abs(share - place) < 1e-9 else 0.0 for share in shares]
    return [math.exp(-0.5 * ((share - place) / WIDTH) ** 2) for share in shares]


def _surface(
    surface: list[list[float | None]],
    across: _Side,
    up: _Side,
    *,
    drawn: Scale,
    series: Series,
    ends: tuple[float, float],
) -> dict[str, Any]:
    known = [value for row in surface for value in row if value is not None]
    low, high = (min(known), max(known)) if known else ends
    ticks = [drawn.place(tick) for tick in drawn.ticks(low, high)][:8]
    colors = WORST_TO_BEST if series.maximize else [[1 - at, color] for at, color in reversed(WORST_TO_BEST)]  # type: ignore[operator]
    trace: dict[str, Any] = {
        "type": "heatmap" if across.listed or up.listed else "contour",
        "x": across.places,
        "y": up.places,
        "z": surface,
        "colorscale": colors,
        "hoverinfo": "none",
        "showlegend": False,
        "colorbar": {
            "title": {"text": text(series.metric, 16), "side": "top"},
            "tickvals": ticks,
            "ticktext": [number(10**tick if drawn.log else tick) for tick in ticks],
            "thickness": 12,
            "outlinewidth": 0,
        },
    }
    if trace["type"] == "contour":
        trace |= {"line": {"width": 0.5, "color": "#ffffff"}, "ncontours": 14}
    return trace


def _dots(
    known: Sequence[tuple[Any, float]],
    names: Sequence[str],
    across: _Side,
    up: _Side,
    *,
    legend: str,
    marker: dict[str, Any],
) -> dict[str, Any]:
    def nudge(side: _Side, trial: int, turn: float) -> float:
        """Equal choices lie on top of each other: spread them by what follows from the trial's number."""
        return (trial * turn % 1 - 0.5) * 0.5 if side.listed else 0.0

    return {
        "type": "scatter",
        "mode": "markers",
        "name": legend,
        "x": [rounded(across.place(t.params[names[0]]) + nudge(across, t.number, 0.618034)) for t, _ in known],
        "y": [rounded(up.place(t.params[names[1]]) + nudge(up, t.number, 0.754878)) for t, _ in known],
        "text": [
            f"trial {t.number}: {number(v)}<br>"
            + "<br>".join(f"{text(name, 24)} = {text(t.params[name], 24)}" for name in names)
            for t, v in known
        ],
        "hoverinfo": "text",
        "marker": {**marker, "line": {"width": 1, "color": "#ffffff"}},
    }
