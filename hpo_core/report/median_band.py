"""Several runs as one line with a band: the median, and the range from worst to best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.report.style import rounded, whole
from hpo_core.views.formatting import quantile

COLORS = ("#1c6dd0", "#e8590c", "#2b8a3e", "#9c36b5", "#c79100", "#0b7285", "#d6336c", "#5c677d")
POINTS = 240

Track = tuple[Sequence[tuple[float, float]], float]
"""Changes of a loss as (place, loss) in ascending order of the place, and the place where the run ends."""
Band = tuple[list[float], list[float], list[float], list[float]]
"""Places, and there the least, the median and the largest value."""


def band(tracks: Sequence[Track], sign: float, *, log: bool) -> Band:
    """Over all tracks that have a value, from where each of them has one to where the last one ends.

    Args:
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
    columns = [latest_values(steps, places, sign) for steps, _ in known]
    ordered = [sorted(at) for at in zip(*columns, strict=True)]
    return places, [o[0] for o in ordered], [quantile(o, 0.5) for o in ordered], [o[-1] for o in ordered]


def latest_values(steps: Sequence[tuple[float, float]], places: Sequence[float], sign: float) -> list[float]:
    """The metric of the latest step at each place."""
    found = []
    at = 0
    for place in places:
        while at + 1 < len(steps) and steps[at + 1][0] <= place:
            at += 1
        found.append(steps[at][1] * sign)
    return found


def band_lines(
    name: str, color: str, at: list[float], *, low: list[float], middle: list[float], high: list[float], several: bool
) -> list[dict[str, Any]]:
    """The median as a line and, where there are several runs, the band below it."""
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": whole(name),
        "x": at,
        "y": [rounded(v) for v in middle],
        "line": {"color": color, "width": 2.5, "shape": "hv"},
        "legendgroup": name,
    }
    if not several:
        return [line]
    area = {
        "type": "scatter",
        "mode": "lines",
        "x": at + at[::-1],
        "y": [rounded(v) for v in [*low, *high[::-1]]],
        "fill": "toself",
        "fillcolor": pale(color),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": name,
    }
    return [area, line]


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]


def pale(color: str) -> str:
    """A colour for areas."""
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
