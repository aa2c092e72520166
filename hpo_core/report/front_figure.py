"""Several objectives: all results with the Pareto front marked, and a table of its members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpo_core.report.html_page import Section, table
from hpo_core.report.series import Series
from hpo_core.report.style import (
    BEST,
    CUT,
    Figure,
    Trace,
    axis_key,
    layout,
    level_color,
    one_below_the_other,
    panels,
    scale,
    text,
    trace,
)
from hpo_core.state import is_complete
from hpo_core.views.formatting import number, parameter_value, plural
from hpo_core.views.summary import front_members, front_rows, values_of

DOTS = 3_000
"""Results drawn in all; the lower rungs are thinned."""
ROWS = 50
"""Members of the front in the table."""


def front_figure(series: Series) -> Figure | None:
    """Results in pairs of objectives, each further one against the first; the front in orange."""
    study, levels = series.study, series.levels
    objectives, front = study.spec.objectives, study.state.front
    if len(objectives) < 2 or not front:
        return None
    results = [
        result for trial in series.trials for result in trial.all_results if result.losses and is_complete(result)
    ]
    scales, titles = [], []
    for i, metric in enumerate(objectives):
        drawn = scale((result.losses[i] * metric.sign for result in results), maximize=metric.mode == "max")
        shown = [member.losses[i] * metric.sign for member in front]  # the whole front, however far from the others
        scales.append(replace(drawn, low=min(drawn.low, *shown), high=max(drawn.high, *shown)))
        titles.append(f"{text(metric.name, 30)} ({'lower' if metric.mode == 'min' else 'higher'} is better)")
    pairs = len(objectives) - 1
    shape = panels(pairs, min(2, pairs), height=370 if pairs <= 2 else 250, gap=90)
    data: list[Trace] = []
    for at in range(pairs):
        i, key = at + 1, axis_key(at)
        shape[f"xaxis{key}"] |= scales[i].axis(titles[i])
        shape[f"yaxis{key}"] |= scales[0].axis(titles[0])
        where: dict[str, Any] = {"xaxis": f"x{key}", "yaxis": f"y{key}", "showlegend": at == 0}
        for level, resource in enumerate(levels):
            here = [result for result in results if series.level(result.resource) == level]
            points = [
                (
                    result.losses[i] * objectives[i].sign,
                    result.losses[0] * objectives[0].sign,
                    f"trial {result.trial} at {resource:,}",
                )
                for result in here[:: -(-len(here) * len(levels) // DOTS) or 1]
            ]
            if points:
                name, color = f"results at {resource:,}", level_color(level, len(levels))
                data.append(trace(name, points, color, legendgroup=name, opacity=0.85, **where))
        members = [
            (list(values.values()), member, values)
            for member in sorted(front, key=lambda member: (member.losses[i], member.losses[0]))
            for values in [values_of(study.spec, member)]
        ]
        points = [
            (
                row[i],
                row[0],
                f"trial {member.trial} at {member.resource:,}<br>"
                + "<br>".join(f"{text(name, 30)} {number(item)}" for name, item in values.items()),
            )
            for row, member, values in members
        ]
        data.append(
            trace(
                "Pareto front",
                points,
                BEST,
                mode="lines+markers" if pairs == 1 else "markers",
                shape="hv",
                size=10,
                marker={"line": {"color": "#ffffff", "width": 1}},
                legendgroup="front",
                **where,
            )
        )
    lines = " The line parts what the front beats from what nobody reached." if pairs == 1 else ""
    caption = (
        f"Every dot is a result. Those in orange are the Pareto front: no other result is at least as good in every "
        f"objective and better in one.{lines}{CUT if any(drawn.cut for drawn in scales) else ''}"
    )
    title = f"Pareto front: {plural(len(front), 'result')}"
    height = shape.pop("height") + 110
    narrow = {"layout": one_below_the_other(pairs, 320)} if pairs > 1 else None
    wide = 640 if pairs > 1 else 0
    return Figure("front", title, caption, data, layout(height, **shape), min_width=wide, narrow=narrow)


def front_table(series: Series) -> Section | None:
    """The members with their objectives and parameters; None for one objective."""
    spec, state = series.study.spec, series.study.state
    rows = front_rows(front_members(spec, state), ROWS) if len(spec.objectives) > 1 else []
    if not rows:
        return None
    more = f" The first {ROWS} of {len(state.front)}." if len(state.front) > ROWS else ""
    caption = (
        f"The best in {text(spec.metric.name)} first; an empty cell is a parameter that the trial does not use. A "
        f"trial may be here with results at several resources.{more}"
    )
    cells = [["" if item is None else parameter_value(item) for item in row.values()] for row in rows]
    return Section("Results on the Pareto front", caption, table(list(rows[0]), cells, 60))
