"""Learning curves by rung, and the best value over time."""

from __future__ import annotations

import math
from typing import Any

from hpo_core.model.trial import Outcome
from hpo_core.report.scale import Scale, scale
from hpo_core.report.series import Series
from hpo_core.report.style import BEST, DARKER, FAILED, Figure, axis, layout, level_color, rounded, text, time_axis
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import duration, number
from hpo_core.views.summary import rule_words

CURVE_BUDGET = 12_000
"""Points drawn in all; the lowest rungs are thinned first."""
LISTED = 12
"""With more levels the legend does not list them; the darker a dot, the higher its level."""
CUT = " Values far beyond the others lie outside; double-click shows them."


def learning_curves(series: Series) -> Figure | None:
    """Metric over resource, one line per trial."""
    known = [trial for trial in series.trials if trial.all_results]
    if not known:
        return None
    ranked = sorted(known, key=lambda t: (-series.reached(t), math.inf if t.loss is None else t.loss))
    best = series.study.best
    shown: list[TrialRecord] = []
    points = 0
    for trial in ranked:
        points += min(60, len(series.curves[trial.number]))
        if points > CURVE_BUDGET and shown:
            break
        shown.append(trial)
    values = [value for trial in shown for value in series.curves[trial.number].values()]
    if not any(map(math.isfinite, values)):
        return None
    drawn = scale(values, maximize=series.maximize)
    levels = len(series.levels)
    data: list[dict[str, Any]] = []
    for level in range(levels):
        group = [t for t in shown if series.reached(t) == level and (best is None or t.number != best.trial)]
        if group:
            name = f"trained up to {series.levels[level]:,} ({len(group)})"
            color = level_color(level, levels)
            data.append(_lines(series, group, name, color=color, width=1.0 + 0.8 * level / levels))
    if best is not None:
        name = f"trial {best.trial}, the best"
        data.append(_lines(series, [series.trials[best.trial]], name, color=BEST, width=3.5))
    diverged = [t for t in shown if t.loss is None]
    if diverged:
        data.append(_crosses(series, diverged, drawn))
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


def _lines(series: Series, group: list[TrialRecord], name: str, *, color: str, width: float) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    words: list[str] = []
    sizes: list[int] = []
    dot = 8 if width > 3 else 5
    for trial in group:
        curve = sorted(series.curves[trial.number].items())
        rungs = {result.resource for result in trial.all_results}
        step = max(1, len(curve) // 60)
        kept = [(x, y) for i, (x, y) in enumerate(curve) if i % step == 0 or x in rungs]
        for resource, value in kept:
            xs.append(resource)
            ys.append(rounded(value) if math.isfinite(value) else None)
            words.append(f"trial {trial.number} at {resource:,}: {number(value)}")
            sizes.append(dot if resource in rungs else 0)
        xs.append(None)
        ys.append(None)
        words.append("")
        sizes.append(0)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": xs,
        "y": ys,
        "text": words,
        "hoverinfo": "text",
        "line": {"color": color, "width": width},
        "marker": {"color": color, "size": sizes, "opacity": 1, "line": {"width": 0}},
        "opacity": 1 if width > 3 else 0.75,
    }


def _crosses(series: Series, diverged: list[TrialRecord], drawn: Scale) -> dict[str, Any]:
    """A diverged trial ends in a cross at its last finite value, or at the bad end of the axis."""
    bad = drawn.low if series.maximize else drawn.high
    ys, words = [], []
    for trial in diverged:
        finite = [v for _, v in sorted(series.curves[trial.number].items()) if math.isfinite(v)]
        ys.append(rounded(min(max(finite[-1], drawn.low), drawn.high) if finite else bad))
        words.append(f"trial {trial.number} diverged before {trial.resource:,}")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"diverged ({len(diverged)})",
        "x": [trial.resource for trial in diverged],
        "y": ys,
        "text": words,
        "hoverinfo": "text",
        "marker": {"symbol": "x", "size": 9, "color": FAILED},
    }


def incumbent(series: Series) -> Figure | None:
    """The best value so far as a step line over all results."""
    if not series.steps:
        return None
    divisor, across = time_axis(series.wall)
    levels = len(series.levels)
    results = [s for s in series.spans if s.outcome is Outcome.COMPLETED and s.value is not None]
    drawn = scale((span.value for span in results), maximize=series.maximize)
    data: list[dict[str, Any]] = []
    for level, resource in enumerate(series.levels):
        here = [span for span in results if span.level == level]
        step = -(-len(here) // 3000) or 1
        here = here[::step]
        if here:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"results at {resource:,}",
                    "x": [rounded(span.end / divisor) for span in here],
                    "y": [rounded(span.value) for span in here if span.value is not None],
                    "text": [f"trial {span.trial} at {resource:,}: {number(span.value)}" for span in here],
                    "hoverinfo": "text",
                    "showlegend": levels <= LISTED,
                    "marker": {"color": level_color(level, levels), "size": 6, "opacity": 0.85},
                }
            )
    last = series.steps[-1]
    steps = [*series.steps, last._replace(time=series.wall)]
    words = [f"best since here: {number(step.value)} (trial {step.trial})" for step in steps]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            "text": words,
            "hoverinfo": "text",
            "x": [rounded(step.time / divisor) for step in steps],
            "y": [rounded(step.value) for step in steps],
            "line": {"shape": "hv", "color": BEST, "width": 3},
        }
    )
    moving = last.time > 0.8 * series.wall and len(results) > 9
    caption = (
        f"Every dot is a result, the orange line the best so far{rule_words(series.study.spec)}; "
        f"it last moved after {duration(last.time)} of "
        f"{duration(series.wall)}{', so more trials may well find better' if moving else ''}."
        f"{CUT if drawn.cut else ''}"
    )
    shape = layout(420, xaxis=across, yaxis=drawn.axis(text(series.metric)))
    return Figure("incumbent", "Best value over time", caption, data, shape)
