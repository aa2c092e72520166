"""Parallel coordinates of all parameters, and the axis of one parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter, same_scalar
from hpo_core.report.scale import log_ticks, round_ticks, scale, ticks_with_ends
from hpo_core.report.series import Series
from hpo_core.report.style import DARKER, Figure, layout, rounded, text
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import number

LINES = 500
AXES = 12
NARROW_AXES = 2
WORST_TO_BEST = [[0, "#dfe5ec"], [0.3, "#a9c8ea"], [0.65, "#1c6dd0"], [1, "#0b2f6b"]]


def parallel_coordinates(series: Series, order: Sequence[str]) -> Figure | None:
    """Every trial a line through its parameters, coloured by its final value."""
    ranked = [trial for trial in series.ranked_trials() if trial.loss is not None]
    if len(ranked) < 2:
        return None
    shown = sorted(ranked, key=lambda t: (-series.reached(t), t.loss))[:LINES]
    names = list(order)[:AXES]
    finals = [series.final(trial) or 0.0 for trial in shown]
    drawn = scale(finals, maximize=series.maximize)
    low, high = drawn.place(drawn.low), drawn.place(drawn.high)
    placed = [min(max(drawn.place(value), low), high) for value in finals]
    ranges = series.study.spec.search_space().parameters
    dimensions = [_dimension(name, ranges[name], shown) for name in names]
    levels = series.levels
    if len(levels) > 1:
        dimensions.append(
            {
                "label": "trained for",
                "values": [series.reached(trial) for trial in shown],
                "range": [0, len(levels) - 1],
                "tickvals": list(range(len(levels))),
                "ticktext": [f"{level:,}" for level in levels],
            }
        )
    spread = ticks_with_ends(low, high, [drawn.place(at) for at in drawn.ticks(low, high)])
    ticks = {"tickvals": spread, "ticktext": [number(10**at if drawn.log else at) for at in spread]}
    pad = 0 if high > low else 0.5
    dimensions.append(
        {
            "label": text(series.metric, 15),
            "values": [rounded(at) for at in placed],
            "range": [low - pad, high + pad],
            **ticks,
        }
    )
    good = [rounded(at if series.maximize else -at) for at in placed]  # Plotly draws larger colours on top
    ends = sorted([low - pad, high + pad] if series.maximize else [-high - pad, -low + pad])
    data: list[dict[str, Any]] = [
        {
            "type": "parcoords",
            "dimensions": dimensions,
            "labelangle": 0,
            "labelside": "top",
            "labelfont": {"size": 12},
            "tickfont": {"size": 11},
            "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
            "line": {
                "color": good,
                "colorscale": WORST_TO_BEST,
                "cmin": ends[0],
                "cmax": ends[1],
            },
        }
    ]
    few = f" Of {len(ranked):,} the {LINES} trained longest are drawn." if len(shown) < len(ranked) else ""
    left_out = f" {len(order) - AXES} less important parameters are left out." if len(order) > AXES else ""
    unused = (
        " Lines through <i>off</i> do not use that parameter."
        if any(name not in trial.params for name in names for trial in shown)
        else ""
    )
    caption = (
        f"Each line is a trial from its parameters to its final value, the {DARKER} the better; drag along an axis "
        f"to keep only the lines through that stretch.{unused}{few}{left_out}"
    )
    shape = layout(440, margin={"l": 70, "r": 60, "t": 60, "b": 30})
    few_axes = [*range(min(NARROW_AXES, len(names))), len(dimensions) - 1]
    if len(few_axes) < len(dimensions):
        caption += " A narrow window shows the most important parameters alone."
    return Figure(
        "parallel",
        "Parameters and results",
        caption,
        data,
        shape,
        min_width=110 * len(dimensions),
        zoom=False,
        narrow={"layout": {"margin": {"l": 46, "r": 40}}, "dimensions": few_axes},
    )


def _dimension(name: str, parameter: Parameter, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    ticks, words, low, high, log = axis_ticks(parameter)
    values = [position(parameter, trial.params[name], log) if name in trial.params else None for trial in trials]
    if None in values:  # inactive: one place below the axis
        off = low - 0.14 * (high - low)
        ticks, words, low = [off, *ticks], ["off", *words], off
        values = [off if value is None else value for value in values]
    return {
        "label": text(name, 15),
        "values": [rounded(v) for v in values if v is not None],
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": words,
    }


def axis_ticks(parameter: Parameter) -> tuple[list[float], list[str], float, float, bool]:
    """Ticks, their words, ends of the axis, and whether positions are logarithms."""
    if isinstance(parameter, ListedParameter):
        last = len(parameter.listed()) - 1
        places = [float(k) for k in range(last + 1)]
        words = [text(choice, 16) for choice in parameter.listed()]
        return places, words, 0.0 if last else -0.5, last or 0.5, False
    assert isinstance(parameter, NumberParameter)
    low, high = parameter.ends
    if low == high:
        return [low], [number(low)], low - 0.5, high + 0.5, False
    if parameter.log:
        first, last_ = math.log10(low), math.log10(high)
        places = [math.log10(tick) for tick in log_ticks(first, last_)]
        ticks = ticks_with_ends(first, last_, places)
        return ticks, [number(float(f"{10**tick:.6g}")) for tick in ticks], first, last_, True
    ticks = round_ticks(low, high)
    if parameter.whole:
        ticks = [tick for tick in ticks if tick.is_integer()] or [low, high]
    ticks = ticks_with_ends(low, high, ticks)
    return ticks, [number(tick) for tick in ticks], low, high, False


def position(parameter: Parameter, value: Any, log: bool) -> float:
    if isinstance(parameter, ListedParameter):
        same = [same_scalar(item, value) for item in parameter.listed()]
        return float(same.index(True)) if True in same else 0.0
    return math.log10(value) if log else float(value)
