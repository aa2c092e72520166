"""Results of simulations: a table with one column for each scenario, and a page of figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from hpo_core.report.comparison import incumbents, series_colors
from hpo_core.report.html_page import Section, card, html_page, write_page
from hpo_core.report.html_page import table as html_table
from hpo_core.report.style import (
    INK,
    MUTED,
    Figure,
    Trace,
    axis,
    layout,
    text,
    whole,
)
from hpo_core.simulation.repeats import ScenarioAnswer
from hpo_core.views.formatting import Spread, duration, number

FEW = 5
"""Scenarios that are drawn."""
SPREADS = "Median of the repeats; in brackets the quartiles: half of all repeats lie between them."


@dataclass(frozen=True, slots=True)
class Simulated:
    """All answers to one question, with the words around them."""

    study: str
    metric: str
    sign: float
    """Factor between the metric and a loss."""
    answers: tuple[ScenarioAnswer, ...]
    target: float | None
    """A loss."""
    target_given: bool
    source: str
    """Source of curves and durations."""
    limits: tuple[str, ...]
    """Assumptions of the simulation."""

    @property
    def repeats(self) -> int:
        return len(self.answers[0].runs)

    def heading(self) -> str:
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return f"{self.study}: simulated {times}"


def table(simulated: Simulated) -> list[tuple[str, list[str]]]:
    """(figure, one cell per scenario): the median, and in brackets the quartiles."""
    found = [answer.figures(simulated.target) for answer in simulated.answers]
    scenarios = [answer.scenario for answer in simulated.answers]
    metric, sign = simulated.metric, simulated.sign
    rows: list[tuple[str, list[str]]] = []

    def add(label: str, key: str, show: Callable[[float], str], missing: str = "never") -> None:
        runs = simulated.repeats
        rows.append((label, [_cell(one[key], show, runs, missing) for one in found]))

    add("time to the end", "seconds", duration)
    if simulated.target is not None:
        goal = f"time to {metric} {'≤' if sign > 0 else '≥'} {number(simulated.target * sign)}"
        add(goal, "seconds_to_target", duration)
    tops = {scenario.max_resource for scenario in scenarios}
    if tops != {None}:
        top = f"R = {tops.pop():,}" if len(tops) == 1 else "R"
        add(f"first trial at {top}", "seconds_to_first_at_max", duration)
        add(f"trials at {top}", "trials_at_max", _whole, "–")
    add("utilization", "utilization", _percent)
    add("worker-hours", "worker_seconds", _hours)
    add("trials", "trials", _whole)
    add("jobs", "jobs", _whole)
    add("units of training", "resource", _whole)
    if any(run.failed for answer in simulated.answers for run in answer.runs):
        add("lost or failed attempts", "failed_attempts", _whole)
        add("worker-hours lost", "lost_worker_seconds", _hours)
    add(f"best {metric}", "best_loss", lambda loss: number(loss * sign), "none")
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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


def endings(simulated: Simulated) -> list[str]:
    """One line for each reason for which repeats ended early."""
    return [
        f"{answer.scenario.name}: {count} of {len(answer.runs)} repeats ended early ({reason})."
        for answer in simulated.answers
        for reason, count in answer.endings().items()
    ]


def write_simulated(simulated: Simulated, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StorageError: the file cannot be written.
    """
    few = replace(simulated, answers=simulated.answers[:FEW])
    figures = [_incumbents(few), _rungs(few)]
    drawn = [figure for figure in figures if figure is not None]
    many = len(simulated.answers) - len(few.answers)
    only = f"The first {FEW} of {FEW + many} are drawn below." if many else ""
    notes = "".join(f"<p>{text(line, 600)}</p>" for line in [*endings(simulated), *simulated.limits])
    lines = [["", *(answer.scenario.name for answer in simulated.answers)]]
    lines += [[label, *cells] for label, cells in table(simulated)]
    first, *others = zip(*lines, strict=True)  # a row for each scenario
    shown = html_table(first, others, 1000) + (f'<p class="caption">{only}</p>' if only else "")
    parts: list[Section | Figure] = [
        Section("What to expect", SPREADS, shown),
        *drawn,
        Section("What this takes for granted", "", f'<div class="caption">{notes}</div>'),
    ]
    head = f'<header><h1>{escape(simulated.heading())}</h1><p class="about">{text(simulated.source, 400)}</p></header>'
    body = head + "".join(map(card, parts))
    return write_page(html_page(simulated.heading(), body, drawn, "Simulated: nothing was trained."), path)


def _each(simulated: Simulated) -> list[tuple[ScenarioAnswer, str]]:
    return list(zip(simulated.answers, series_colors(len(simulated.answers)), strict=True))


def _incumbents(simulated: Simulated) -> Figure | None:
    target = simulated.target if simulated.target_given else None
    caption = (
        f"Line: median of the repeats; band: from the worst to the best of them."
        f"{'' if target is None else ' Dashed: the target.'} A line ends where the last repeat ends."
    )
    found = incumbents(
        "incumbents",
        "Best result over time",
        caption,
        [(answer.scenario.name, [(run.steps, run.seconds) for run in answer.runs]) for answer in simulated.answers],
        metric=f"best {text(simulated.metric)} so far",
        maximize=simulated.sign < 0,
    )
    if found is not None and target is not None:
        place = {"xref": "paper", "x0": 0, "x1": 1, "y0": target * simulated.sign, "y1": target * simulated.sign}
        found.layout["shapes"] = [{"type": "line", **place, "line": {"color": MUTED, "dash": "dash", "width": 1}}]
    return found


def _rungs(simulated: Simulated) -> Figure | None:
    levels = sorted({level for answer in simulated.answers for level, _ in answer.rungs()})
    if not levels:
        return None
    most = max(count for answer in simulated.answers for _, count in answer.rungs())
    data: list[Trace] = []
    for answer, color in _each(simulated):
        counts = dict(answer.rungs())
        own = [counts.get(level, 0) for level in levels]
        data.append(
            {
                "type": "bar",
                "name": whole(answer.scenario.name),
                "x": [f"{level:,}" for level in levels],
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
