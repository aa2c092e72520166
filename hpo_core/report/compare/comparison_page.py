"""The page of a comparison: best values over resource and time, final quality, cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.report.compare.contenders import Contender, Group, grouped, read_contender
from hpo_core.report.html_page import card, html_page, write_page
from hpo_core.report.median_band import Track, band, band_lines, color_of
from hpo_core.report.scale import log_ticks, scale
from hpo_core.report.study_page import table
from hpo_core.report.style import MUTED, Figure, axis, layout, rounded, text, time_axis, whole
from hpo_core.views.formatting import Spread, duration, number

_TITLE = 90
"""Names of searches longer than this, all together, stand below the title."""
_LOG_FROM = 20
"""A logarithmic axis where the end is so many times farther than the first result."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Some studies of one metric."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, studies: Iterable[Iterable[Entry]]) -> Comparison:
        """From the entries of each study.

        Raises:
            SpecError: none were given, one was given twice, or their metrics differ.
        """
        contenders = [read_contender(entries) for entries in studies]
        if not contenders:
            raise SpecError("No study to compare; name at least one.")
        names = [contender.name for contender in contenders]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SpecError(f"Study {twice!r} is named twice; name each study once.")
        return cls(tuple(grouped(contenders)))

    @property
    def contenders(self) -> list[Contender]:
        return [member for group in self.groups for member in group.members]

    @property
    def metric(self) -> str:
        return self.groups[0].members[0].series.metric

    @property
    def maximize(self) -> bool:
        return self.groups[0].members[0].series.maximize

    def ranked(self) -> list[Group]:
        """Groups by the median of their best values, the best one first; those without any last."""

        def key(group: Group) -> tuple[bool, float]:
            spread = Spread.of(group.values())
            return (spread is None, 0.0 if spread is None else spread.median * (-1 if self.maximize else 1))

        return sorted(self.groups, key=key)

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "metric": self.metric,
            "mode": "max" if self.maximize else "min",
            "groups": [group_facts(group) for group in self.ranked()],
            "studies": [contender.facts() for contender in self.contenders],
        }


