"""Rungs in pictures: trials from rung to rung over time, and how many results each rung holds."""

from __future__ import annotations

import textwrap
from typing import Any

from hpo_core.model.events import CeilingRaised
from hpo_core.model.trial import RESULTS
from hpo_core.report.html_page import Section, table
from hpo_core.report.style import (
    BEST,
    FAILED,
    GAP,
    GREEN,
    LOST,
    Figure,
    Point,
    Trace,
    axis,
    layout,
    level_color,
    note,
    text,
    time_axis,
    trace,
)
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import Bands, entry_levels, is_stopping, rung_rows
from hpo_core.views.series import Series

PATHS = 300
"""Trials drawn; those that rose furthest come first."""
_BAND = 0.3
"""Half the height of a rung's band, where two rungs are 1 apart."""
_AROUND = _BAND + 0.06


def _stacked(bands: Bands) -> list[float]:
    # Heights of all bands, one unit apart, the first bracket on top; room for a heading between two brackets.
    heights: list[list[float]] = []
    at = 1.0
    for ladder in reversed(bands.ladders):
        heights.insert(0, [at + k for k in range(len(ladder.rungs))])
        at += len(ladder.rungs) + 1.2
    return [height for ladder in heights for height in ladder]


def _headings(bands: Bands, heights: list[float]) -> list[dict[str, Any]]:
    return [
        note(
            f"<b>{text(bands.heading(i), 80)}</b>",
            y=max(heights[k] for k, band in enumerate(bands.all) if band.ladder == i) + _BAND + 0.08,
            yref="y",
            font={"size": 13},
        )
        for i in range(len(bands.ladders) if bands.several else 0)
    ]


def ladder_figure(series: Series) -> Figure | None:
    """One line per trial: flat while it waits at a rung, rising while it trains towards the next; None for one rung."""
    if not series.spans or len(series.levels) < 2:
        return None
    divisor, across = time_axis(series.wall)
    levels, bands, best = series.levels, series.bands, series.study.best
    heights = _stacked(bands)
    places = _places(bands, heights)
    reached = {t.number: series.level(t.resource) if t.results else -1 for t in series.trials}
    ranked = sorted(series.trials, key=lambda t: (-reached[t.number], t.number))
    shown = {trial.number for trial in ranked[:PATHS]} | ({best.trial} if best else set())
    paths: dict[int, list[Point]] = {}
    crosses: list[Point] = []
    for span in sorted(series.spans, key=lambda s: s.start):
        if span.trial not in shown:
            continue
        trial, done = series.trials[span.trial], span.outcome in RESULTS
        begin = places.get((span.trial, span.origin), heights[bands.base(trial.bracket)] - 1)
        # Halfway, unless it came to a result.
        end = places[span.trial, span.target] if done else 0.5 * (begin + heights[bands.at(trial, span.target)])
        state = number(span.value) if done else span.outcome or "running"
        words = f"trial {span.trial} to {span.target:,}: {state}"
        path = paths.setdefault(span.trial, [])
        path += [(span.start / divisor, begin, words), (span.end / divisor, end, words), *([] if done else [GAP])]
        if span.outcome is not None and not done:
            words = f"trial {span.trial}, attempt {span.attempt}: {span.outcome}"
            crosses.append((span.end / divisor, end, words))
    data: list[Trace] = []
    for level in range(-1, len(levels)):
        group = [paths[n] for n in paths if reached[n] == level and (not best or n != best.trial)]
        if points := [point for path in group for point in (*path, GAP)]:
            name = f"reached {levels[level]:,}" if level >= 0 else "no result"
            color = level_color(level, len(levels)) if level >= 0 else LOST
            data.append(trace(name, points, color, mode="lines+markers", width=1.2 + 0.4 * max(level, 0), size=4))
    if best is not None:
        name = f"trial {best.trial}, the best"
        data.append(trace(name, [*paths[best.trial], GAP], BEST, mode="lines+markers", width=3.5, size=7))
    if crosses:
        data.append(trace("failed attempt", crosses, FAILED, size=9, marker={"symbol": "x"}))
    unit = 110 if len(heights) <= 5 else 76 if len(heights) <= 9 else 60
    top = max(heights) + _BAND + (0.62 if bands.several else 0.15)
    opened = [(time / divisor, event) for time, event in series.turns if isinstance(event, CeilingRaised)]
    openings = [
        note(
            f"rung {event.rung} opens",
            x=time,
            y=heights[bands.of(event.bracket, event.rung)] + _AROUND,
            xref="x",
            yref="y",
            hovertext="<br>".join(textwrap.wrap(bands.names.ceiling_line(event), 60)),
            font={"size": 12, "color": GREEN},
            bgcolor="rgba(255,255,255,0.85)",
        )
        for time, event in opened
    ]
    since = {bands.of(event.bracket, event.rung): time for time, event in opened}
    backgrounds = [  # a band behind each rung, from the moment it is open
        {
            "type": "rect",
            "xref": "x" if k in since else "paper",
            "x0": since.get(k, 0),
            "x1": 1.015 * series.wall / divisor if k in since else 1,
            "y0": height - _AROUND,
            "y1": height + _AROUND,
            "fillcolor": "#eff5fb",
            "line": {"width": 0},
            "layer": "below",
        }
        for k, (height, band) in enumerate(zip(heights, bands.all, strict=True))
        if band.rung.is_open
    ]  # fmt: skip
    shape = layout(
        170 + round(unit * top),
        xaxis=across,
        yaxis=_rung_axis(bands, heights, top),
        shapes=backgrounds,
        annotations=openings + _headings(bands, heights),
    )
    return Figure("ladder", "Climbing the rungs", _ladder_caption(series, len(shown)), data, shape)


