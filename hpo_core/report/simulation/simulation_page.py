"""What simulations came to as a page of figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from hpo_core.report.html_page import card, html_page, write_page
from hpo_core.report.median_band import band, band_lines, color_of
from hpo_core.report.scale import log_ticks, scale
from hpo_core.report.simulation.answers import MEDIANS, SPREADS, Simulated, endings, table
from hpo_core.report.simulation.device_figures import device_claims, ends, to_draw
from hpo_core.report.study_page import table as html_table
from hpo_core.report.style import INK, MUTED, Figure, axis, layout, rounded, text, time_axis, whole
from hpo_core.simulation.repeats import Run, Scenario
from hpo_core.simulation.run_figures import LOAD_BINS
from hpo_core.views.formatting import Spread, number, quantile

FEW = 5
"""So many scenarios are drawn over time; a table has them side by side."""
LOG_FROM = 20
"""Time is drawn on a logarithmic axis where the end is so many times later than the first result."""


def write_simulated(simulated: Simulated, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StorageError: the file cannot be written.
    """
    few = replace(simulated, answers=tuple(to_draw(simulated)) if simulated.shared else simulated.answers[:FEW])
    figures = [trade(simulated), incumbents(few), load(few), rungs(few)]
    if simulated.shared:
        figures = [ends(simulated), device_claims(simulated), incumbents(few), rungs(few)]
    drawn = [figure for figure in figures if figure is not None]
    many = len(simulated.answers) - len(few.answers)
    only = f'<p class="caption">The first {FEW} of {FEW + many} are drawn below.</p>' if many else ""
    if simulated.shared and many:
        names = " and ".join(answer.scenario.name for answer in few.answers)
        only = f'<p class="caption">Drawn over time below: {escape(names)}.</p>'
    notes = "".join(f"<p>{text(line, 600)}</p>" for line in [*endings(simulated), *simulated.limits])
    body = (
        f"<header><h1>{escape(simulated.heading())}</h1>"
        f'<p class="about">{text(simulated.source, 400)}</p></header>'
        f'<section class="card" style="margin-top:18px"><h2>What to expect</h2>'
        f"{_table(simulated)}{only}</section>"
        f"{''.join(card(figure) for figure in drawn)}"
        f'<section class="card"><h2>What this takes for granted</h2><div class="caption">{notes}</div></section>'
    )
    return write_page(html_page(simulated.heading(), body, drawn, "Simulated: nothing was trained."), path)


def _table(simulated: Simulated) -> str:
    """Scenarios side by side; many of them one below the other, and without quartiles."""
    names = ["", *(answer.scenario.name for answer in simulated.answers)]
    few = len(simulated.answers) <= FEW
    lines = [names, *([label, *cells] for label, cells in table(simulated, quartiles=few))]
    if not few:
        lines = [list(line) for line in zip(*lines, strict=True)]
    head, *others = lines
    caption = SPREADS if few else MEDIANS
    return f'<p class="caption">{caption}</p>{html_table(head, others, 1000)}'


def trade(simulated: Simulated) -> Figure | None:
    """Time to the end against worker-hours: one point per scenario."""
    if len(simulated.answers) < 2:
        return None
    found = [answer.figures(None) for answer in simulated.answers]
    times, costs = [one["seconds"] for one in found], [one["worker_seconds"] for one in found]
    points = [(time, cost) for time, cost in zip(times, costs, strict=True) if time is not None and cost is not None]
    if min(min(time.least, cost.least) for time, cost in points) <= 0:
        return None
    last = max(time.most for time, _ in points)
    divisor, upward = time_axis(last)
    low, high = math.log10(min(time.least for time, _ in points) / divisor), math.log10(last / divisor)
    left = math.log10(min(cost.least for _, cost in points) / 3600)
    right = math.log10(max(cost.most for _, cost in points) / 3600)
    wide = max(right - left, 0.3)
    ticks, along = log_ticks(low - 0.1, high + 0.1), log_ticks(left - 0.1, right + 0.1)
    data = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "x": [rounded(cost.median / 3600)],
            "y": [rounded(time.median / divisor)],
            "text": [f" {whole(answer.scenario.name)}"],
            "textposition": "top right",
            "cliponaxis": False,
            "textfont": {"size": 12, "color": INK},
            "marker": {"size": 11, "color": color},
            "showlegend": False,
            "error_x": _bars(cost, 3600),
            "error_y": _bars(time, divisor),
            "hovertemplate": f"{whole(answer.scenario.name)}<br>%{{x}} worker-hours<extra></extra>",
        }
        for answer, (time, cost), color in zip(simulated.answers, points, _colors(simulated), strict=True)
    ]
    upward |= {"type": "log", "range": [low - 0.12, high + 0.12], "tickvals": ticks}
    upward |= {"ticktext": [number(tick) for tick in ticks]}
    upward["title"] = upward["title"] | {"text": upward["title"]["text"].replace("time", "time to the end")}
    across = axis(
        "worker-hours",
        type="log",
        range=[left - 0.05 * wide - 0.05, right + 0.3 * wide],
        tickvals=along,
        ticktext=[number(tick) for tick in along],
    )
    caption = "Medians, with bars between the quartiles: further down is sooner, further left is cheaper."
    return Figure("trade", "Time against cost", caption, data, layout(420, xaxis=across, yaxis=upward))


