"""One look for all figures: colours, axes, traces, and text from outside."""

from __future__ import annotations

import copy
import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import plotly.io

from hpo_core.views.formatting import number, quantile

BEST, FAILED, LOST, RUNNING, CANDIDATE = "#e8590c", "#d6336c", "#868e96", "#d0ebff", "#f2b84b"
BLUE, NAVY, GREEN = "#1c6dd0", "#0b2f6b", "#0a7d55"
INK, MUTED, GRID = "#1f2933", "#64707d", "#e9edf2"
SERIES = (BLUE, BEST, "#2b8a3e", "#9c36b5", "#c79100", "#0b7285", FAILED, "#5c677d")
"""Colours of searches and scenarios that are compared; each differs from its neighbours in lightness, too."""
WORST_TO_BEST: list[list[Any]] = [[0, "#dfe5ec"], [0.3, "#a9c8ea"], [0.65, BLUE], [1, NAVY]]
FONT = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DARKER = '<span class="on-light">darker</span><span class="on-dark">brighter</span>'
"""Caption word for "darker": the dark theme shows in light colours what is dark on white."""
CUT = " Values far beyond the others lie outside; double-click shows them."
LISTED = 12
"""Most traces of one kind that a legend lists."""
LANES_NAMED = 40
"""Most rows of a timeline that have names."""
WIDEST = 1e100
"""Largest value on an axis: beyond it the length of the axis may overflow."""
_STOPS = ((190, 201, 214), (116, 172, 223), (28, 109, 208), (11, 47, 107))
_UNITS = ((172800, 86400.0, "days"), (7200, 3600.0, "hours"), (180, 60.0, "minutes"))

Trace = dict[str, Any]
Point = tuple[float | None, float | None, str]
"""A place on both axes, and the words that the mouse shows there."""
GAP: Point = (None, None, "")
"""End of a line within a trace."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A Plotly figure as plain data, with the words around it."""

    key: str
    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    min_width: int = 0
    """Pixels; narrower screens scroll sideways instead of squeezing the figure."""
    zoom: bool = True

    def plotly(self) -> go.Figure:
        """The figure apart from a page, for a script or a notebook, with its title."""
        title = {"text": html.escape(self.title), "y": 0.99, "yanchor": "top"}
        margin = self.layout["margin"] | {"t": self.layout["margin"]["t"] + 40}
        return NotebookFigure({"data": self.data, "layout": self.layout | {"title": title, "margin": margin}})


