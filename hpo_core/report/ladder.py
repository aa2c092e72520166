"""Rungs in pictures: trials from rung to rung over time, and how many results each rung holds."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from typing import Any

from hpo_core.model.events import CeilingRaised
from hpo_core.model.judged_results import Rankable
from hpo_core.model.trial import FURTHER, RESULTS
from hpo_core.report.series import Series, Span
from hpo_core.report.style import (
    BEST,
    BLUE,
    CANDIDATE,
    FAILED,
    GAP,
    GREEN,
    INK,
    LOST,
    MUTED,
    NAVY,
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
from hpo_core.search.method import first_loss_of
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import Bands, is_stopping

PATHS = 300
"""Trials drawn; those that rose furthest come first."""
_BAND = 0.3
"""Half the height of a rung's band, where two rungs are 1 apart."""
_AROUND = _BAND + 0.06


def _stacked(bands: Bands, *, below: float, between: float) -> list[float]:
    """Heights of all bands, one unit apart, the first bracket on top.

    Args:
        bands: of all brackets.
        below: room under each bracket's lowest band.
        between: room between two brackets, for the heading of the lower one.
    """
    heights: list[list[float]] = []
    at = below
    for ladder in reversed(bands.ladders):
        heights.insert(0, [at + k for k in range(len(ladder.rungs))])
        at += len(ladder.rungs) + between + below
    return [height for ladder in heights for height in ladder]


def _headings(bands: Bands, heights: list[float], above: float, **place: Any) -> list[dict[str, Any]]:
    """Names of the brackets above their highest bands; none where there is one bracket."""
    return [
        note(
            f"<b>{text(bands.heading(i), 80)}</b>",
            y=max(heights[k] for k, band in enumerate(bands.all) if band.ladder == i) + above,
            yref="y",
            **{"font": {"size": 13}, **place},
        )
        for i in range(len(bands.ladders) if bands.several else 0)
    ]


