"""Studies side by side: repeats over seeds as groups, best values over resource and time, final quality, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.report.html_page import Section, card, html_page, table, write_page
from hpo_core.report.style import (
    LOG,
    SERIES,
    Figure,
    Trace,
    axis,
    layout,
    pale,
    rounded,
    scale,
    text,
    time_axis,
    whole,
)
from hpo_core.views.formatting import Spread, duration, number, percent
from hpo_core.views.series import Series, Track, read_series

POINTS = 240
"""Points of a line."""

Band = tuple[list[float], list[float], list[float], list[float]]
"""Places, and there the least, the median and the largest value."""


def band(tracks: Sequence[Track], sign: float) -> Band:
    """Range of all tracks with a value, from where each of them has one to where the last one ends.

    Args:
        tracks: one for each run.
        sign: factor between a loss and the metric.
    """
    known = [(np.array(steps), end) for steps, end in tracks if steps]
    if not known:
        return [], [], [], []
    begin, end = max(steps[0, 0] for steps, _ in known), max(end for _, end in known)
    places = np.linspace(begin, end, POINTS)
    latest = [(np.searchsorted(steps[:, 0], places, side="right") - 1).clip(0) for steps, _ in known]
    values = sign * np.array([steps[at, 1] for (steps, _), at in zip(known, latest, strict=True)])
    return (
        places.tolist(),
        values.min(axis=0).tolist(),
        np.median(values, axis=0).tolist(),
        values.max(axis=0).tolist(),
    )


def band_lines(name: str, color: str, drawn: Band, *, several: bool, divisor: float) -> list[Trace]:
    places, low, middle, high = drawn
    at = [rounded(place / divisor) for place in places]
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": whole(name),
        "legendgroup": name,
        "x": at,
        "y": [rounded(value) for value in middle],
        "line": {"color": color, "width": 2.5, "shape": "hv"},
    }
    if not several:
        return [line]
    area = line | {
        "x": at + at[::-1],
        "y": [rounded(v) for v in [*low, *high[::-1]]],
        "fill": "toself",
        "fillcolor": pale(color),
        "line": {"width": 0, "shape": "hv"},
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
    divisor, across = time_axis(last) if along is None else (1.0, axis(along) | LOG)
    data: list[Trace] = []
    for place, (name, tracks) in enumerate(groups):
        drawn = band(tracks, sign)
        data += band_lines(name, SERIES[place % len(SERIES)], drawn, several=len(tracks) > 1, divisor=divisor)
    up: dict[str, Any] = scale(values, maximize=maximize).axis(metric)
    return Figure(key, title, caption, data, layout(430, xaxis=across, yaxis=up))


_ASIDE = ("study", "seed", "tracking", "prefect")
"""Parts of a study that name it and say where it is shown: all others are equal in repeats."""


def study_facts(series: Series) -> dict[str, Any]:
    study, best = series.study, series.study.best
    return {
        "study": study.name,
        "method": study.spec.search.method,
        "sampler": study.spec.sampler.name,
        "seed": study.spec.seed,
        "status": study.status,
        "trials": len(study.state.trials),
        "jobs": study.state.completed_jobs,
        "best": series.best,
        "trial": None if best is None else best.trial,
        "at": None if best is None else best.resource,
        "params": None if best is None else study.state.trials[best.trial].params,
        "resource": study.state.resource_used,
        "seconds": round(series.wall, 3),
        "worker_seconds": round(series.busy, 3),
        "utilization": None if series.utilization is None else round(series.utilization, 4),
    }


@dataclass(frozen=True, slots=True)
class StudyGroup:
    """Studies that differ by seed alone (one, where nothing repeats it)."""

    name: str
    members: tuple[Series, ...]

    def spread(self) -> Spread | None:
        """Spread of the members' best values; None where no member has one."""
        return Spread.of(member.best for member in self.members)

    def facts(self) -> dict[str, Any]:
        """Final quality over the seeds, and what it cost."""
        spread, rows = self.spread(), [study_facts(member) for member in self.members]
        found: dict[str, Any] = {"group": self.name, "studies": len(rows)}
        for key in ("median", "least", "most"):
            found[key] = None if spread is None else getattr(spread, key)
        for key in ("resource", "seconds", "worker_seconds", "utilization"):
            cost = Spread.of(row[key] for row in rows)
            found[key] = None if cost is None else cost.median
        return found


