"""Several objectives: all results with the Pareto front marked, and a table of its members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpo_core.model.events import JobCompleted
from hpo_core.report.scale import Scale, scale
from hpo_core.report.series import Series
from hpo_core.report.study_page import table, value
from hpo_core.report.style import BEST, Figure, layout, level_color, rounded, text
from hpo_core.spec import MetricSpec
from hpo_core.state import Incumbent, is_complete
from hpo_core.views.formatting import number
from hpo_core.views.summary import front_members, front_rows, values_of

COLUMNS = 2
DOTS = 3_000
"""Results drawn in all; the lower rungs are thinned."""
ROWS = 50


def front_figure(series: Series) -> Figure | None:
    """Results in pairs of objectives, each further one against the first; the front in orange."""
    study = series.study
    first, *others = study.spec.objectives
    front = study.state.front
    if not others or not front:
        return None
    results = [
        result for trial in series.trials for result in trial.all_results if result.losses and is_complete(result)
    ]
    scales = [_scale(series, results, i) for i in range(len(others) + 1)]
    columns = min(COLUMNS, len(others))
    rows = -(-len(others) // columns)
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for at, metric in enumerate(others):
        key = "" if at == 0 else str(at + 1)
        row, column = divmod(at, columns)
        gap, top = (0.05 if columns > 1 else 0.0), 1 - row / rows
        axes[f"xaxis{key}"] = scales[at + 1].axis(_title(metric)) | {
            "domain": [column / columns + gap * (column > 0), (column + 1) / columns - gap * (column < columns - 1)],
            "anchor": f"y{key}",
        }
        low = top - 1 / rows + (0.3 / rows if row < rows - 1 else 0.0)
        axes[f"yaxis{key}"] = scales[0].axis(_title(first)) | {"domain": [low, top], "anchor": f"x{key}"}
        for level, resource in enumerate(series.levels):
            here = [result for result in results if series.level(result.resource) == level]
            step = -(-len(here) * len(series.levels) // DOTS) or 1
            if here:
                color = level_color(level, len(series.levels))
                data.append(_dots(series, here[::step], at + 1, key=key, name=f"results at {resource:,}", color=color))
        data.append(_front(series, front, at + 1, key))
    lines = " The line parts what the front beats from what nobody reached." if len(others) == 1 else ""
    cut = " Values far beyond the others lie outside; double-click shows them." if any(s.cut for s in scales) else ""
    caption = (
        "Every dot is a result. Those in orange are the Pareto front: no other result is at least as good in every "
        f"objective and better in one.{lines}{cut}"
    )
    shape = layout(60 + (420 if rows == 1 else 340 * rows), **axes)
    narrow: dict[str, Any] | None = None
    if columns > 1:
        narrow = {"layout": {"height": 80 + 320 * len(others)}}
        for at in range(len(others)):
            key, low = "" if at == 0 else str(at + 1), 1 - (at + 1) / len(others)
            narrow["layout"] |= {
                f"xaxis{key}": {"domain": [0, 1]},
                f"yaxis{key}": {"domain": [low + 0.2 / len(others), low + 1 / len(others)]},
            }
    return Figure(
        "front", _heading(len(front)), caption, data, shape, min_width=0 if columns == 1 else 640, narrow=narrow
    )


def _heading(many: int) -> str:
    return f"Pareto front: {many} result{'' if many == 1 else 's'}"


def _title(metric: MetricSpec) -> str:
    better = "lower" if metric.mode == "min" else "higher"
    return f"{text(metric.name, 30)} ({better} is better)"


def _scale(series: Series, results: list[JobCompleted], i: int) -> Scale:
    """An axis that shows the whole front, also where it lies far from the other results."""
    metric = series.study.spec.objectives[i]
    drawn = scale((result.losses[i] * metric.sign for result in results), maximize=metric.mode == "max")
    shown = [member.losses[i] * metric.sign for member in series.study.state.front]
    return replace(drawn, low=min(drawn.low, *shown), high=max(drawn.high, *shown))


def _dots(series: Series, results: list[JobCompleted], i: int, *, key: str, name: str, color: str) -> dict[str, Any]:
    first, other = series.study.spec.objectives[0], series.study.spec.objectives[i]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "showlegend": not key,
        "x": [rounded(result.losses[i] * other.sign) for result in results],
        "y": [rounded(result.losses[0] * first.sign) for result in results],
        "xaxis": f"x{key}",
        "yaxis": f"y{key}",
        "hoverinfo": "text",
        "text": [f"trial {result.trial} at {result.resource:,}" for result in results],
        "marker": {"color": color, "size": 6, "opacity": 0.85},
    }


def _front(series: Series, front: list[Incumbent], i: int, key: str) -> dict[str, Any]:
    """Its members, from the best to the worst in objective ``i``; two objectives make it a staircase."""
    spec = series.study.spec
    several = len(spec.objectives) > 2
    members = sorted(front, key=lambda member: (member.losses[i], member.losses[0]))
    values = [list(values_of(spec, member).values()) for member in members]
    words = [
        f"trial {member.trial} at {member.resource:,}<br>"
        + "<br>".join(f"{text(name, 30)} {number(item)}" for name, item in values_of(spec, member).items())
        for member in members
    ]
    return {
        "type": "scatter",
        "mode": "markers" if several else "lines+markers",
        "name": "Pareto front",
        "legendgroup": "front",
        "showlegend": not key,
        "text": words,
        "hoverinfo": "text",
        "x": [rounded(row[i]) for row in values],
        "y": [rounded(row[0]) for row in values],
        "xaxis": f"x{key}",
        "yaxis": f"y{key}",
        "line": {"shape": "hv", "color": BEST, "width": 2},
        "marker": {"color": BEST, "size": 10, "line": {"color": "#ffffff", "width": 1}},
    }


def front_table(series: Series) -> str:
    """The members with their objectives and parameters; empty for one objective."""
    spec, state = series.study.spec, series.study.state
    rows = front_rows(front_members(spec, state), ROWS) if len(spec.objectives) > 1 else []
    if not rows:
        return ""
    more = f" The first {ROWS} of {len(state.front)}." if len(state.front) > ROWS else ""
    caption = (
        f"The best in {text(spec.metric.name)} first; an empty cell is a parameter that the trial does not use. A "
        f"trial may be here with results at several resources.{more}"
    )
    cells = [["" if item is None else value(item) for item in row.values()] for row in rows]
    shown = table(list(rows[0]), cells, 60)
    return (
        f'<section class="card"><h2>Results on the Pareto front</h2><p class="caption">{caption}</p>{shown}</section>'
    )