def _ladder_caption(series: Series, shown: int) -> str:
    words = "lies flat while it waits at a rung, and ends where it was not promoted."
    if is_stopping(series.study.spec):
        words = "and at each rung it goes on at once, or is stopped for good."
    opens = any(not band.rung.is_open for band in series.bands.all) or series.study.state.ceilings
    few = f" Of {len(series.trials):,} trials the {shown} that rose furthest are drawn."
    return (
        f"Each line is one trial: it rises while it trains, {words} Within a band better results lie higher."
        + (" A band begins when its rung opens: point at the words there to read why." if opens else "")
        + (few if shown < len(series.trials) else "")
    )


def _rung_axis(bands: Bands, heights: list[float], top: float) -> dict[str, Any]:
    words = [
        f"<b>Rung {band.rung.rung}</b> (to {band.rung.level:,})<br>"
        + (plural(len(band.results), "result") if band.rung.is_open else "closed")
        for band in bands.all
    ]
    starts = [height - 1 for height, band in zip(heights, bands.all, strict=True) if band.rung.rung == 0]
    ticks = {"tickvals": [*starts, *heights], "ticktext": [*["start"] * len(starts), *words]}
    return axis("", range=[-0.15, top], showgrid=False, fixedrange=True, **ticks) | {"ticks": ""}


def _places(bands: Bands, heights: list[float]) -> dict[tuple[int, int], float]:
    # (trial, resource) -> height: within the band of a rung, better results lie higher.
    found: dict[tuple[int, int], float] = {}
    for height, band in zip(heights, bands.all, strict=True):
        ranked = sorted(band.results, key=lambda r: (r.loss is None, r.violation, r.loss or 0.0, r.trial, r.resource))
        for rank, result in enumerate(ranked):
            share = rank / (len(ranked) - 1) if len(ranked) > 1 else 0.5
            found[result.trial, result.resource] = height + _BAND - 2 * _BAND * share
    return found


def rung_section(series: Series) -> Section | None:
    """The rungs of each bracket, as the terminal and Prefect show them; None for a population."""
    rows = rung_rows(series.study, series.bands.ladders) if series.lineage is None else []
    if not any(band.results for band in series.bands.all) or not rows:
        return None
    caption = "Ready are trials that will go on and wait for a worker."
    if enter := entry_levels(series.study.spec):
        places = ", ".join(f"{level:,} (bracket {bracket})" for bracket, level in enter.items())
        caption += f" All brackets share their rungs; their trials enter at {places}."
    cells = [[number(item) if isinstance(item, float) else item for item in row.values()] for row in rows]
    return Section("Rungs", caption, table(list(rows[0]), cells))
