"""Trials climbing from rung to rung, and how many got how far."""

from __future__ import annotations

import math
from typing import Any

from hpo_core.report.series import Series, Span
from hpo_core.report.style import (
    BEST,
    FAILED,
    LOST,
    Figure,
    axis,
    layout,
    level_color,
    number,
    rounded,
    time_axis,
)
from hpo_core.trial import RESULTS

PATHS = 300
"""Trials drawn; those that rose furthest come first."""
BAND = 0.3


def climbing(series: Series) -> Figure | None:
    """One line per trial: flat while it waits at a rung, rising while it trains towards the next."""
    if not series.spans:
        return None
    divisor, across = time_axis(series.wall)
    levels = len(series.levels)
    places = _places(series)
    best = series.study.best
    ranked = sorted(series.trials, key=lambda t: (-series.reached(t), t.number))
    shown = {trial.number for trial in ranked[:PATHS]} | ({best.trial} if best else set())
    spans: dict[int, list[Span]] = {}
    for span in sorted(series.spans, key=lambda s: s.start):
        if span.trial in shown:
            spans.setdefault(span.trial, []).append(span)
    data: list[dict[str, Any]] = []
    for level in range(-1, levels):
        group = [n for n in spans if series.reached(series.trials[n]) == level and (not best or n != best.trial)]
        if group:
            name = f"reached {series.levels[level]:,}" if level >= 0 else "no result"
            data.append(_paths(series, {n: spans[n] for n in group}, places, name, level, divisor))
    if best is not None:
        path = {best.trial: spans[best.trial]}
        data.append(_paths(series, path, places, f"trial {best.trial}, the best", levels, divisor))
    crosses = [s for group in spans.values() for s in group if s.outcome is not None and s.outcome not in RESULTS]
    if crosses:
        data.append({
            "type": "scatter", "mode": "markers", "name": "failed attempt",
            "x": [rounded(span.end / divisor) for span in crosses],
            "y": [rounded(_halfway(span, places)) for span in crosses],
            "text": [f"trial {s.trial}, attempt {s.attempt}: {s.outcome}" for s in crosses], "hoverinfo": "text",
            "marker": {"symbol": "x", "size": 9, "color": FAILED},
        })  # fmt: skip
    few = f" Of {len(series.trials):,} trials the {len(shown)} that rose furthest are drawn." if (
        len(shown) < len(series.trials)
    ) else ""  # fmt: skip
    caption = (
        "Each line is one trial: it rises while it trains, lies flat while it waits at a rung, and ends where it "
        "was not promoted. Within a blue band better results lie higher, so those that go on leave from the top."
        f"{few}"
    )
    shape = layout(
        170 + 110 * levels,
        xaxis=across,
        yaxis=_rung_axis(series),
        shapes=[
            {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": k - BAND - 0.06, "y1": k + BAND + 0.06,
             "fillcolor": "#eff5fb", "line": {"width": 0}, "layer": "below"}
            for k in range(levels)
        ],
    )  # fmt: skip
    title = "Climbing the rungs" if levels > 1 else "Trials over time"
    return Figure("ladder", title, caption, data, shape)


def _rung_axis(series: Series) -> dict[str, Any]:
    words = [
        f"<b>Rung {level}</b><br>resource {resource:,}<br>{count:,} result{'' if count == 1 else 's'}"
        for level, (resource, count) in enumerate(zip(series.levels, _counts(series), strict=True))
    ]
    place = list(range(-1, len(words)))
    drawn = axis("", tickvals=place, ticktext=["start", *words], range=[-1.15, len(words) - 1 + BAND + 0.15])
    return drawn | {"showgrid": False, "fixedrange": True, "ticks": ""}


def _counts(series: Series) -> list[int]:
    return [sum(any(r.resource == level for r in t.results) for t in series.trials) for level in series.levels]


def _places(series: Series) -> dict[tuple[int, int], float]:
    """(trial, level) -> height: within the band of a rung, better results lie higher."""
    found: dict[tuple[int, int], float] = {}
    for level, resource in enumerate(series.levels):
        here = sorted(
            (math.inf if result.loss is None else result.loss, trial.number)
            for trial in series.trials
            for result in trial.results
            if result.resource == resource
        )
        for rank, (_, number_) in enumerate(here):
            share = rank / (len(here) - 1) if len(here) > 1 else 0.5
            found[number_, level] = level + BAND - 2 * BAND * share
    return found


def _halfway(span: Span, places: dict[tuple[int, int], float]) -> float:
    low = places.get((span.trial, span.origin), float(span.origin))
    return low + 0.5 * (span.level - low)


def _paths(
    series: Series,
    spans: dict[int, list[Span]],
    places: dict[tuple[int, int], float],
    name: str,
    level: int,
    divisor: float,
) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    words: list[str] = []
    for trial, path in spans.items():
        for span in path:
            done = span.outcome in RESULTS
            start = places.get((trial, span.origin), float(span.origin))
            end = places[trial, span.level] if done else _halfway(span, places)
            state = number(span.value) if done else span.outcome or "running"
            about = f"trial {trial} to {series.levels[span.level]:,}: {state}"
            xs += [rounded(span.start / divisor), rounded(span.end / divisor)]
            ys += [rounded(start), rounded(end)]
            words += [about, about]
            if not done:
                xs.append(None)
                ys.append(None)
                words.append("")
        xs.append(None)
        ys.append(None)
        words.append("")
    levels = len(series.levels)
    bold = level == levels
    color = BEST if bold else level_color(level, levels) if level >= 0 else LOST
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": xs, "y": ys, "text": words,
        "hoverinfo": "text", "line": {"color": color, "width": 3.5 if bold else 1.2 + 0.4 * max(level, 0)},
        "marker": {"color": color, "size": 7 if bold else 4},
    }  # fmt: skip
