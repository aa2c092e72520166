"""The report of one study: all figures and tables in one HTML file, also while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from time import localtime, monotonic, sleep, strftime
from types import MappingProxyType
from typing import TypeVar

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError
from hpo_core.model.events import (
    CeilingRaised,
    Entry,
    StudyExtended,
    StudyHalted,
)
from hpo_core.report.curves import front_figure, front_table, incumbent, learning_curves
from hpo_core.report.html_page import Section, card, html_page, table, write_page
from hpo_core.report.ladder import ladder_figure, rung_section
from hpo_core.report.parameters import parameter_figures
from hpo_core.report.population import lineage_tree, population_fitness, schedules
from hpo_core.report.style import Figure, text
from hpo_core.report.timelines import device_loads, device_table, hop_figure, jobs_over_time, pool_slots
from hpo_core.report.trials_table import embedded_trials, trials_section
from hpo_core.search.search_settings import SearchProgress
from hpo_core.study import Study
from hpo_core.views.device_use import granted_words
from hpo_core.views.failure_reasons import next_command
from hpo_core.views.formatting import duration, number, parameter_value, percent, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.series import Series, Turn, read_series
from hpo_core.views.summary import (
    exhausted_words,
    failed_attempts,
    notices_of,
    other_best_words,
    placement_lines,
    rule_words,
    summarize,
)

FAILURES, TURNS = 50, 50
"""Rows of the tables of failures and of the course."""
Part = TypeVar("Part", Figure, Section)
NO_LINKS: Mapping[str, str] = MappingProxyType({})


def write_report(entries: Iterable[Entry], path: Path, *, links: Mapping[str, str] = NO_LINKS) -> Path:
    """Write a study's report to ``path`` and return it.

    Args:
        entries: the study's journal from its first entry on, read once; a prefix gives the report as of then.
        path: an ``.html`` file; folders above it are made. It is replaced as a whole or left as it was.
        links: name -> address, shown in the head (MLflow run, checkpoint).

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
        StorageError: the file cannot be written.
    """
    return write_page(render(read_series(entries), links), path)


def render(
    series: Series,
    links: Mapping[str, str] = NO_LINKS,
    *,
    live: bool = False,
) -> str:
    """The page as text; ``live`` is that of :func:`html_page`."""
    drawn = figures(series)
    evolving = [figure for figure in drawn if figure.key == "population"]
    first: list[Figure | Section] = [*_listed([best_parameters(series), rung_section(series)]), *evolving]
    parts = [
        course(series),
        *(figure for figure in drawn if figure not in evolving),
        None if drawn else Section("Nothing to draw yet", "No job was granted."),
        *(section for build in SECTIONS for section in _listed(build(series))),
    ]
    long = "" if len(series.study.spec.space) < 12 else " long"
    return html_page(
        f"{series.study.name} – report",
        f'{head(series, links)}<div class="pair{long}">{"".join(map(card, first))}</div>'
        f"{''.join(card(part) for part in parts if part is not None)}{trials_section(series)}",
        drawn,
        f"A projection of the journal up to entry {series.study.seq - 1}; write it again at any time.",
        trials=embedded_trials(series),
        live=live,
    )


def figures(series: Series) -> list[Figure]:
    """All figures that this study has something to show in, in reading order."""
    return [figure for build in FIGURES for figure in _listed(build(series))]


def _listed(found: Sequence[Part | None] | Part | None) -> list[Part]:
    return [part for part in (found if isinstance(found, Sequence) else [found]) if part is not None]


def head(series: Series, links: Mapping[str, str]) -> str:
    """Name, status, tiles, links, and the next command, as HTML."""
    study, spec, halted = series.study, series.study.spec, series.study.state.halted
    status = "running" if study.status == "open" and study.state.running else study.status
    wanted = ", ".join(f"{metric.mode}imize {metric.name}" for metric in spec.objectives)
    progress = SearchProgress(
        brackets=sum(len(ladder.numbers) for ladder in series.bands.ladders),
        level=max((band.rung.level for band in series.bands.all if band.rung.is_open), default=0),
        generation=series.lineage.generations() if series.lineage is not None else 0,
    )
    about = [wanted, spec.search.summary(progress), f"sampler {spec.sampler.name}"]
    about += placement_lines(study)
    if rules := study.rules.progress(study.state, 0.0):
        about.append(f"stops at {', '.join(rules)}")
    about.append(f"entry {study.seq - 1}")
    if series.began > 1e9:  # younger than 2001: a real clock
        about.append(datetime.fromtimestamp(series.began, UTC).strftime("%Y-%m-%d %H:%M UTC"))
    lines = [("about", " · ".join(about), 300)]
    if status == "halted" and halted is not None:
        lines.append(("halted", halt_words(spec, halted), 400))
    elif study.state.exhausted:
        lines.append(("about", exhausted_words(study), 400))
    lines += [("about", notice, 400) for notice in notices_of(study)]
    lines += [
        ("about", f"Training warned, first in trial {trial}: {line}", 500) for line, trial in series.warnings.items()
    ]
    notes = "".join(f'<p class="{kind}">{text(words, most)}</p>' for kind, words, most in lines)
    tiles = "".join(
        f'<div class="tile"><div class="label">{text(label)}</div><div class="value">{text(value)}</div>'
        f'<div class="small">{text(small, 60)}</div></div>'
        for label, value, small in key_numbers(series)
    )
    return (
        f'<header><h1>{escape(study.name)} <span class="pill {status}">{status}</span></h1>'
        f"{notes}{_links(links)}"
        f'<p class="next">Next: <code>{escape(next_command(study))}</code></p></header>'
        f'<section class="tiles">{tiles}</section>'
    )


def _links(links: Mapping[str, str]) -> str:
    shown = []
    for name, target in links.items():
        scheme = target.partition(":")[0].lower() if ":" in target.split("/")[0] else ""
        if scheme in ("", "http", "https", "file"):
            shown.append(f'<a href="{escape(target)}">{text(name, 80)}</a>')
        else:  # javascript: and its like are shown, never followed
            shown.append(f"<span>{text(name, 80)}: <code>{escape(target)}</code></span>")
    return f'<p class="links">{"".join(shown)}</p>' if shown else ""


def key_numbers(series: Series) -> list[tuple[str, str, str]]:
    study, spec, state = series.study, series.study.spec, series.study.state
    best = study.best
    tiles = []
    if best is not None:
        where = f"trial {best.trial} at {best.resource:,}{rule_words(study)}"
        tiles.append((f"best {series.metric}", number(study.metric_value(best.loss)), where))
    else:
        what = "feasible" if state.infeasible_results else "finite"
        tiles.append((f"best {series.metric}", "–", f"no {what} result yet"))
    if spec.constraints:
        names = ", ".join(spec.constraints)
        tiles.append(("infeasible", f"{state.infeasible_results:,}", f"results; {names} should be at most 0"))
    if len(spec.objectives) > 1:
        tiles.append(("Pareto front", f"{len(state.front):,}", f"results, by {len(spec.objectives)} objectives"))
    running = f", {granted_words(study)}" if state.running else ""
    tiles.append(("trials", f"{len(state.trials):,}", f"{state.abandoned_trials:,} abandoned"))
    about = f"{failed_attempts(state):,} lost or failed attempts{running}"
    tiles.append(("jobs done", f"{state.completed_jobs:,}", about))
    used = state.resource_used
    if used and series.lineage is not None:  # each trial is a session of a longer training
        planned = used + sum(rung.units for rung in study.method.rungs())
        tiles.append(("resource used", f"{used:,}", f"of {planned:,} planned"))
    elif used:
        full = len(state.trials) * (spec.search.outline().max_resource or 0)
        small = f"of {full:,} for training all in full" if full else "without an upper limit for each trial"
        tiles.append(("resource used", f"{used:,}", small))
        if full / used > 1.005:
            tiles.append(("saving", percent(1 - used / full), f"{full / used:.3g} times less training"))
    paused = f"and {duration(series.paused)} stopped" if series.paused > 1 else "first job to last entry"
    tiles.append(("wall time", duration(series.wall), paused))
    share = series.utilization
    if share is not None and spec.room_word == "slot":  # devices and partitions have figures of their own
        of = f"{duration(series.busy)} of worker time"
        of += ", of the slots it might use" if spec.pool_name else ""
        tiles.append(("utilization", percent(share), of))
    return tiles


def best_parameters(series: Series) -> Section | None:
    study, spec, best = series.study, series.study.spec, series.study.best
    if best is None:
        return None
    params = series.trials[best.trial].params
    rows = [(name, parameter_value(params[name])) for name in spec.space if name in params]
    rows += [
        (f"{name} (constant)", parameter_value(item)) for name, item in spec.constants.items() if name not in params
    ]
    others = [(name, number(item)) for name, item in best.metrics.items() if name != series.metric]
    metrics = table(("its other metrics", "value"), others) if others else ""
    other = other_best_words(study)
    words = f"of trial {best.trial}, best after {best.resource:,}{rule_words(study)}."
    words += f" By the other rule, {other}." if other else ""
    return Section("Best parameters", text(words, 300), table(("parameter", "value"), rows) + metrics)


def course(series: Series) -> Section | None:
    """Events that changed the course of the study: ceilings that rose, halts, resumes, extensions."""
    if not series.turns:
        return None
    rows = [(duration(time), *_turn(series, event)) for time, event in series.turns[:TURNS]]
    shown = table(("time", "what", "why"), rows, 500) + _more(len(series.turns), TURNS)
    return Section("Course of the study", "What changed its course, from outside or by its own rules.", shown)


def _turn(series: Series, event: Turn) -> tuple[str, str]:
    if isinstance(event, CeilingRaised):
        words = series.bands.names.ceiling_line(event)
        return f"rung {event.rung} opened", words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
    if isinstance(event, StudyHalted):
        return "halted", halt_words(series.study.spec, event)
    if isinstance(event, StudyExtended):
        return "extended", f"{event.configs:,} more configurations were asked for."
    return "resumed", "A controller went on with it."


def _more(count: int, most: int) -> str:
    return f"<p>and {count - most:,} more</p>" if count > most else ""


def failure_rows(series: Series) -> list[tuple[float, tuple[str, str, str, str]]]:
    rows = [
        (time, (f"attempt failed: {f.outcome}", f"{f.trial}", f"attempt {f.attempt} to {f.target:,}", f.message))
        for time, f in series.failures
    ]
    for time, lost in series.abandoned:
        where = "at" if series.trials[lost.trial].is_at(lost) else "on the way to"
        when = f"{where} {series.bands.names.label(lost.bracket, lost.rung)}"
        rows.append((time, ("trial abandoned", f"{lost.trial}", when, lost.reason)))
    rows += [
        (time, ("report ignored", f"{late.trial}", f"attempt {late.attempt}", late.reason))
        for time, late in series.ignored
    ]
    return sorted(rows, key=lambda row: row[0])


def failures(series: Series) -> Section:
    """Failures: abandoned trials first, then single attempts."""
    rows = failure_rows(series)
    diverged = sum(r.loss is None and not r.losses for trial in series.trials for r in trial.results)
    lost = math.fsum(s.end - s.start for s in series.spans if s.outcome is not None and s.value is None)
    if not rows and not diverged:
        return Section("Failures", "None.")
    caption = (
        f"{plural(len(series.abandoned), 'trial')} abandoned, {plural(len(series.failures), 'attempt')} failed, "
        f"{plural(diverged, 'training')} diverged, {plural(len(series.ignored), 'late report')} ignored; "
        f"{duration(lost)} of worker time brought no result."
    )
    first = sorted(rows, key=lambda row: (row[1][0] != "trial abandoned", row[0]))[:FAILURES]
    shown = [(duration(time), *cells) for time, cells in first]
    body = table(("time", "what", "trial", "when", "why"), shown) if shown else ""
    return Section("Failures", caption, body + _more(len(rows), FAILURES))


CLIMBING = (learning_curves, ladder_figure)
EVOLVING = (population_fitness, schedules, lineage_tree)
FIGURES: tuple[Callable[[Series], Figure | Sequence[Figure | None] | None], ...] = (
    front_figure,
    incumbent,
    lambda series: [build(series) for build in (CLIMBING if series.lineage is None else EVOLVING)],
    device_loads,
    hop_figure,
    pool_slots,
    jobs_over_time,
    parameter_figures,
)
SECTIONS: tuple[Callable[[Series], Section | Sequence[Section | None] | None], ...] = (
    device_table,
    front_table,
    failures,
)
"""Builders of the page, in reading order; each gives nothing where the study has nothing to show of it."""


LIVE_SECONDS = 5.0
"""Least time between two reports."""
_REST = 4.0
"""A page that takes a second to write is written again after four of these at the earliest."""


class LiveReport:
    """A report that is written anew where its journal has grown.

    Args:
        journal: read again whenever it has grown.
        path: of the page.
        links: what the head shows; asked for each time.
    """

    def __init__(
        self, journal: Journal, name: str, path: Path, *, links: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._journal, self._name, self._path, self._links = journal, name, path, links
        self._entries = -1
        self._goes_on = True

    def write(self) -> bool:
        """Write the page where the journal has grown; returns whether the study may still go on.

        Raises:
            StudyNotFoundError: there is no such study.
            JournalError: its journal is damaged.
            StorageError: the file cannot be written.
        """
        known = self._journal.info(self._name).entries
        if known != self._entries:
            series = read_series(self._journal.entries(self._name, 0, known))
            self._goes_on = series.study.status == "open"
            write_page(render(series, self._links(), live=self._goes_on), self._path)
            self._entries = known
        return self._goes_on

    def follow(self) -> None:
        """Write until the study has ended; the last page does not load itself anew."""
        while True:
            began = monotonic()
            if not self.write():
                return
            sleep(max(LIVE_SECONDS, _REST * (monotonic() - began)))


class ReportFiles:
    """The list of a home's studies, ``HOME/studies.html``, and the reports of those that run, written anew."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.path = home.folder / "studies.html"
        self._rows: dict[str, tuple[int, list[str]]] = {}

    def follow(self) -> None:
        """Write again and again; what cannot be read or written now is tried again."""
        while True:
            began = monotonic()
            with suppress(HpoError):
                self.write()
            sleep(max(LIVE_SECONDS, 4 * (monotonic() - began)))

    def write(self) -> None:
        """Write the list, and the report of each study whose journal has grown."""
        with closing(self._home.read_journal()) as source:
            rows = []
            for info in sorted(source.studies(), key=lambda info: (-info.created, info.name)):
                entries, row = self._rows.get(info.name, (-1, []))
                if entries != info.entries:  # a study is read again only where its journal has grown
                    row = _row(source, info.name, info.created)
                    if row[2] == "open" or entries >= 0:
                        with suppress(HpoError):  # damaged, as its row says
                            page, links = self._home.report_path(info.name), partial(self._links, info.name)
                            LiveReport(source, info.name, page, links=links).write()
                    self._rows[info.name] = (info.entries, row)
                rows.append(row)
        shown = "<p>No study yet.</p>"
        if rows:
            shown = table(("study", "method", "status", "trials", "jobs", "best", "created"), rows, most=200)
        for name, *_ in rows:  # a name has no character that HTML knows
            if self._home.report_path(name).exists():
                cell, link = 'data-label="study">', f'<a href="studies/{escape(name)}/report.html">{escape(name)}</a>'
                shown = shown.replace(f"{cell}{name}</td>", f"{cell}{link}</td>", 1)
        body = (
            f'<header><h1>Studies</h1><p class="about">of {escape(str(self._home.folder))}, the newest first. '
            "<code>hpo report NAME</code> writes the report of one that has none.</p></header>"
            f'<section class="card" style="margin-top:18px">{shown}</section>'
        )
        write_page(html_page("Studies", body, [], "Read from the journal.", live=True), self.path)

    def _links(self, name: str) -> dict[str, str]:
        return {"All studies": "../../studies.html"} | self._home.study_links(name)


def _row(source: Journal, name: str, created: float) -> list[str]:
    when = strftime("%Y-%m-%d %H:%M", localtime(created))
    try:
        summary = summarize(Study.open(name, source, reading=True))
    except HpoError as error:
        return [name, "", f"damaged: {error}", "", "", "", when]
    best = "" if summary.best is None else f"{summary.metric} {number(summary.best.value, 5)}"
    return [name, summary.method, summary.status, f"{summary.trials:,}", f"{summary.jobs:,}", best, when]
