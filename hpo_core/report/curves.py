"""Results in pictures: best value over time, learning curves, Pareto front."""

from __future__ import annotations

import math
from dataclasses import replace

from hpo_core.model.trial import Outcome
from hpo_core.report.html_page import Section, table
from hpo_core.report.style import (
    BEST,
    CUT,
    DARKER,
    GAP,
    LISTED,
    Figure,
    Point,
    Trace,
    axis,
    layout,
    level_color,
    rounded,
    scale,
    text,
    time_axis,
    trace,
)
from hpo_core.state import TrialRecord, is_complete
from hpo_core.views.formatting import duration, number, parameter_value, plural
from hpo_core.views.series import Series
from hpo_core.views.summary import front_members, front_rows, rule_words, values_of

CURVE_BUDGET = 12_000
"""Points drawn in all; the lowest rungs are thinned first."""
CURVE_POINTS = 60
"""Points of one trial's curve, besides its results."""
FRONT_DOTS, FRONT_ROWS = 3_000, 50
"""Results drawn beside the front in all, the lower rungs thinned; members of the front in the table."""


def incumbent(series: Series) -> Figure | None:
    """The best value so far as a step line over all results."""
    if not series.steps:
        return None
    divisor, across = time_axis(series.wall)
    levels = len(series.levels)
    results = [s for s in series.spans if s.outcome is Outcome.COMPLETED and s.value is not None]
    drawn = scale((span.value for span in results), maximize=series.maximize)
    data: list[Trace] = []
    for level, resource in enumerate(series.levels):
        here = [span for span in results if span.target == resource]
        points = [
            (span.end / divisor, span.value, f"trial {span.trial} at {resource:,}: {number(span.value)}")
            for span in here[:: -(-len(here) // 3000) or 1]
        ]
        if points:
            name, color = f"results at {resource:,}", level_color(level, levels)
            data.append(trace(name, points, color, opacity=0.85, showlegend=levels <= LISTED))
    last = series.steps[-1]
    steps = [
        (step.time / divisor, step.value, f"best since here: {number(step.value)} (trial {step.trial})")
        for step in [*series.steps, last._replace(time=series.wall)]
    ]
    data.append(trace("best so far", steps, BEST, mode="lines", width=3, shape="hv"))
    moving = last.time > 0.8 * series.wall and len(results) > 9
    caption = (
        f"Every dot is a result, the orange line the best so far{rule_words(series.study)}; "
        f"it last moved after {duration(last.time)} of "
        f"{duration(series.wall)}{', so more trials may well find better' if moving else ''}."
        f"{CUT if drawn.cut else ''}"
    )
    shape = layout(420, xaxis=across, yaxis=drawn.axis(text(series.metric)))
    return Figure("incumbent", "Best value over time", caption, data, shape)


def learning_curves(series: Series) -> Figure | None:
    """Metric over resource, one line per trial; None where each reports once."""
    known = [trial for trial in series.trials if trial.results]
    best = series.study.best
    shown: list[TrialRecord] = []
    points = 0
    for trial in sorted(known, key=lambda t: (-series.reached(t), math.inf if t.loss is None else t.loss)):
        points += min(CURVE_POINTS, len(series.curves[trial.number]))
        if points > CURVE_BUDGET and shown:
            break
        shown.append(trial)
    values = [value for trial in shown for value in series.curves[trial.number].values()]
    if not any(map(math.isfinite, values)) or all(len(series.curves[trial.number]) < 2 for trial in shown):
        return None
    drawn = scale(values, maximize=series.maximize)
    levels = len(series.levels)
    data: list[Trace] = []
    for level in range(levels):
        group = [t for t in shown if series.reached(t) == level and (best is None or t.number != best.trial)]
        if group:
            name = f"trained up to {series.levels[level]:,} ({len(group)})"
            data.append(_lines(series, group, name, level_color(level, levels), width=1.0 + 0.8 * level / levels))
    if best is not None:
        data.append(_lines(series, [series.trials[best.trial]], f"trial {best.trial}, the best", BEST, width=3.5))
    few = f" The {len(shown)} that came furthest of {len(known)} are drawn." if len(shown) < len(known) else ""
    caption = (
        f"Each line is one trial: {text(series.metric)} against the resource trained for; the {DARKER}, the higher "
        f"the rung it reached, and the best in orange.{few}{CUT if drawn.cut else ''}"
    )
    bottom = axis("resource trained for")
    first = max(1, min(resource for trial in shown for resource in series.curves[trial.number]))
    if levels > 1:
        bottom |= {"tickvals": series.levels, "ticktext": [f"{level:,}" for level in series.levels]}
        if series.levels[-1] / series.levels[0] >= 8:
            low, high = math.log10(min(series.levels[0], first)), math.log10(series.levels[-1])
            bottom |= {"type": "log", "range": [low - 0.04 * (high - low), high + 0.04 * (high - low)]}
    shape = layout(480, xaxis=bottom, yaxis=drawn.axis(text(series.metric)))
    return Figure("curves", "Learning curves", caption, data, shape)


def thinned_curve(series: Series, trial: TrialRecord) -> list[tuple[int, float | None]]:
    """(resource, metric) of a trial, all its results among them; None where the metric is not finite."""
    curve = sorted(series.curves.get(trial.number, {}).items())
    rungs = {result.resource for result in trial.results}
    step = -(-len(curve) // CURVE_POINTS) or 1
    return [
        (at, rounded(value) if math.isfinite(value) else None)
        for k, (at, value) in enumerate(curve)
        if k % step == 0 or at in rungs
    ]


def _lines(series: Series, group: list[TrialRecord], name: str, color: str, *, width: float) -> Trace:
    points: list[Point] = []
    sizes: list[int] = []
    for trial in group:
        rungs = {result.resource for result in trial.results}
        for resource, value in thinned_curve(series, trial):
            shown = number(math.nan if value is None else value)
            points.append((resource, value, f"trial {trial.number} at {resource:,}: {shown}"))
            sizes.append((8 if width > 3 else 5) if resource in rungs else 0)
        points.append(GAP)
        sizes.append(0)
    marker = {"opacity": 1, "line": {"width": 0}}
    opacity = 1 if width > 3 else 0.75
    return trace(name, points, color, mode="lines+markers", width=width, size=sizes, marker=marker, opacity=opacity)


def front_figure(series: Series) -> Figure | None:
    """Results by the first two objectives; the front in orange."""
    study, levels = series.study, series.levels
    objectives, front = study.spec.objectives, study.state.front
    if len(objectives) < 2 or not front:
        return None
    results = [result for trial in series.trials for result in trial.results if result.losses and is_complete(result)]
    sides, cut = [], False
    for i, metric in enumerate(objectives[:2]):
        drawn = scale((result.losses[i] * metric.sign for result in results), maximize=metric.mode == "max")
        shown = [member.losses[i] * metric.sign for member in front]  # the whole front, however far from the others
        drawn = replace(drawn, low=min(drawn.low, *shown), high=max(drawn.high, *shown))
        cut |= drawn.cut
        sides.append(drawn.axis(f"{text(metric.name, 30)} ({'lower' if metric.mode == 'min' else 'higher'} is better)"))
    data: list[Trace] = []
    for level, resource in enumerate(levels):
        here = [result for result in results if series.level(result.resource) == level]
        points = [
            (
                result.losses[1] * objectives[1].sign,
                result.losses[0] * objectives[0].sign,
                f"trial {result.trial} at {resource:,}",
            )
            for result in here[:: -(-len(here) * len(levels) // FRONT_DOTS) or 1]
        ]
        if points:
            data.append(trace(f"results at {resource:,}", points, level_color(level, len(levels)), opacity=0.85))
    points = []
    for member in sorted(front, key=lambda member: (member.losses[1], member.losses[0])):
        values = values_of(study.spec, member)
        lines = [f"{text(name, 30)} {number(item)}" for name, item in values.items()]
        first, second, *_ = values.values()
        points.append((second, first, "<br>".join([f"trial {member.trial} at {member.resource:,}", *lines])))
    two = len(objectives) == 2
    edge = {"line": {"color": "#ffffff", "width": 1}}
    mode = "lines+markers" if two else "markers"
    data.append(trace("Pareto front", points, BEST, mode=mode, shape="hv", size=10, marker=edge))
    caption = (
        "Every dot is a result. Those in orange are the Pareto front: no other result is at least as good in every "
        "objective and better in one."
        + (" The line parts what the front beats from what nobody reached." if two else "")
        + ("" if two else f" Drawn are the first two of {len(objectives)} objectives; the table below has all.")
        + (CUT if cut else "")
    )
    title = f"Pareto front: {plural(len(front), 'result')}"
    return Figure("front", title, caption, data, layout(480, xaxis=sides[1], yaxis=sides[0]))


def front_table(series: Series) -> Section | None:
    spec, state = series.study.spec, series.study.state
    rows = front_rows(front_members(spec, state), FRONT_ROWS) if len(spec.objectives) > 1 else []
    if not rows:
        return None
    more = f" The first {FRONT_ROWS} of {len(state.front)}." if len(state.front) > FRONT_ROWS else ""
    caption = (
        f"The best in {text(spec.metric.name)} first; an empty cell is a parameter that the trial does not use. A "
        f"trial may be here with results at several resources.{more}"
    )
    cells = [["" if item is None else parameter_value(item) for item in row.values()] for row in rows]
    return Section("Results on the Pareto front", caption, table(list(rows[0]), cells, 60))
