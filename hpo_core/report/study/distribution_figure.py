"""Which share of trials is how good: the empirical distribution of the metric, one line per level."""

from __future__ import annotations

from typing import Any

from hpo_core.report.scale import scale
from hpo_core.report.series import Series
from hpo_core.report.study.learning_curves import CUT
from hpo_core.report.style import Figure, axis, layout, level_color, rounded, text
from hpo_core.views.formatting import number

LEVELS = 8
"""Lines at most; of more levels the lowest, the highest and some between them."""
STEPS = 300
"""Points of a line."""
ENOUGH = 5
"""Fewer results make no line."""


def distribution(series: Series) -> Figure | None:
    """The share of results at a level that are at least as good as a value."""
    by_level: dict[int, list[float]] = {}
    for trial in series.trials:
        for result in trial.results:
            if result.loss is not None:
                level = 0 if series.lineage is not None else series.level(result.resource)
                by_level.setdefault(level, []).append(series.study.metric_value(result.loss))
    known = [level for level in sorted(by_level) if len(by_level[level]) >= ENOUGH]
    if not known:
        return None
    step = -(-len(known) // LEVELS)
    shown = sorted({*known[::step], known[-1]})
    drawn = scale((value for level in shown for value in by_level[level]), maximize=series.maximize)
    data: list[dict[str, Any]] = []
    for level in shown:
        name = "all results" if series.lineage is not None else f"at {series.levels[level]:,}"
        color = level_color(len(series.levels) - 1 if len(shown) == 1 else level, len(series.levels))
        name = f"{name} ({len(by_level[level]):,})"
        data.append(distribution_line(by_level[level], name, color, maximize=series.maximize))
    better = "at least" if series.maximize else "at most"
    levels = ", one line per resource trained to" if len(shown) > 1 else ""
    caption = (
        f"The share of results whose {text(series.metric)} is {better} the value below{levels}: the further a line "
        f"lies to the {'right' if series.maximize else 'left'}, the better they are.{CUT if drawn.cut else ''}"
    )
    shape = layout(
        380,
        xaxis=drawn.axis(text(series.metric)),
        yaxis=axis("share of results", tickformat=".0%", range=[0, 1.03]),
    )
    return Figure("distribution", "Distribution of results", caption, data, shape)


def distribution_line(values: list[float], name: str, color: str, *, maximize: bool) -> dict[str, Any]:
    """The empirical distribution as a step line; of many values some are drawn."""
    ordered = sorted(values, reverse=maximize)
    count = len(ordered)
    places = sorted(
        {round(k * (count - 1) / (min(count, STEPS) - 1)) for k in range(min(count, STEPS))} if count > 1 else {0}
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text(name, 60),
        "x": [rounded(ordered[k]) for k in places],
        "y": [round((k + 1) / count, 4) for k in places],
        "text": [f"{100 * (k + 1) / count:.0f}% up to {number(ordered[k])}" for k in places],
        "hoverinfo": "text+name",
        "line": {"color": color, "width": 2.2, "shape": "hv" if not maximize else "vh"},
    }