def ladder_figure(series: Series) -> Figure | None:
    """One line per trial: flat while it waits at a rung, rising while it trains towards the next."""
    if not series.spans:
        return None
    divisor, across = time_axis(series.wall)
    levels, bands, best = len(series.levels), series.bands, series.study.best
    heights = _stacked(bands, below=1.0, between=0.2)
    places = _places(series, heights)
    reached = {t.number: series.level(t.searched) if t.results else -1 for t in series.trials}
    ranked = sorted(series.trials, key=lambda t: (-reached[t.number], t.number))
    shown = {trial.number for trial in ranked[:PATHS]} | ({best.trial} if best else set())
    spans: dict[int, list[Span]] = {}
    for span in sorted(series.spans, key=lambda s: s.start):
        if span.trial in shown and not span.further:
            spans.setdefault(span.trial, []).append(span)

    def ends(span: Span) -> tuple[float, float]:
        """Height where an attempt begins and where it ends: halfway, unless it came to a result."""
        trial = series.trials[span.trial]
        start = places.get((span.trial, span.origin), heights[bands.base(trial.bracket)] - 1)
        if span.outcome in RESULTS:
            return start, places[span.trial, span.level]
        return start, 0.5 * (start + heights[bands.at(trial, series.levels[span.level])])

    def paths(trials: list[int], name: str, color: str, width: float, size: int) -> Trace:
        points: list[Point] = []
        for trial in trials:
            for span in spans[trial]:
                done = span.outcome in RESULTS
                state = number(span.value) if done else span.outcome or "running"
                words = f"trial {trial} to {series.levels[span.level]:,}: {state}"
                start, end = ends(span)
                points += [(span.start / divisor, start, words), (span.end / divisor, end, words)]
                points += [] if done else [GAP]
            points.append(GAP)
        return trace(name, points, color, mode="lines+markers", width=width, size=size)

    data: list[Trace] = []
    for level in range(-1, levels):
        if group := [n for n in spans if reached[n] == level and (not best or n != best.trial)]:
            name = f"reached {series.levels[level]:,}" if level >= 0 else "no result"
            color = level_color(level, levels) if level >= 0 else LOST
            data.append(paths(group, name, color, 1.2 + 0.4 * max(level, 0), 4))
    if best is not None:
        data.append(paths([best.trial], f"trial {best.trial}, the best", BEST, 3.5, 7))
    crosses: list[Point] = [
        (s.end / divisor, ends(s)[1], f"trial {s.trial}, attempt {s.attempt}: {s.outcome}")
        for group in spans.values()
        for s in group
        if s.outcome is not None and s.outcome not in RESULTS
    ]
    if crosses:
        data.append(trace("failed attempt", crosses, FAILED, size=9, marker={"symbol": "x"}))
    unit = 110 if len(heights) <= 5 else 76 if len(heights) <= 9 else 60
    top = max(heights) + _BAND + (0.62 if bands.several else 0.15)
    opened = [(time / divisor, event) for time, event in series.turns if isinstance(event, CeilingRaised)]
    shape = layout(
        170 + round(unit * top),
        xaxis=across,
        yaxis=_rung_axis(series, heights, top),
        shapes=_backgrounds(series, opened, heights, 1.015 * series.wall / divisor),
        annotations=[
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
        + _headings(bands, heights, _BAND + 0.08),
    )
    title = "Climbing the rungs" if levels > 1 else "Trials over time"
    return Figure("ladder", title, _ladder_caption(series, len(shown)), data, shape)


def _ladder_caption(series: Series, shown: int) -> str:
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
    if shown < len(series.trials):
        words += f" Of {len(series.trials):,} trials the {shown} that rose furthest are drawn."
    if any(span.further for span in series.spans):
        words += " Training beyond the search is not drawn here: no rung stands for it."
    return words


def _rung_axis(series: Series, heights: list[float], top: float) -> dict[str, Any]:
    bands = series.bands.all
    absent = Counter(
        series.bands.of(trial.abandoned.bracket, trial.abandoned.rung)
        for trial in series.trials
        if trial.abandoned is not None and not trial.is_at(trial.abandoned)
    )
    words = []
    for k, (band, row) in enumerate(zip(bands, rung_table(series), strict=True)):
        content = "closed" if band.kind == "closed" else plural(sum(row) - absent[k], "result")
        name = f"<b>Rung {band.rung.rung}</b>"
        few = len(heights) <= 5
        words.append(f"{name}<br>resource {band.rung.level:,}<br>{content}" if few else
                     f"{name} (to {band.rung.level:,})<br>{content}")  # fmt: skip
    starts = [height - 1 for height, band in zip(heights, bands, strict=True) if band.rung.rung == 0]
    ticks = {"tickvals": [*starts, *heights], "ticktext": [*["start"] * len(starts), *words]}
    return axis("", range=[-0.15, top], showgrid=False, fixedrange=True, **ticks) | {"ticks": ""}


def _backgrounds(
    series: Series, opened: list[tuple[float, CeilingRaised]], heights: list[float], end: float
) -> list[dict[str, Any]]:
    """A blue band behind each rung, from the moment it is open."""
    since = {series.bands.of(event.bracket, event.rung): time for time, event in opened}
    return [
        {
            "type": "rect",
            **({"xref": "x", "x0": since[k], "x1": end} if k in since else
               {"xref": "paper", "x0": 0, "x1": 1}),
            "y0": height - _AROUND,
            "y1": height + _AROUND,
            "fillcolor": "#eff5fb",
            "line": {"width": 0},
            "layer": "below",
        }
        for k, (height, band) in enumerate(zip(heights, series.bands.all, strict=True))
        if band.kind != "closed"
    ]  # fmt: skip


def _places(series: Series, heights: list[float]) -> dict[tuple[int, int], float]:
    """(trial, level) -> height: within the band of a rung, better results lie higher."""
    found: dict[tuple[int, int], float] = {}
    here: list[list[tuple[Rankable, int, int]]] = [[] for _ in heights]
    for trial in series.trials:
        for result in trial.results:
            first = first_loss_of(result)
            loss = math.inf if first is None else first
            level = series.level(result.resource)
            here[series.bands.of(result.bracket, result.rung)].append((loss, trial.number, level))
    for height, results in zip(heights, here, strict=True):
        for rank, (_, trial_number, level) in enumerate(sorted(results)):
            share = rank / (len(results) - 1) if len(results) > 1 else 0.5
            found[trial_number, level] = height + _BAND - 2 * _BAND * share
    return found


def rung_counts(series: Series) -> Figure | None:
    """Results per rung: went on, will go on, stayed, failed; one bracket under the other."""
    if not any(trial.results or trial.abandoned for trial in series.trials):
        return None
    bands, rows = series.bands, rung_table(series)
    stopping = is_stopping(series.study.spec)
    heights = _stacked(bands, below=0.0, between=0.62)
    sizes = [sum(row) for row in rows]
    most = max(sizes)
    ends = [band.kind in ("top", "ceiling") for band in bands.all]
    top = _top_word(series)
    kinds = (
        ("went on" if stopping else "promoted", BLUE, "#ffffff", [row[0] for row in rows]),
        (top, NAVY, "#ffffff", [row[2] * end for end, row in zip(ends, rows, strict=True)]),
        (
            "passed, waits for a free worker" if stopping else "candidate, not promoted yet",
            CANDIDATE,
            INK,
            [row[1] for row in rows],
        ),
        (
            "stopped" if stopping else "not promoted",
            "#ced7e1",
            INK,
            [row[2] * (not end) for end, row in zip(ends, rows, strict=True)],
        ),
        ("diverged or abandoned", FAILED, "#ffffff", [row[3] for row in rows]),
    )
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": heights,
            "x": counts,
            "width": 0.8,
            "text": [f"{count:,}" if count > 0.06 * most else "" for count in counts],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
            "textfont": {"color": ink},
            "marker": {"color": color},
            "hoverinfo": "x+name",
        }
        for name, color, ink, counts in kinds
        if any(counts)
    ]
    entered = Counter(bands.of(trial.bracket, 0) for trial in series.trials) if bands.entry_levels else Counter()
    points: list[Point] = []
    labels = []
    for k, (band, row) in enumerate(zip(bands.all, rows, strict=True)):
        words = f"{row[2]:,} of {sizes[k]:,} {top}" if ends[k] else f"{row[0]:,} of {sizes[k]:,} went on"
        words += f"; {entered[k]:,} began here" if entered[k] else ""
        empty = "closed" if band.kind == "closed" else "none"
        points.append((sizes[k], heights[k], f" {words if sizes[k] else empty}"))
        label = f"Rung {band.rung.rung} ({band.rung.level:,})"
        labels.append(label if band.kind != "closed" else f'<span style="color:#98a3af">{label}</span>')
    beside: dict[str, Any] = {
        "textposition": "middle right",
        "textfont": {"color": MUTED, "size": 12},
        "cliponaxis": False,
    }
    data.append(trace("", points, MUTED, mode="text", showlegend=False, **beside) | {"hoverinfo": "none"})
    across = axis("trials", tickformat=",d", range=[0, (1.6 if entered else 1.45) * most])
    if most < 8:
        across |= {"dtick": 1}
    up = axis("", tickvals=heights, ticktext=labels, range=[-0.6, max(heights) + (1.2 if bands.several else 0.6)])
    height = 130 + round((46 if len(rows) < 8 else 34) * (max(heights) + 1 + bands.several))
    shape = layout(height, barmode="stack", xaxis=across, yaxis=up | {"showgrid": False, "ticks": ""})
    shape["annotations"] = _headings(bands, heights, 0.42, xref="x")
    return Figure("rungs", "Trials by rung", _counts_caption(series), data, shape, zoom=False)