def group_facts(group: Group) -> dict[str, Any]:
    """Final quality over the seeds of a group, and what it cost."""
    spread = Spread.of(group.values())
    rows = [member.facts() for member in group.members]

    def median(key: str) -> float | None:
        found = Spread.of(row[key] for row in rows)
        return None if found is None else found.median

    return {
        "group": group.name,
        "studies": len(rows),
        "median": None if spread is None else spread.median,
        "least": None if spread is None else spread.least,
        "most": None if spread is None else spread.most,
        "resource": median("resource"),
        "seconds": median("seconds"),
        "worker_seconds": median("worker_seconds"),
        "utilization": median("utilization"),
    }


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StorageError: the file cannot be written.
    """
    figures = (over_resource(comparison), over_time(comparison), final_quality(comparison))
    drawn = [figure for figure in figures if figure is not None]
    names = [group.name for group in comparison.groups]
    several = len(comparison.contenders) > len(names)
    wanted = f"{'maximize' if comparison.maximize else 'minimize'} {comparison.metric}"
    objectives = {len(contender.series.study.spec.objectives) for contender in comparison.contenders}
    note = " · several objectives: compared by the first one" if max(objectives) > 1 else ""
    title = " / ".join(names)
    below = ""
    if len(title) > _TITLE:
        below, title = f'<p class="about">{escape(title)}</p>', f"{len(names)} searches"
    by_group = _table(_group_rows(comparison)) if several else ""
    body = (
        f"<header><h1>{escape(title)}</h1>{below}"
        f'<p class="about">{len(comparison.contenders)} studies side by side · {text(wanted)}{note}</p></header>'
        f'<section class="card" style="margin-top:18px"><h2>Quality and cost</h2>'
        f'<p class="caption">Resource: units of training in all. Worker time: of all attempts, failed ones too. '
        f"Utilization: worker time over the slots offered.</p>"
        f"{by_group}{_table(_study_rows(comparison))}</section>"
        f"{''.join(card(figure) for figure in drawn)}"
    )
    return write_page(html_page("Comparison of studies", body, drawn, "A projection of the studies' journals."), path)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    return table(head, others, 1000)


def _group_rows(comparison: Comparison) -> list[list[str]]:
    rows = [
        [
            "search",
            "seeds",
            f"best {comparison.metric} (median)",
            "least – most",
            "resource",
            "wall time",
            "worker time",
            "utilization",
        ]
    ]
    for facts in map(group_facts, comparison.ranked()):
        spread = "–" if facts["least"] is None else f"{number(facts['least'])} – {number(facts['most'])}"
        rows.append([facts["group"], str(facts["studies"]), number(facts["median"]), spread, *_cost(facts)])
    return rows


def _study_rows(comparison: Comparison) -> list[list[str]]:
    rows = [
        [
            "study",
            "method",
            "sampler",
            "seed",
            "status",
            "trials",
            f"best {comparison.metric}",
            "by",
            "resource",
            "wall time",
            "worker time",
            "utilization",
        ]
    ]
    for contender in comparison.contenders:
        facts = contender.facts()
        by = "–" if facts["trial"] is None else f"trial {facts['trial']} at {facts['at']:,}"
        first = [str(facts[key]) for key in ("study", "method", "sampler", "seed", "status", "trials")]
        rows.append([*first, number(facts["best"]), by, *_cost(facts)])
    return rows


def _cost(facts: dict[str, Any]) -> list[str]:
    share = facts["utilization"]
    return [
        f"{facts['resource']:,.0f}",
        duration(facts["seconds"]),
        duration(facts["worker_seconds"]),
        "–" if share is None else f"{100 * share:.0f}%",
    ]


def over_resource(comparison: Comparison) -> Figure | None:
    """Incumbents over the units of training used: how well a search spends."""
    tracks = [[member.by_resource for member in group.members] for group in comparison.groups]
    ends = max(end for group in tracks for _, end in group)
    across = axis("units of training used")
    return _incumbents(
        comparison, tracks, "by-resource", title="Best value over training used", across=across, divisor=1.0, last=ends
    )


def over_time(comparison: Comparison) -> Figure | None:
    """Incumbents over active time: how well it uses the workers as well."""
    tracks = [[member.by_time for member in group.members] for group in comparison.groups]
    ends = max(end for group in tracks for _, end in group)
    divisor, across = time_axis(ends)
    return _incumbents(
        comparison, tracks, "by-time", title="Best value over time", across=across, divisor=divisor, last=ends
    )


def _incumbents(
    comparison: Comparison,
    tracks: Sequence[Sequence[Track]],
    key: str,
    *,
    title: str,
    across: dict[str, Any],
    divisor: float,
    last: float,
) -> Figure | None:
    sign = -1.0 if comparison.maximize else 1.0
    values = [loss * sign for group in tracks for steps, _ in group for _, loss in steps]
    if not values or last <= 0:
        return None
    begin = min(steps[0][0] for group in tracks for steps, _ in group if steps)
    log = 0 < begin * _LOG_FROM <= last
    if log:  # the beginning decides, and the last steps take longest
        low, high = [place / divisor for place in (begin, last)]
        ticks = log_ticks(*_log10(low, high))
        across = across | {"type": "log", "range": _log10(low, high), "tickvals": ticks}
        across |= {"ticktext": [number(tick) for tick in ticks]}
    data: list[dict[str, Any]] = []
    for place, (group, runs) in enumerate(zip(comparison.groups, tracks, strict=True)):
        places, least, middle, most = band(runs, sign, log=log)
        at = [rounded(x / divisor) for x in places]
        data += band_lines(group.name, color_of(place), at, low=least, middle=middle, high=most, several=len(runs) > 1)
    several = any(len(runs) > 1 for runs in tracks)
    spread = " Where a search ran with several seeds: their median, and the band from worst to best." if several else ""
    caption = f"The best {text(comparison.metric)} so far.{spread} A line ends where the last study of it ended."
    drawn = scale(values, maximize=comparison.maximize)
    return Figure(key, title, caption, data, layout(430, xaxis=across, yaxis=drawn.axis(text(comparison.metric))))


def _log10(low: float, high: float) -> list[float]:
    return [math.log10(low), math.log10(high)]


def final_quality(comparison: Comparison) -> Figure | None:
    """A dot per study, a line at the median of each group; the best group on top."""
    groups = [group for group in comparison.ranked() if group.values()]
    if len(comparison.contenders) < 2 or not groups:
        return None
    color = {group.name: color_of(place) for place, group in enumerate(comparison.groups)}
    values = [value for group in groups for value in group.values()]
    data: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    for row, group in enumerate(reversed(groups)):
        known = [member for member in group.members if member.best is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [rounded(value) for value in group.values()],
                "y": [row] * len(known),
                "showlegend": False,
                "hoverinfo": "text",
                "text": [f"{whole(member.name)}: {number(member.best)}" for member in known],
                "marker": {"size": 11, "color": color[group.name], "opacity": 0.75},
            }
        )
        spread = Spread.of(group.values())
        if spread is not None and spread.count > 1:
            ends = {"x0": rounded(spread.median), "x1": rounded(spread.median), "y0": row - 0.3, "y1": row + 0.3}
            shapes.append({"type": "line", **ends, "line": {"color": MUTED, "width": 2}})
    more = sum(whole(group.name, 30).count("<br>") for group in groups)
    upward = axis(
        tickvals=list(range(len(groups))),
        ticktext=[whole(group.name, 30) for group in reversed(groups)],
        range=[-0.6, len(groups) - 0.4],
    )
    across = scale(values, maximize=comparison.maximize).axis(f"best {text(comparison.metric)}")
    caption = (
        "A dot is a study's best value; the line, where there are several seeds, their median. The best is on top."
    )
    shape = layout(120 + 44 * len(groups) + 14 * more, xaxis=across, yaxis=upward, shapes=shapes)
    return Figure("final", "Final quality", caption, data, shape)
