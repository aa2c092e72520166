"""Several runs as one line with a band: the median, and the range from worst to best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.report.style import (
    SERIES,
    Figure,
    Trace,
    axis,
    layout,
    log_axis,
    pale,
    rounded,
    scale,
    time_axis,
    trace,
    whole,
)
from hpo_core.views.formatting import quantile

POINTS = 240
"""Points of a line."""
LOG_FROM = 20
"""Ratio of the end to the first result from which the horizontal axis is logarithmic."""

Track = tuple[Sequence[tuple[float, float]], float]
"""Changes of a loss as (place, loss) in ascending order of the place, and the place where the run ends."""
Band = tuple[list[float], list[float], list[float], list[float]]
"""Places, and there the least, the median and the largest value."""


def band(tracks: Sequence[Track], sign: float, *, log: bool) -> Band:
    """Range of all tracks with a value, from where each of them has one to where the last one ends.

    Args:
        tracks: one for each run.
        sign: factor between a loss and the metric.
        log: whether places are spaced evenly on a logarithmic axis.
    """
    known = [(steps, end) for steps, end in tracks if steps]
    if not known:
        return [], [], [], []
    begin, end = max(steps[0][0] for steps, _ in known), max(end for _, end in known)
    shares = [k / (POINTS - 1) for k in range(POINTS)]
    log = log and begin > 0
    places = [begin * (end / begin) ** share if log else begin + (end - begin) * share for share in shares]
    columns = [_latest_values(steps, places, sign) for steps, _ in known]
    ordered = [sorted(at) for at in zip(*columns, strict=True)]
    return places, [o[0] for o in ordered], [quantile(o, 0.5) for o in ordered], [o[-1] for o in ordered]


def _latest_values(steps: Sequence[tuple[float, float]], places: Sequence[float], sign: float) -> list[float]:
    """The metric of the latest step at each place."""
    found = []
    at = 0
    for place in places:
        while at + 1 < len(steps) and steps[at + 1][0] <= place:
            at += 1
        found.append(steps[at][1] * sign)
    return found


def band_lines(name: str, color: str, drawn: Band, *, several: bool, divisor: float = 1.0, shape: str) -> list[Trace]:
    """The median as a line and, where there are several runs, the band below it."""
    places, low, middle, high = drawn
    at = [rounded(place / divisor) for place in places]
    points = [(x, y, "") for x, y in zip(at, middle, strict=True)]
    line = trace(whole(name), points, color, mode="lines", width=2.5, shape=shape, legendgroup=name)
    line = {key: value for key, value in line.items() if key not in ("text", "hoverinfo")}
    if not several:
        return [line]
    area = line | {
        "x": at + at[::-1],
        "y": [rounded(v) for v in [*low, *high[::-1]]],
        "fill": "toself",
        "fillcolor": pale(color),
        "line": {"width": 0, "shape": shape},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [area, line]


def incumbents(
    key: str,
    title: str,
    caption: str,
    groups: Sequence[tuple[str, Sequence[Track]]],
    *,
    metric: str,
    maximize: bool,
    along: str | None = None,
) -> Figure | None:
    """The best metric so far of several groups of runs, each a line with a band.

    Args:
        key, title, caption: of the figure.
        groups: name and runs of each.
        metric: title of the vertical axis, escaped.
        maximize: whether larger values of the metric are better.
        along: title of the horizontal axis; None: time in seconds.
    """
    sign = -1.0 if maximize else 1.0
    values = [loss * sign for _, tracks in groups for steps, _ in tracks for _, loss in steps]
    last = max((end for _, tracks in groups for _, end in tracks), default=0.0)
    if not values or last <= 0:
        return None
    divisor, across = time_axis(last) if along is None else (1.0, axis(along))
    begin = min(steps[0][0] for _, tracks in groups for steps, _ in tracks if steps)
    log = 0 < begin * LOG_FROM <= last
    if log:  # the beginning decides, and the last steps take longest
        across = log_axis(across["title"]["text"], begin / divisor, last / divisor, pad=0.01)
    data: list[Trace] = []
    for (name, tracks), color in zip(groups, series_colors(len(groups)), strict=True):
        drawn = band(tracks, sign, log=log)
        data += band_lines(name, color, drawn, several=len(tracks) > 1, divisor=divisor, shape="hv")
    up: dict[str, Any] = scale(values, maximize=maximize).axis(metric)
    return Figure(key, title, caption, data, layout(430, xaxis=across, yaxis=up))


def series_colors(count: int) -> list[str]:
    """A colour for each of several searches or scenarios."""
    return [SERIES[place % len(SERIES)] for place in range(count)]
