"""What simulations came to, as a table and as a page of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hpo_core.report.scale import log_ticks, scale
from hpo_core.report.sheet import card, sheet, write_sheet
from hpo_core.report.style import INK, MUTED, Figure, axis, layout, number, rounded, text, time_axis
from hpo_core.simulation.run import LOAD_BINS, Run, Scenario
from hpo_core.simulation.summary import Answer, Spread, quantile

COLORS = ("#1c6dd0", "#e8590c", "#2b8a3e", "#9c36b5", "#c79100", "#0b7285", "#d6336c", "#5c677d")
POINTS = 240
LOG_FROM = 20
"""Time is drawn on a logarithmic axis where the end is so many times later than the first result."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """All answers to one question, with the words around them."""

    study: str
    metric: str
    sign: float
    """Factor between the metric and a loss."""
    answers: tuple[Answer, ...]
    target: float | None
    """A loss."""
    target_given: bool
    source: str
    """Where curves and durations come from."""
    limits: tuple[str, ...]
    """What the simulation takes for granted."""

    @property
    def repeats(self) -> int:
        return len(self.answers[0].runs)

    def heading(self) -> str:
        """What was done, in a line."""
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return f"{self.study}: simulated {times}"


def table(simulated: Simulated) -> list[tuple[str, list[str]]]:
    """(figure, one cell per scenario): the median, in brackets the quartiles."""
    found = [answer.figures(simulated.target) for answer in simulated.answers]
    runs = simulated.repeats
    metric, sign = simulated.metric, simulated.sign

    def cells(key: str, show: Callable[[float], str], missing: str = "never") -> list[str]:
        return [_cell(figures[key], show, runs, missing) for figures in found]

    rows = [("time to the end", cells("seconds", span))]
    if simulated.target is not None:
        better = "≤" if sign > 0 else "≥"
        goal = f"time to {metric} {better} {number(simulated.target * sign)}"
        rows.append((goal, cells("seconds_to_target", span)))
    tops = {answer.scenario.max_resource for answer in simulated.answers}
    if tops != {None}:
        top = f"R = {tops.pop():,}" if len(tops) == 1 else "R"
        rows.append((f"first trial at {top}", cells("seconds_to_first_at_max", span)))
        rows.append((f"trials at {top}", cells("trials_at_max", _whole, "–")))
    rows += [
        ("utilization", cells("utilization", lambda share: f"{100 * share:.0f} %")),
        ("worker-hours", cells("worker_seconds", _hours)),
        ("trials", cells("trials", _whole)),
        ("jobs", cells("jobs", _whole)),
        ("units of training", cells("resource", _whole)),
    ]
    if any(run.failed for answer in simulated.answers for run in answer.runs):
        rows.append(("lost or failed attempts", cells("failed_attempts", _whole)))
        rows.append(("worker-hours lost", cells("lost_worker_seconds", _hours)))
    rows.append((f"best {metric}", cells("best_loss", lambda loss: number(loss * sign), "none")))
    return rows


def span(seconds: float) -> str:
    """A duration in as few words as its size needs.

    >>> span(4.21), span(240), span(250), span(5000), span(9000), span(200000)
    ('4.21 s', '4 min', '4 min 10 s', '83 min', '2 h 30 min', '2 d 8 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.3g} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    if whole < 7200:
        return f"{round(whole / 60)} min"
    if whole < 172800:
        minutes = round(whole / 60)
        return f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")
    hours = round(whole / 3600)
    return f"{hours // 24} d {hours % 24} h".removesuffix(" 0 h")


def _whole(value: float) -> str:
    return f"{round(value):,}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.3g}" if hours < 1000 else f"{round(hours):,}"


def _cell(spread: Spread | None, show: Callable[[float], str], runs: int, missing: str) -> str:
    if spread is None:
        return missing
    middle, low, high = show(spread.median), show(spread.low), show(spread.high)
    cell = middle if low == high else f"{middle} ({low} – {high})"
    return cell if spread.count == runs else f"{cell}, in {spread.count} of {runs}"


def write_simulated(simulated: Simulated, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StorageError: the file cannot be written.
    """
    drawn = [figure for figure in (incumbents(simulated), load(simulated), rungs(simulated)) if figure is not None]
    names = "".join(f"<th>{text(answer.scenario.name, 80)}</th>" for answer in simulated.answers)
    lines = ""
    for label, cells in table(simulated):
        own = "".join(f'<td class="n">{text(cell, 80)}</td>' for cell in cells)
        lines += f"<tr><td>{text(label, 80)}</td>{own}</tr>"
    notes = "".join(f"<p>{text(line, 600)}</p>" for line in [*endings(simulated), *simulated.limits])
    body = (
        f"<header><h1>{escape(simulated.heading())}</h1>"
        f'<p class="about">{text(simulated.source, 400)}</p></header>'
        f'<section class="card" style="margin-top:18px"><h2>What to expect</h2>'
        f'<p class="caption">{SPREADS}</p><div class="scroll"><table><tr><th></th>{names}</tr>{lines}</table></div>'
        f"</section>{''.join(card(figure) for figure in drawn)}"
        f'<section class="card"><h2>What this takes for granted</h2><div class="caption">{notes}</div></section>'
    )
    return write_sheet(sheet(simulated.heading(), body, drawn, "Simulated: nothing was trained."), path)


SPREADS = "Median of the repeats; in brackets the quartiles: half of all repeats lie between them."


def endings(simulated: Simulated) -> list[str]:
    """One line for each reason for which repeats ended early."""
    return [
        f"{answer.scenario.name}: {count} of {len(answer.runs)} repeats ended early ({reason})."
        for answer in simulated.answers
        for reason, count in answer.endings().items()
    ]


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
        times, least, middle, most = _band(answer.runs, sign, log)
        at = [rounded(time / divisor) for time in times]
        data += _band_lines(answer.scenario.name, color, at, least, middle, most, len(answer.runs) > 1)
    shape = layout(430, xaxis=across, yaxis=drawn.axis(f"best {text(simulated.metric)} so far"))
    if simulated.target is not None and simulated.target_given:
        shape["shapes"] = [{
            "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": simulated.target * sign,
            "y1": simulated.target * sign, "line": {"color": MUTED, "dash": "dash", "width": 1},
        }]  # fmt: skip
    dashed = " Dashed: the target." if "shapes" in shape else ""
    caption = (
        f"Line: median of the repeats; band: from the worst to the best of them.{dashed} A line ends where the last "
        "repeat ends."
    )
    return Figure("incumbents", "Best result over time", caption, data, shape)


def _band(runs: Sequence[Run], sign: float, log: bool) -> tuple[list[float], list[float], list[float], list[float]]:
    """(times, least, median, most) of the incumbents' metric, from when every repeat has one."""
    known = [run for run in runs if run.steps]
    if not known:
        return [], [], [], []
    begin, end = max(run.steps[0][0] for run in known), max(run.seconds for run in known)
    shares = [k / (POINTS - 1) for k in range(POINTS)]
    times = [begin * (end / begin) ** share if log else begin + (end - begin) * share for share in shares]
    columns = [_held(run.steps, times, sign) for run in known]
    ordered = [sorted(at) for at in zip(*columns, strict=True)]
    return times, [o[0] for o in ordered], [quantile(o, 0.5) for o in ordered], [o[-1] for o in ordered]


def _held(steps: Sequence[tuple[float, float]], times: Sequence[float], sign: float) -> list[float]:
    """The metric of the latest step at each time."""
    found = []
    place = 0
    for time in times:
        while place + 1 < len(steps) and steps[place + 1][0] <= time:
            place += 1
        found.append(steps[place][1] * sign)
    return found


def _band_lines(
    name: str, color: str, at: list[float], low: list[float], middle: list[float], high: list[float], band: bool
) -> list[dict[str, Any]]:
    line = {
        "type": "scatter", "mode": "lines", "name": text(name, 60), "x": at, "y": [rounded(v) for v in middle],
        "line": {"color": color, "width": 2.5, "shape": "hv"}, "legendgroup": name,
    }  # fmt: skip
    if not band:
        return [line]
    area = {
        "type": "scatter", "mode": "lines", "x": at + at[::-1], "y": [rounded(v) for v in [*low, *high[::-1]]],
        "fill": "toself", "fillcolor": _pale(color), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        "legendgroup": name,
    }  # fmt: skip
    return [area, line]


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
        data += _band_lines(answer.scenario.name, color, at, low, middle, high, len(answer.runs) > 1)
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
    return [
        run.load[min(int(time / run.seconds * bins), bins - 1)] if run.seconds > time else 0.0 for time in times
    ]  # fmt: skip


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
        data.append({
            "type": "bar", "name": text(answer.scenario.name, 60), "x": labels, "y": own,
            "marker": {"color": color}, "text": [f"{count:,.0f}" if count else "" for count in own],
            "textposition": "outside", "textangle": 0, "cliponaxis": False, "hoverinfo": "x+y+name",
            "textfont": {"color": INK, "size": 11}, "showlegend": len(simulated.answers) > 1,
        })  # fmt: skip
    upward = axis("results (median)", type="log", range=[math.log10(0.7), math.log10(most * 2)], dtick=1)
    shape = layout(360, xaxis=axis("trained to", type="category"), yaxis=upward, barmode="group")
    return Figure("rungs", "Results at each level", "How many trials were trained that far.", data, shape, zoom=False)


def _colors(simulated: Simulated) -> list[str]:
    return [COLORS[k % len(COLORS)] for k in range(len(simulated.answers))]


def _pale(color: str) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