def level_color(level: int, levels: int) -> str:
    place = (len(_STOPS) - 1) * (max(level, 0) / (levels - 1) if levels > 1 else 2 / 3)
    low = min(int(place), len(_STOPS) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def pale(color: str) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"


_AXIS = {
    "gridcolor": GRID,
    "linecolor": "#c9d1da",
    "zeroline": False,
    "automargin": True,
    "ticks": "outside",
    "tickcolor": "#c9d1da",
    "title": {"standoff": 10, "font": {"size": 13}},
}
LOOK = {
    "margin": {"l": 64, "r": 20, "t": 30, "b": 40},
    "font": {"family": FONT, "size": 13, "color": INK},
    "paper_bgcolor": "#ffffff",
    "plot_bgcolor": "#ffffff",
    "hovermode": "closest",
    "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
    "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0, "traceorder": "normal"},
    "template": {"layout": {"xaxis": _AXIS, "yaxis": _AXIS}},
}
LOG = {"type": "log", "tickformat": "~g", "nticks": 5}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Layout that every figure starts from; titles and captions are HTML outside it."""
    return {"height": height, **copy.deepcopy(LOOK), **more}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def time_axis(seconds: float, what: str = "time") -> tuple[float, dict[str, Any]]:
    divisor, unit = next(((size, unit) for least, size, unit in _UNITS if seconds >= least), (1.0, "seconds"))
    most = seconds / divisor or 1.0
    return divisor, axis(f"{what} ({unit})", range=[-0.01 * most, 1.015 * most])


def trace(
    name: str,
    points: Iterable[Point],
    color: str,
    *,
    mode: str = "markers",
    width: float = 2.0,
    size: Any = 6,
    shape: str = "linear",
    **more: Any,
) -> Trace:
    """Points or lines with hover texts; ``width`` and ``size`` in pixels, ``shape`` is ``hv`` for steps."""
    known = list(points)
    marker = {"color": color, "size": size} | more.pop("marker", {})
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": [x if x is None else rounded(x) for x, _, _ in known],
        "y": [y if y is None else rounded(y) for _, y, _ in known],
        "text": [words for _, _, words in known],
        "hoverinfo": "text",
        **({"line": {"color": color, "width": width, "shape": shape}} if "lines" in mode else {}),
        **({"marker": marker} if "markers" in mode else {}),
        **more,
    }


def bars(name: str, rows: Iterable[tuple[float, float, float, str]], color: str, **more: Any) -> Trace:
    known = list(rows)
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "width": 0.76,
        "hoverinfo": "text",
        "textposition": "none",
        "base": [rounded(begin) for _, begin, _, _ in known],
        "x": [rounded(end - begin) for _, begin, end, _ in known],
        "y": [row for row, _, _, _ in known],
        "text": [words for _, _, _, words in known],
        "marker": {"color": color, "line": {"width": 0.5, "color": "#ffffff"}},
        **more,
    }


def note(words: str, *, x: float = 0, y: float, **more: Any) -> dict[str, Any]:
    """Words inside a figure, to the right of and above a place."""
    place = {"x": x, "y": y, "xref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return {"text": words, **place, "font": {"size": 12}, **more}


def rows(count: int, *, height: int, gap: int, titles: Sequence[str] = (), right: bool = False) -> dict[str, Any]:
    """Axes and headings of plots one below the other, and the ``height`` of all.

    Args:
        height: of one plot, in pixels.
        gap: between two plots, in pixels.
        titles: above each plot.
        right: whether each plot has a second vertical axis.
    """
    from plotly.subplots import make_subplots

    plot = count * (height + gap) - gap
    made: dict[str, Any] = make_subplots(
        rows=count,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=gap / plot if count > 1 else 0,
        subplot_titles=list(titles) or None,
        specs=[[{"secondary_y": right}]] * count,
    ).layout.to_plotly_json()
    made.pop("template", None)
    for heading in made.get("annotations", ()):
        heading |= {"x": 0, "xanchor": "left", "font": {"size": 12}}
    return {"height": plot, **made}


def axis_key(place: int) -> str:
    return "" if place == 0 else str(place + 1)


@dataclass(frozen=True, slots=True)
class Scale:
    """Layout of the metric's values on an axis."""

    log: bool
    low: float
    high: float
    cut: bool
    """True if some values lie outside [low, high]."""

    def place(self, value: float) -> float:
        """Position on the (possibly logarithmic) axis; values outside stand at the ends."""
        return math.log10(self.kept(value)) if self.log else self.kept(value)

    def kept(self, value: float) -> float:
        """The value, or the nearer end where it lies outside."""
        return min(max(value, self.low), self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """Positions of the lowest and the highest value."""
        return self.place(self.low), self.place(self.high)

    def ticks(self) -> tuple[list[float], list[str]]:
        """Positions of round values, and their words."""
        values = log_ticks(*self.ends) if self.log else round_ticks(*self.ends)
        return [self.place(value) for value in values], [number(value) for value in values]

    def axis(self, title: str) -> dict[str, Any]:
        """The axis as Plotly wants it."""
        low, high = self.ends
        pad = 0.04 * (high - low) or abs(high) * 0.05 or 0.5
        drawn = axis(title, range=[low - pad, high + pad])
        if self.log:
            ticks = log_ticks(low - pad, high + pad)
            drawn |= {"type": "log", "tickvals": ticks, "ticktext": [number(tick) for tick in ticks]}
        return drawn


def scale(values: Iterable[float | None], *, maximize: bool) -> Scale:
    """Axis for a metric: logarithmic past a factor of 20; hopeless values do not squeeze the others."""
    finite = sorted(min(max(v, -WIDEST), WIDEST) for v in values if v is not None and math.isfinite(v))
    if not finite:
        return Scale(False, 0.0, 1.0, False)
    low, high = finite[0], finite[-1]
    share = maximize and high <= 1  # an accuracy is read near 1, where a logarithm has no room
    log = low > 0 and high / low > 20 and not share
    place = math.log10 if log else float
    kept = quantile(finite, 0.05 if maximize else 0.95)
    good = place(high) - place(kept) if maximize else place(kept) - place(low)
    cut = place(high) - place(low) > 4 * good > 0
    if not cut:
        return Scale(log, low, high, False)
    return Scale(log, kept, high, True) if maximize else Scale(log, low, kept, True)


def round_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from ``low`` to ``high``.

    >>> round_ticks(0.0, 0.99), round_ticks(1, 6)
    ([0.0, 0.2, 0.4, 0.6, 0.8], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(size * power for size in (10, 5, 2.5, 2, 1) if (high - low) / (size * power) >= 4 - 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    decades = high - low
    steps = (1, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 4 else (1,)
    every = max(1, round(decades / 7))
    powers = range(math.floor(low) // every * every, math.ceil(high) + 1, every)
    found = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in found if 0 < tick < math.inf and low <= math.log10(tick) <= high]


def whole(value: object, width: int = 44) -> str:
    """A name inside a figure that is not shortened: over several lines, and escaped.

    >>> whole("asha-<b>"), whole("validation-accuracy-of-digits", 20)
    ('asha-&lt;b&gt;', 'validation-accuracy-<br>of-digits')
    """
    return "<br>".join(map(html.escape, textwrap.wrap(str(value), width)))


def text(value: object, most: int = 40) -> str:
    """Words from outside for a figure or the page: shortened in the middle, and escaped.

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


def word(value: object, most: int = 24) -> str:
    """A parameter's value for a figure, escaped; ``–`` where a trial does not use the parameter."""
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else text(value, most)


_FALLBACK = '<iframe title="{title}" srcdoc="{page}" width="100%" height="{height}" style="border:0"></iframe>'
_DATA_ALONE = "plotly_mimetype"
"""Plotly's choice in Jupyter: data for the server's extension and nothing else, so a blank cell without it."""


class NotebookFigure(go.Figure):  # type: ignore[misc]
    """A figure with a page and a sentence beside its data, for programs that cannot draw the data.

    The page loads plotly.js (5 MB) from ``cdn.plot.ly``, as Plotly's own ``notebook_connected``: each figure of a saved
    notebook would hold it otherwise. Without a network: ``plotly.io.renderers.default = "notebook"``.
    """

    def _repr_mimebundle_(self, *arguments: Any, **settings: Any) -> dict[str, Any]:
        found = dict(super()._repr_mimebundle_(*arguments, **settings))
        title = self.layout.title.text or "figure"
        if plotly.io.renderers.default == _DATA_ALONE:
            page = self.to_html(include_plotlyjs="cdn")
            height = int(self.layout.height or 450) + 20
            found["text/html"] = _FALLBACK.format(title=title, page=html.escape(page), height=height)
        return found | {"text/plain": f"{html.unescape(title)} ({len(self.data)} traces; drawn by Plotly)"}

    def _ipython_display_(self) -> None:
        if plotly.io.renderers.default != _DATA_ALONE:
            super()._ipython_display_()
            return
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
