"""Memory and compute of shared devices over time, a panel for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.model.devices.memory_words import memory_words
from hpo_core.report.series import Series
from hpo_core.report.style import Figure, axis, layout, rounded, text, time_axis
from hpo_core.views.device_use import DeviceLoad, DeviceUse
from hpo_core.views.formatting import duration

DEVICES = 12
"""Devices with a picture of their own; a table has all."""
STEPS = 4000
"""Moments of one device's curves; of more, every so many-th."""
_PANEL, _GAP, _AROUND = 150, 48, 92
"""Heights in pixels: one panel, between two, and what surrounds all."""
_CLAIMED, _USED, _COMPUTE = "#a5c8f0", "#1c6dd0", "#e8590c"


def device_loads(series: Series, uses: Sequence[DeviceUse]) -> Figure:
    """Memory from the left axis of each panel, compute from the right one."""
    shown = busiest(uses)
    divisor, across = time_axis(series.wall)
    plot = len(shown) * (_PANEL + _GAP) - _GAP
    axes: dict[str, Any] = {}
    notes: list[dict[str, Any]] = []
    data: list[dict[str, Any]] = []
    for row, use in enumerate(shown):
        top = 1 - row * (_PANEL + _GAP) / plot
        domain = [max(0.0, top - _PANEL / plot), top]
        quiet = {} if row == len(shown) - 1 else {"title": {"text": ""}, "showticklabels": False}
        data += _curves(use, row, divisor)
        axes |= _axes(use, row, across | quiet, domain)
        name = f"<b>{text(use.name, 28)}</b> {text(use.architecture, 20)}"
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
        notes.append({"text": name, **place, "showarrow": False, "font": {"size": 12}})
    unknown = " Of jobs that run, what they use is not known yet." if any(use.running for use in uses) else ""
    caption = (
        "What the jobs of a device claimed together, and the sum of their peaks of memory, which they need not have "
        f"reached at the same time.{unknown} Compute is on the right axis; above 100% it is "
        f"oversubscribed.{left_out(uses)}"
    )
    shape = layout(plot + _AROUND, **axes, annotations=notes)
    shape["margin"] |= {"t": 40, "r": 54}
    shape["legend"] |= {"y": 1 + 24 / plot}  # above the first panel's name
    return Figure("device-load", "Memory and compute of devices", caption, data, shape)


def _kept(use: DeviceUse) -> list[DeviceLoad]:
    own = list(use.load[:: -(-len(use.load) // STEPS)])
    return own if own[-1] is use.load[-1] else [*own, use.load[-1]]


def _unit(use: DeviceUse) -> tuple[float, str]:
    return (1e9, "GB") if max(use.claimed, use.used) >= 10**9 else (1e6, "MB")


def _curves(use: DeviceUse, row: int, divisor: float) -> list[dict[str, Any]]:
    own, (unit, _) = _kept(use), _unit(use)
    common: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": [rounded(load.time / divisor) for load in own],
        "xaxis": f"x{_number(row)}",
        "hoverinfo": "text",
        "text": [
            f"{duration(load.time)}: {load.jobs} jobs<br>memory: {memory_words(load.claimed)} claimed, "
            f"{memory_words(load.used)} used<br>compute: {percent(load.compute / 1000)} claimed"
            for load in own
        ],
        "showlegend": row == 0,
    }

    def curve(name: str, values: list[float], on: str, line: dict[str, Any], **more: Any) -> dict[str, Any]:
        shape = {"shape": "hv", "width": 1.5, **line}
        return {**common, "name": name, "legendgroup": name, "y": values, "yaxis": on, "line": shape, **more}

    claimed, used = [rounded(load.claimed / unit) for load in own], [rounded(load.used / unit) for load in own]
    left, right = f"y{_number(2 * row)}", f"y{2 * row + 2}"
    area = {"fill": "tozeroy", "fillcolor": "rgba(116,172,223,0.30)"}
    return [
        curve("memory claimed", claimed, left, {"color": _CLAIMED}, **area),
        curve("memory used", used, left, {"color": _USED, "width": 2}),
        curve("compute claimed", [load.compute / 10 for load in own], right, {"color": _COMPUTE, "dash": "dot"}),
    ]


def _axes(use: DeviceUse, row: int, across: dict[str, Any], domain: list[float]) -> dict[str, Any]:
    left, right = _number(2 * row), 2 * row + 2
    most = max(1000, *(load.compute for load in use.load)) / 10
    percents = [50 * k for k in range(1 + int(most // 50))]
    shown = percents[:: -(-len(percents) // 5)]
    anchor = f"x{_number(row)}"
    of_compute = {"overlaying": f"y{left}", "side": "right", "range": [0, 1.06 * most], "showgrid": False}
    return {
        f"xaxis{_number(row)}": across | {"anchor": f"y{left}"},
        f"yaxis{left}": axis(_unit(use)[1], domain=domain, rangemode="tozero", anchor=anchor, nticks=5),
        f"yaxis{right}": axis("", tickvals=shown, ticktext=[f"{x}%" for x in shown], anchor=anchor, **of_compute),
    }


def _number(place: int) -> str:
    """Plotly's number of an axis; the first one has none."""
    return "" if place == 0 else str(place + 1)


def busiest(uses: Sequence[DeviceUse]) -> list[DeviceUse]:
    """Those that are drawn, in the same order."""
    kept = sorted(uses, key=lambda use: -use.jobs)[:DEVICES]
    return [use for use in uses if use in kept]


def left_out(uses: Sequence[DeviceUse]) -> str:
    """Says that some are not drawn."""
    return f" Of {len(uses):,} devices the {DEVICES} with most jobs are drawn." if len(uses) > DEVICES else ""


def percent(share: float) -> str:
    """As a whole number."""
    return f"{100 * share:.0f}%"