def rung_table(series: Series) -> list[tuple[int, int, int, int]]:
    """Results per band: (went on, will go on, other finite results, diverged or abandoned)."""
    bands = series.bands
    went, stayed, lost = ([0] * len(bands.all) for _ in range(3))
    for trial in series.trials:
        granted = trial.granted
        target = 0 if granted is None else trial.searched if granted.rung == FURTHER else granted.target
        for result in trial.results:
            counts = lost if result.loss is None else went if target > result.resource else stayed
            counts[bands.of(result.bracket, result.rung)] += 1
        if trial.abandoned is not None and not trial.is_at(trial.abandoned):
            lost[bands.of(trial.abandoned.bracket, trial.abandoned.rung)] += 1
    waiting = [min(stayed[k], band.rung.waiting) for k, band in enumerate(bands.all)]
    return [(went[k], waiting[k], stayed[k] - waiting[k], lost[k]) for k in range(len(bands.all))]


def _top_word(series: Series) -> str:
    ends = [band.rung.level for band in series.bands.all if band.kind in ("top", "ceiling")]
    if any(band.kind == "ceiling" for band in series.bands.all):
        return "reached the ceiling"
    full = getattr(series.study.spec.search, "max_resource", None)
    return "trained in full" if all(level == full for level in ends) else "reached the top"


def _counts_caption(series: Series) -> str:
    bands = series.bands
    if len(bands.all) == 1:
        return "This search has one rung: every trial trains in full."
    words = "How many trials each rung holds and how many of them went on: few trials at the top mean training saved."
    if len({ladder.start for ladder in bands.ladders}) > 1:
        words += (
            " Brackets are searches side by side: the higher one starts, the longer its trials train before any of "
            "them is left behind."
        )
    elif bands.entry_levels:
        words += (
            " All brackets share these rungs: the trials of a higher bracket begin further up, without the tests below."
        )
    if any(band.kind == "closed" for band in bands.all):
        words += " Closed rungs open one by one, each when training up to the rung below it changed who is better."
    return words
