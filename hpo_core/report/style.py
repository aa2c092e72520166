"""One look for all figures: colours, layout, axes, and text from outside."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

BEST, FAILED, LOST, RUNNING, CANDIDATE = "#e8590c", "#d6336c", "#868e96", "#d0ebff", "#f2b84b"
OPENS = "#0a7d55"
INK, MUTED, GRID = "#1f2933", "#64707d", "#e9edf2"
FONT = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DARKER = '<span class="on-light">darker</span><span class="on-dark">brighter</span>'
"""In captions: a theme of dark colours shows in light ones what is dark on white."""
DARK_PICTURE = (
    '<style>@media(prefers-color-scheme:dark){[fill="#fff"]{fill:#182029}'
    f'[fill="{INK}"]{{fill:#e3e8ee}}[fill="{MUTED}"]{{fill:#9aa6b2}}[fill="#1c6dd0"]{{fill:#6cb0ff}}'
    f'[stroke="{INK}"]{{stroke:#e3e8ee}}[stroke="{GRID}"]{{stroke:#2a3541}}[stroke="#1c6dd0"]{{stroke:#6cb0ff}}'
    "}</style>"
)
"""Within an SVG that stands in a page as an image: colours for dark pages."""
_STOPS = ((190, 201, 214), (116, 172, 223), (28, 109, 208), (11, 47, 107))


@dataclass(frozen=True, slots=True)
class Figure:
    """A Plotly figure as plain data, with the words around it."""

    key: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    min_width: int = 0
    """Narrower screens scroll sideways instead of squeezing it."""
    zoom: bool = True
    """Whether there is anything to zoom into."""
    narrow: dict[str, Any] | None = None
    """On a screen below 600 pixels: ``layout`` merged into the figure's, ``traces`` by number likewise,
    ``dimensions`` of parallel axes to keep."""


def level_color(level: int, levels: int) -> str:
    """Pale for the lowest rung, dark blue for the highest."""
    place = (len(_STOPS) - 1) * (max(level, 0) / (levels - 1) if levels > 1 else 2 / 3)
    low = min(int(place), len(_STOPS) - 2)
    share = place - low
    mixed = (round(a + (b - a) * share) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Layout every figure starts from; titles and captions are HTML outside it."""
    return {
        "height": height,
        "margin": {"l": 64, "r": 20, "t": 16, "b": 52},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "traceorder": "normal"},
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """A quiet axis."""
    return {
        "title": {"text": title, "standoff": 10, "font": {"size": 13}},
        "gridcolor": GRID,
        "linecolor": "#c9d1da",
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": "#c9d1da",
        **more,
    }


def time_axis(seconds: float) -> tuple[float, dict[str, Any]]:
    """Divisor for times, and their axis."""
    divisor, unit = next(((size, unit) for least, size, unit in _UNITS if seconds >= least), (1.0, "seconds"))
    most = seconds / divisor or 1.0
    return divisor, axis(f"time ({unit})", range=[-0.01 * most, 1.015 * most])


_UNITS = ((172800, 86400.0, "days"), (7200, 3600.0, "hours"), (180, 60.0, "minutes"))


def whole(value: object, width: int = 44) -> str:
    """A name inside a figure that is not shortened: over several lines, and escaped.

    >>> whole("asha-<b>"), whole("validation-accuracy-of-digits", 20)
    ('asha-&lt;b&gt;', 'validation-accuracy-<br>of-digits')
    """
    lines, rest = [], str(value)
    while len(rest) > width:
        place = 1 + max(rest.rfind(mark, width // 2, width) for mark in " -_./,") or width
        lines.append(rest[:place])
        rest = rest[place:]
    return "<br>".join(html.escape(line) for line in [*lines, rest])


def text(value: object, most: int = 40) -> str:
    """Somebody else's words inside a figure or the page: shortened in the middle, and escaped.

    >>> text("<b>"), text("encoder_layer_norm_11", 12)
    ('&lt;b&gt;', 'encoder…m_11')
    """
    plain = str(value)
    if len(plain) > most:
        tail = (most - 1) * 2 // 5
        plain = plain[: most - 1 - tail] + "…" + plain[len(plain) - tail :]
    return html.escape(plain)


def rounded(value: float) -> float:
    """Six significant digits: enough for a picture, a third of the bytes."""
    return float(f"{value:.6g}")
