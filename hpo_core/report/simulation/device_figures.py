"""Packing policies side by side, and what their jobs claim of each device."""

from __future__ import annotations

from typing import Any

from hpo_core.report.median_band import COLORS
from hpo_core.report.simulation.answers import Simulated
from hpo_core.report.style import INK, MUTED, Figure, axis, layout, rounded, time_axis, whole
from hpo_core.simulation.run_figures import LOAD_BINS
from hpo_core.simulation.shared_cluster import ONE_PER_DEVICE
from hpo_core.simulation.statistics import Answer
from hpo_core.views.formatting import duration

_CLAIMS = [[0.0, "#f4f6f8"], [0.001, "#d8e3ee"], [0.5, "#74acdf"], [0.95, "#1c6dd0"], [1.0, "#0b2f6b"]]
_MOST_DEVICES = 32
"""So many devices have lines that can be told apart."""


def ends(simulated: Simulated) -> Figure | None:
    """Time to the end, one bar for each policy."""
    found = [(answer, answer.figures(None)) for answer in simulated.answers]
    bars = [(answer, figures["seconds"], figures["occupancy"]) for answer, figures in found]
    last = max((seconds.most for _, seconds, _ in bars if seconds is not None), default=0.0)
    if last <= 0:
        return None
    divisor, across = time_axis(last)
    known = [(answer, seconds, occupancy) for answer, seconds, occupancy in bars if seconds and occupancy]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [whole(answer.scenario.name, 30) for answer, _, _ in known],
            "x": [rounded(seconds.median / divisor) for _, seconds, _ in known],
            "marker": {"color": [MUTED if _is_alone(answer) else COLORS[0] for answer, _, _ in known]},
            "text": [
                f" {duration(seconds.median)}, {100 * occupancy.median:.0f} % occupied"
                for _, seconds, occupancy in known
            ],
            "textposition": "outside",
            "cliponaxis": False,
            "textfont": {"color": INK, "size": 12},
            "hoverinfo": "y+text",
            "showlegend": False,
        }
    ]
    across["title"] = across["title"] | {"text": across["title"]["text"].replace("time", "time to the end")}
    across["range"] = [0, 1.45 * max(seconds.median for _, seconds, _ in known) / divisor]
    shape = layout(70 + 34 * len(known), xaxis=across, yaxis=axis(type="category", autorange="reversed"))
    caption = "Medians of the repeats; occupancy: the compute that jobs claim, over the compute that is there."
    return Figure("ends", "How long it takes with each policy", caption, data, shape, zoom=False)


def device_claims(simulated: Simulated) -> Figure | None:
    """What jobs claim of each device over time, in the first repeat: one job per device, and the soonest policy."""
    drawn = to_draw(simulated)
    last = max((answer.runs[0].seconds for answer in drawn), default=0.0)
    if last <= 0:
        return None
    divisor, across = time_axis(last)
    names: list[str] = []
    rows: list[list[float | None]] = []
    for answer in drawn:
        run, cluster = answer.runs[0], answer.scenario.cluster
        assert cluster is not None
        width = last / LOAD_BINS
        for device, claims in list(zip(cluster.devices, run.claims, strict=True))[:_MOST_DEVICES]:
            names.append(f"{device.name}, {answer.scenario.name}" if len(drawn) > 1 else device.name)
            rows.append(
                [
                    rounded(100 * claims[min(int(place * width / run.seconds * LOAD_BINS), LOAD_BINS - 1)])
                    if place * width < run.seconds
                    else None
                    for place in range(LOAD_BINS)
                ]
            )
    top = max(100.0, *(value for row in rows for value in row if value is not None))
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": [rounded((place + 0.5) * last / LOAD_BINS / divisor) for place in range(LOAD_BINS)],
            "y": [whole(name, 60) for name in names],
            "z": rows,
            "zmin": 0,
            "zmax": rounded(top),
            "colorscale": _CLAIMS,
            "ygap": 2,
            "hoverongaps": False,
            "colorbar": {"title": {"text": "compute<br>claimed (%)", "font": {"size": 12}}, "thickness": 12},
            "hovertemplate": "%{y}<br>%{z:.0f} % claimed<extra></extra>",
        }
    ]
    upward = axis(type="category", autorange="reversed")
    upward["showgrid"] = False
    shape = layout(min(110 + 22 * len(rows), 1600), xaxis=across, yaxis=upward)
    caption = "The first repeat: how much of each device's compute its jobs claim. White: the study has ended."
    left_out = max(len(answer.runs[0].claims) - _MOST_DEVICES for answer in drawn)
    if left_out > 0:
        caption += f" The first {_MOST_DEVICES} devices; {left_out} more are not drawn."
    return Figure("claims", "How full the devices are", caption, data, shape, min_width=600)


def _is_alone(answer: Answer) -> bool:
    return answer.scenario.cluster is not None and answer.scenario.cluster.policy == ONE_PER_DEVICE


def to_draw(simulated: Simulated) -> list[Answer]:
    """The first with one job per device, and the soonest of those that pack: what is drawn over time."""
    alone = [answer for answer in simulated.answers if _is_alone(answer)][:1]
    packed = [answer for answer in simulated.answers if not _is_alone(answer)]
    return alone + ([min(packed, key=_end)] if packed else [])


def _end(answer: Answer) -> float:
    seconds = answer.figures(None)["seconds"]
    return seconds.median if seconds is not None else 0.0
