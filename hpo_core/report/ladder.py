"""Trials from rung to rung over time."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from hpo_core.model.events import CeilingRaised
from hpo_core.model.feasibility import Rankable
from hpo_core.model.trial import RESULTS
from hpo_core.report.series import Series, Span
from hpo_core.report.study.rung_bands import stacked
from hpo_core.report.study.trials_by_rung import rung_table
from hpo_core.report.style import BEST, FAILED, LOST, OPENS, Figure, axis, layout, level_color, rounded, text, time_axis
from hpo_core.search.method import first_loss_of
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import is_stopping

PATHS = 300
"""Trials drawn; those that rose furthest come first."""
BAND = 0.3
BETWEEN = 0.2
"""Room between two brackets, for the heading of the lower one."""


def ladder_figure(series: Series) -> Figure | None:
    """One line per trial: flat while it waits at a rung, rising while it trains towards the next."""
    if not series.spans:
        return None
    divisor, across = time_axis(series.wall)
    levels = len(series.levels)
    bands = series.bands
    heights = stacked(bands, below=1.0, between=BETWEEN)
    places = _places(series, heights)
    best = series.study.best
    reached = {t.number: series.level(t.searched) if t.results else -1 for t in series.trials}
    ranked = sorted(series.trials, key=lambda t: (-reached[t.number], t.number))
    shown = {trial.number for trial in ranked[:PATHS]} | ({best.trial} if best else set())
    spans: dict[int, list[Span]] = {}
    for span in sorted(series.spans, key=lambda s: s.start):
        if span.trial in shown and not span.further:
            spans.setdefault(span.trial, []).append(span)
    data: list[dict[str, Any]] = []
    for level in range(-1, levels):
        group = [n for n in spans if reached[n] == level and (not best or n != best.trial)]
        if group:
            name = f"reached {series.levels[level]:,}" if level >= 0 else "no result"
            data.append(
                _paths(
                    series,
                    {n: spans[n] for n in group},
                    places,
                    heights=heights,
                    name=name,
                    level=level,
                    divisor=divisor,
                )
            )
    if best is not None:
        path = {best.trial: spans[best.trial]}
        data.append(
            _paths(
                series,
                path,
                places,
                heights=heights,
                name=f"trial {best.trial}, the best",
                level=levels,
                divisor=divisor,
            )
        )
    crosses = [s for group in spans.values() for s in group if s.outcome is not None and s.outcome not in RESULTS]
    if crosses:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "failed attempt",
                "x": [rounded(span.end / divisor) for span in crosses],
                "y": [rounded(_ends(series, span, places, heights)[1]) for span in crosses],
                "text": [f"trial {s.trial}, attempt {s.attempt}: {s.outcome}" for s in crosses],
                "hoverinfo": "text",
                "marker": {"symbol": "x", "size": 9, "color": FAILED},
            }
        )
    opened = [(time, event) for time, event in series.turns if isinstance(event, CeilingRaised)]
    few = (
        f" Of {len(series.trials):,} trials the {len(shown)} that rose furthest are drawn."
        if (len(shown) < len(series.trials))
        else ""
    )
    if any(span.further for span in series.spans):
        few += " Training beyond the search is not drawn here: no rung stands for it."
    total = len(heights)
    unit = 110 if total <= 5 else 76 if total <= 9 else 60
    top = max(heights) + BAND + (0.62 if bands.several else 0.15)
    shape = layout(
        170 + round(unit * top),
        xaxis=across,
        yaxis=_rung_axis(series, heights, top),
        shapes=_backgrounds(series, opened, heights, divisor),
    )
    shape["annotations"] = _openings(series, opened, heights, divisor)
    if bands.several:
        shape["annotations"] += [
            {
                "text": f"<b>{text(bands.heading(i), 80)}</b>",
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": max(heights[k] for k, band in enumerate(bands.all) if band.ladder == i) + BAND + 0.08,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 13},
            }
            for i in range(len(bands.ladders))
        ]
    title = "Climbing the rungs" if levels > 1 else "Trials over time"
    return Figure("ladder", title, _caption(series) + few, data, shape)


def _caption(series: Series) -> str:
    if is_stopping(series.study.spec):
        words = (
            "Each line is one trial: it rises while it trains. At each rung it goes on at once, or is stopped for "
            "good: its line ends there. "
        )
    else:
        until = " until all of its bracket are there" if series.study.spec.search.outline().barriers else ""
        words = (
            f"Each line is one trial: it rises while it trains, lies flat while it waits at a rung{until}, and ends "
            "where it was not promoted. "
        )
    words += "Within a band better results lie higher, so promoted trials leave from its top."
    if any(band.kind == "closed" for band in series.bands.all) or series.study.state.ceilings:
        words += " A band begins when its rung opens: point at the words there to read why."
    return words


def _rung_axis(series: Series, heights: list[float], top: float) -> dict[str, Any]:
    counts = [sum(row) - absent for row, absent in zip(rung_table(series), _abandoned_on_the_way(series), strict=True)]
    words = []
    for band, count in zip(series.bands.all, counts, strict=True):
        content = "closed" if band.kind == "closed" else plural(count, "result")
        if len(heights) <= 5:
            words.append(f"<b>Rung {band.rung.rung}</b><br>resource {band.rung.level:,}<br>{content}")
        else:
            words.append(f"<b>Rung {band.rung.rung}</b> (to {band.rung.level:,})<br>{content}")
    starts = [height - 1 for height, band in zip(heights, series.bands.all, strict=True) if band.rung.rung == 0]
    ticks = [*starts, *heights]
    drawn = axis("", tickvals=ticks, ticktext=[*["start"] * len(starts), *words], range=[-0.15, top])
    return drawn | {"showgrid": False, "fixedrange": True, "ticks": ""}


def _abandoned_on_the_way(series: Series) -> list[int]:
    """Per band: abandoned trials, which have no result there."""
    found = [0] * len(series.bands.all)
    for trial in series.trials:
        if trial.abandoned is not None and not trial.is_at(trial.abandoned):
            found[series.bands.of(trial.abandoned.bracket, trial.abandoned.rung)] += 1
    return found


def _backgrounds(
    series: Series, opened: list[tuple[float, CeilingRaised]], heights: list[float], divisor: float
) -> list[dict[str, Any]]:
    """A blue band behind each rung, from the moment it is open."""
    since = {series.bands.of(event.bracket, event.rung): time / divisor for time, event in opened}
    shapes: list[dict[str, Any]] = []
    for k, (height, band) in enumerate(zip(heights, series.bands.all, strict=True)):
        if band.kind == "closed":
            continue
        across = {"xref": "paper", "x0": 0, "x1": 1}
        if k in since:
            across = {"xref": "x", "x0": rounded(since[k]), "x1": rounded(1.015 * series.wall / divisor)}
        shapes.append(
            {
                "type": "rect",
                **across,
                "y0": height - BAND - 0.06,
                "y1": height + BAND + 0.06,
                "fillcolor": "#eff5fb",
                "line": {"width": 0},
                "layer": "below",
            }
        )
    return shapes


def _openings(
    series: Series, opened: list[tuple[float, CeilingRaised]], heights: list[float], divisor: float
) -> list[dict[str, Any]]:
    """Words where a band begins; pointing at them says why."""
    names, bands = series.bands.names, series.bands
    return [
        {
            "text": f"rung {event.rung} opens",
            "hovertext": _wrapped(names.ceiling_line(event)),
            "showarrow": False,
            "x": rounded(time / divisor),
            "xref": "x",
            "xanchor": "left",
            "yanchor": "bottom",
            "y": heights[bands.of(event.bracket, event.rung)] + BAND + 0.06,
            "font": {"size": 12, "color": OPENS},
            "bgcolor": "rgba(255,255,255,0.85)",
        }
        for time, event in opened
    ]


def _wrapped(words: str, width: int = 60) -> str:
    return "<br>".join(textwrap.wrap(words, width))


def _places(series: Series, heights: list[float]) -> dict[tuple[int, int], float]:
    """(trial, level) -> height: within the band of a rung, better results lie higher."""
    found: dict[tuple[int, int], float] = {}
    here: list[list[tuple[Rankable, int, int]]] = [[] for _ in heights]
    for trial in series.trials:
        for result in trial.results:
            found_loss = first_loss_of(result)
            loss = math.inf if found_loss is None else found_loss
            level = series.level(result.resource)
            here[series.bands.of(result.bracket, result.rung)].append((loss, trial.number, level))
    for height, results in zip(heights, here, strict=True):
        for rank, (_, number_, level) in enumerate(sorted(results)):
            share = rank / (len(results) - 1) if len(results) > 1 else 0.5
            found[number_, level] = height + BAND - 2 * BAND * share
    return found


def _ends(
    series: Series, span: Span, places: dict[tuple[int, int], float], heights: list[float]
) -> tuple[float, float]:
    """Height where an attempt begins and where it ends: halfway, unless it came to a result."""
    trial = series.trials[span.trial]
    start = places.get((span.trial, span.origin), heights[series.bands.base(trial.bracket)] - 1)
    if span.outcome in RESULTS:
        return start, places[span.trial, span.level]
    return start, 0.5 * (start + heights[series.bands.at(trial, series.levels[span.level])])


def _paths(
    series: Series,
    spans: dict[int, list[Span]],
    places: dict[tuple[int, int], float],
    *,
    heights: list[float],
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
            start, end = _ends(series, span, places, heights)
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
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": xs,
        "y": ys,
        "text": words,
        "hoverinfo": "text",
        "line": {"color": color, "width": 3.5 if bold else 1.2 + 0.4 * max(level, 0)},
        "marker": {"color": color, "size": 7 if bold else 4},
    }