def _bars(spread: Spread, divisor: float) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1,
        "width": 0,
        "color": MUTED,
        "array": [rounded((spread.high - spread.median) / divisor)],
        "arrayminus": [rounded((spread.median - spread.low) / divisor)],
    }


def incumbents(simulated: Simulated) -> Figure | None:
    """The best metric so far over time, with a band over the repeats."""
    sign = simulated.sign
    last = max(run.seconds for answer in simulated.answers for run in answer.runs)
    values = [loss * sign for answer in simulated.answers for run in answer.runs for _, loss in run.steps]
    if not values or last <= 0:
        return None
    drawn = scale(values, maximize=sign < 0)
    divisor, across = time_axis(last)
    begin = min(run.steps[0][0] for answer in simulated.answers for run in answer.runs if run.steps)
    log = 0 < begin * LOG_FROM <= last
    if log:  # the first minutes decide, and the last ones take longest
        low, high = math.log10(begin / divisor), math.log10(last / divisor)
        ticks = log_ticks(low, high)
        across |= {"type": "log", "range": [low - 0.01 * (high - low), high + 0.01 * (high - low)], "tickvals": ticks}
        across |= {"ticktext": [number(tick) for tick in ticks]}
    data: list[dict[str, Any]] = []
    for answer, color in zip(simulated.answers, _colors(simulated), strict=True):
        times, least, middle, most = band([(run.steps, run.seconds) for run in answer.runs], sign, log=log)
        at = [rounded(time / divisor) for time in times]
        data += band_lines(
            answer.scenario.name, color, at, low=least, middle=middle, high=most, several=len(answer.runs) > 1
        )
    shape = layout(430, xaxis=across, yaxis=drawn.axis(f"best {text(simulated.metric)} so far"))
    if simulated.target is not None and simulated.target_given:
        shape["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": simulated.target * sign,
                "y1": simulated.target * sign,
                "line": {"color": MUTED, "dash": "dash", "width": 1},
            }
        ]
    dashed = " Dashed: the target." if "shapes" in shape else ""
    caption = (
        f"Line: median of the repeats; band: from the worst to the best of them.{dashed} A line ends where the last "
        "repeat ends."
    )
    return Figure("incumbents", "Best result over time", caption, data, shape)


def load(simulated: Simulated) -> Figure | None:
    """Which share of the workers was busy, over time."""
    last = max(run.seconds for answer in simulated.answers for run in answer.runs)
    if last <= 0:
        return None
    divisor, across = time_axis(last)
    data: list[dict[str, Any]] = []
    for answer, color in zip(simulated.answers, _colors(simulated), strict=True):
        end = max(run.seconds for run in answer.runs)
        times = [end * (k + 0.5) / LOAD_BINS for k in range(LOAD_BINS)]
        there = [_there(answer.scenario, time) for time in times]
        columns = [_busy(run, times) for run in answer.runs]
        ordered = [sorted(at) for at in zip(*columns, strict=True)]
        shares = [
            [100 * min(1.0, quantile(o, share) / n) if n else 0.0 for o, n in zip(ordered, there, strict=True)]
            for share in (0.25, 0.5, 0.75)
        ]
        at = [rounded(time / divisor) for time in times]
        low, middle, high = shares
        data += band_lines(
            answer.scenario.name, color, at, low=low, middle=middle, high=high, several=len(answer.runs) > 1
        )
    for line in data:
        line["line"] = line["line"] | {"shape": "linear"}
    upward = axis("busy workers (%)", range=[0, 104])
    caption = "Share of the workers there that had a job: median of the repeats, band between the quartiles."
    return Figure("load", "How busy the workers are", caption, data, layout(320, xaxis=across, yaxis=upward))


def _there(scenario: Scenario, time: float) -> int:
    return sum(worker.joins <= time < worker.leaves for worker in scenario.workers)


def _busy(run: Run, times: Sequence[float]) -> list[float]:
    """Busy workers of a run at times that may lie beyond its end."""
    bins = len(run.load)
    return [run.load[min(int(time / run.seconds * bins), bins - 1)] if run.seconds > time else 0.0 for time in times]


def rungs(simulated: Simulated) -> Figure | None:
    """Results per level of training."""
    levels = sorted({level for answer in simulated.answers for level, _ in answer.rungs()})
    if not levels:
        return None
    labels = [f"{level:,}" for level in levels]
    most = max(count for answer in simulated.answers for _, count in answer.rungs())
    data: list[dict[str, Any]] = []
    for answer, color in zip(simulated.answers, _colors(simulated), strict=True):
        counts = dict(answer.rungs())
        own = [counts.get(level, 0) for level in levels]
        data.append(
            {
                "type": "bar",
                "name": whole(answer.scenario.name),
                "x": labels,
                "y": own,
                "marker": {"color": color},
                "text": [f"{count:,.0f}" if count else "" for count in own],
                "textposition": "outside",
                "textangle": 0,
                "cliponaxis": False,
                "hoverinfo": "x+y+name",
                "textfont": {"color": INK, "size": 11},
                "showlegend": len(simulated.answers) > 1,
            }
        )
    upward = axis("results (median)", type="log", range=[math.log10(0.7), math.log10(most * 2)], dtick=1)
    shape = layout(360, xaxis=axis("trained to", type="category"), yaxis=upward, barmode="group")
    return Figure("rungs", "Results at each level", "How many trials were trained that far.", data, shape, zoom=False)


def _colors(simulated: Simulated) -> list[str]:
    return [color_of(k) for k in range(len(simulated.answers))]