def grouped(studies: Sequence[Series]) -> list[StudyGroup]:
    """Studies of equal settings and different seeds together, called what the names of each group begin with.

    Studies with one seed are in different groups: they show no spread over seeds.

    Raises:
        SpecError: the studies optimize different metrics.
    """
    first = studies[0].study
    groups: list[tuple[str, list[Series]]] = []
    for series in studies:
        study, seed = series.study, series.study.spec.seed
        if study.spec.metric != first.spec.metric:
            one, two = first.spec.metric, study.spec.metric
            raise SpecError(
                f"Study {first.name!r} optimizes {one.name} ({one.mode}), study {study.name!r} {two.name} "
                f"({two.mode}): they do not compare. Compare studies of one metric and mode."
            )
        settings = {key: value for key, value in study.spec.plain().items() if key not in _ASIDE}
        if settings["warm_start"] is not None:
            settings["warm_start"].pop("past")  # drawn from the study's own seed
        same = repr(settings)
        for known, members in groups:
            if same == known and seed not in {member.study.spec.seed for member in members}:
                members.append(series)
                break
        else:
            groups.append((same, [series]))
    firsts = [members[0].study.name for _, members in groups]
    common = [
        commonprefix([one.study.name for one in members]).rstrip("-_.") or name  # noqa: RUF071 - no paths
        for name, (_, members) in zip(firsts, groups, strict=True)
    ]
    names = common if len(set(common)) == len(common) else firsts
    return [StudyGroup(name, tuple(members)) for name, (_, members) in zip(names, groups, strict=True)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Some studies of one metric."""

    groups: tuple[StudyGroup, ...]

    @classmethod
    def of(cls, studies: Iterable[Iterable[Entry]]) -> Comparison:
        """Read the entries of each study.

        Raises:
            JournalError: some do not begin with the creation of a study, or have a gap.
            SpecError: none were given, one was given twice, or their metrics differ.
        """
        return cls.of_series([read_series(entries) for entries in studies])

    @classmethod
    def of_series(cls, found: Sequence[Series]) -> Comparison:
        """Compare studies that were read already.

        Raises:
            SpecError: none were given, one was given twice, or their metrics differ.
        """
        if not found:
            raise SpecError("No study to compare; name at least one.")
        names = [series.study.name for series in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SpecError(f"Study {twice!r} is named twice; name each study once.")
        return cls(tuple(grouped(found)))

    @property
    def studies(self) -> list[Series]:
        return [member for group in self.groups for member in group.members]

    @property
    def metric(self) -> str:
        return self.studies[0].metric

    @property
    def maximize(self) -> bool:
        return self.studies[0].maximize

    def ranked(self) -> list[StudyGroup]:
        """Groups by the median of their best values, the best one first; those without any last."""

        def key(group: StudyGroup) -> float:
            spread = group.spread()
            return math.inf if spread is None else spread.median * (-1 if self.maximize else 1)

        return sorted(self.groups, key=key)

    def facts(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "mode": "max" if self.maximize else "min",
            "groups": [group.facts() for group in self.ranked()],
            "studies": [study_facts(series) for series in self.studies],
        }


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write the page and return its path.

    Raises:
        StorageError: the file cannot be written.
    """
    drawn = [figure for figure in _over_resource_and_time(comparison) if figure]
    names = [group.name for group in comparison.groups]
    wanted = f"{'maximize' if comparison.maximize else 'minimize'} {comparison.metric}"
    objectives = {len(series.study.spec.objectives) for series in comparison.studies}
    several = " · several objectives: compared by the first one" if max(objectives) > 1 else ""
    facts = comparison.facts()
    quality = Section(
        "Quality and cost",
        f"Best values are of {text(comparison.metric)}. Resource: units of training in all. Worker time: of all "
        "attempts, failed ones too. Utilization: worker time over the slots offered.",
        (table(*facts_table(facts["groups"]), 1000) if len(comparison.studies) > len(names) else "")
        + table(*facts_table(facts["studies"], ("params", "jobs")), 1000),
    )
    about = f"{' / '.join(map(escape, names))} · {text(wanted)}{several}"
    head = f'<header><h1>{len(comparison.studies)} studies side by side</h1><p class="about">{about}</p></header>'
    body = head + card(quality) + "".join(map(card, drawn))
    return write_page(html_page("Comparison of studies", body, drawn, "A projection of the studies' journals."), path)


_SHOWN: dict[str, Callable[[Any], str]] = {
    "resource": lambda value: f"{value:,.0f}",
    "seconds": duration,
    "worker_seconds": duration,
    "utilization": percent,
}
_TITLES = {"group": "search", "seconds": "wall time", "worker_seconds": "worker time", "studies": "seeds"}


def facts_table(rows: Sequence[dict[str, Any]], hidden: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of a table of facts."""
    names = [name for name in rows[0] if name not in hidden]

    def cell(name: str, value: Any) -> str:
        if value is None or isinstance(value, str):
            return "–" if value is None else value
        return _SHOWN[name](value) if name in _SHOWN else number(value)

    return [_TITLES.get(name, name) for name in names], [[cell(name, row[name]) for name in names] for row in rows]


def _over_resource_and_time(comparison: Comparison) -> list[Figure | None]:
    # Incumbents over units of training: how well a search spends; over time: how well it uses workers as well.
    several = any(len(group.members) > 1 for group in comparison.groups)
    spread = " Where a search ran with several seeds: their median, and the band from worst to best." if several else ""
    caption = f"The best {text(comparison.metric)} so far.{spread} A line ends where the last study of it ended."
    metric, maximize = text(comparison.metric), comparison.maximize
    by_resource = [(group.name, [member.by_resource for member in group.members]) for group in comparison.groups]
    by_time = [(group.name, [member.by_time for member in group.members]) for group in comparison.groups]
    along = "units of training used"
    title = "Best value over training used"
    return [
        incumbents("by-resource", title, caption, by_resource, metric=metric, maximize=maximize, along=along),
        incumbents("by-time", "Best value over time", caption, by_time, metric=metric, maximize=maximize),
    ]
