"""The report of one study: all figures and tables in one HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpo_core.model.events import (
    CeilingRaised,
    Entry,
    StudyExtended,
    StudyHalted,
    TrialAbandoned,
    TrialExtended,
    TrialExtensionEnded,
)
from hpo_core.report.front_figure import front_figure, front_table
from hpo_core.report.grid_map import grid_figures
from hpo_core.report.hop_lanes import hop_figure, hop_tables
from hpo_core.report.html_page import Live, card, html_page, write_page
from hpo_core.report.jobs.device_lanes import device_figures, device_table
from hpo_core.report.ladder import ladder_figure
from hpo_core.report.pool_slots import pool_slots
from hpo_core.report.population.family_tree import lineage_tree
from hpo_core.report.population.population_fitness import population_fitness
from hpo_core.report.population.schedule_figure import schedules
from hpo_core.report.series import Series, Turn, read_series
from hpo_core.report.study.contour_figure import contour
from hpo_core.report.study.distribution_figure import distribution
from hpo_core.report.study.importance import importance_bars, importances
from hpo_core.report.study.job_timeline import jobs_over_time
from hpo_core.report.study.learning_curves import incumbent, learning_curves
from hpo_core.report.study.parameter_panels import parameter_panels
from hpo_core.report.study.parameters import parallel_coordinates
from hpo_core.report.study.trials_by_rung import rung_counts
from hpo_core.report.style import Figure, text
from hpo_core.report.trials_table import embedded_trials, trials_card
from hpo_core.search.search_settings import Progress
from hpo_core.state import TrialRecord
from hpo_core.views.device_use import granted_words
from hpo_core.views.failure_reasons import next_command
from hpo_core.views.formatting import duration, number, plural
from hpo_core.views.measured_needs import kept_apart_in, kept_apart_lines, measured_ratio_lines, measured_ratios
from hpo_core.views.rungs import BracketView, halt_words
from hpo_core.views.settings_words import data_words, gang_words, packing_words
from hpo_core.views.sharing.standings import share_words
from hpo_core.views.summary import exhausted_words, notices_of, other_best_words, rule_words, spread_of
from hpo_core.views.trial_story import trial_state

TOP, FAILURES, UNBROKEN = 15, 50, 16


def status(series: Series) -> str:
    """``finished``, ``halted``, ``running`` or ``open`` (nothing runs, more is wanted)."""
    found = series.study.status
    return "running" if found == "open" and series.study.state.running else found


def key_numbers(series: Series) -> list[tuple[str, str, str]]:
    """(label, value, small print) of the tiles in the head."""
    study, state = series.study, series.study.state
    best = study.best
    tiles = []
    if best is not None:
        found = spread_of(state, best)
        where = f"{found.short}, " if found is not None else ""
        where += f"trial {best.trial} at {best.resource:,}{rule_words(study.spec)}"
        tiles.append((f"best {series.metric}", number(study.metric_value(best.loss)), where))
    else:
        what = "feasible" if state.infeasible_results else "finite"
        tiles.append((f"best {series.metric}", "–", f"no {what} result yet"))
    if study.spec.constraints:
        names = ", ".join(study.spec.constraints)
        tiles.append(("infeasible", f"{state.infeasible_results:,}", f"results; {names} should be at most 0"))
    if len(study.spec.objectives) > 1:
        tiles.append(("Pareto front", f"{len(state.front):,}", f"results, by {len(study.spec.objectives)} objectives"))
    running = f", {granted_words(series.study)}" if state.running else ""
    tiles.append(("trials", f"{len(state.trials):,}", f"{state.abandoned_trials:,} abandoned"))
    tiles.append(("jobs done", f"{state.completed_jobs:,}", f"{state.failed_attempts:,} failed attempts{running}"))
    tiles += _resource(series)
    paused = f"and {duration(series.paused)} stopped" if series.paused > 1 else "first job to last entry"
    tiles.append(("wall time", duration(series.wall), paused))
    share = series.utilization
    if share is not None and study.spec.packing is None and study.spec.data is None:  # their own figures say it
        of = f"{duration(series.busy)} of worker time"
        of += ", of the slots it might use" if study.spec.share is not None else ""
        tiles.append(("utilization", f"{100 * share:.0f}%", of))
    return tiles


def _resource(series: Series) -> list[tuple[str, str, str]]:
    state, outline = series.study.state, series.study.spec.search.outline()
    if not state.resource_used:
        return []
    if series.lineage is not None:  # each trial is a session of a longer training
        left = sum(rung.units for rung in series.study.method.rungs())
        planned = state.resource_used + series.study.spec.repeats * left
        return [("resource used", f"{state.resource_used:,}", f"of {planned:,} planned")]
    full = series.study.spec.repeats * len(state.trials) * (outline.max_resource or 0)
    ratio = full / state.resource_used
    small = f"of {full:,} for training all in full" if full else "without an upper limit for each trial"
    tiles = [("resource used", f"{state.resource_used:,}", small)]
    if ratio > 1.005:
        tiles.append(("saving", f"{100 * (1 - 1 / ratio):.0f}%", f"{ratio:.3g} times less training"))
    return tiles


def head(series: Series, links: Mapping[str, str]) -> str:
    """Name, status, tiles, links, and the next command."""
    study = series.study
    found = status(series)
    spec = study.spec
    wanted = ", ".join(f"{metric.mode}imize {metric.name}" for metric in spec.objectives)
    about = [wanted, _search(series), f"sampler {spec.sampler.name}"]
    if spec.repeats > 1:
        about.append(f"{spec.repeats} repeats of each trial, ranked by their mean")
    if spec.training.threads is not None:
        about.append(f"threads {spec.training.threads}")
    if spec.packing is not None:
        about.append(f"packing {packing_words(spec.packing)}")
        about += measured_ratio_lines(measured_ratios(study))
        about += kept_apart_lines(kept_apart_in(study), 4)
    if spec.training.gang != 1:
        about.append(f"gangs {gang_words(study)}")
    if spec.share is not None:
        about.append(f"share {share_words(spec.share, 'slot' if spec.packing is None else 'device')}")
    if spec.data is not None:
        about.append(f"data: {data_words(spec)}")
    rules = study.rules.progress(study.state, 0.0)
    if rules:
        about.append(f"stops at {', '.join(rules)}")
    about.append(f"entry {study.seq - 1}")
    if series.began > 1e9:  # younger than 2001: a real clock
        about.append(datetime.fromtimestamp(series.began, UTC).strftime("%Y-%m-%d %H:%M UTC"))
    halted = study.state.halted
    note = ""
    if found == "halted" and halted is not None:
        note = f'<p class="halted">{text(halt_words(spec, halted), 400)}</p>'
    elif study.state.exhausted:
        note = f'<p class="about">{text(exhausted_words(study), 400)}</p>'
    for notice in notices_of(study):
        note += f'<p class="about">{text(notice, 400)}</p>'
    for line, trial in series.warnings.items():
        note += f'<p class="about">{text(f"Training warned, first in trial {trial}: {line}", 500)}</p>'
    tiles = "".join(
        f'<div class="tile"><div class="label">{text(label)}</div><div class="value">{text(value)}</div>'
        f'<div class="small">{text(small, 60)}</div></div>'
        for label, value, small in key_numbers(series)
    )
    return (
        f'<header><h1>{escape(study.name)} <span class="pill {found}">{found}</span></h1>'
        f'<p class="about">{text(" · ".join(about), 300)}</p>{note}{_links(links)}'
        f'<p class="next">Next: <code>{escape(next_command(study))}</code></p></header>'
        f'<section class="tiles">{tiles}</section>'
    )


def _search(series: Series) -> str:
    """The search method and its brackets, as short as it can be told."""
    progress = Progress(
        brackets=sum(len(ladder.numbers) for ladder in series.bands.ladders),
        level=max((band.rung.level for band in series.bands.all if band.kind != "closed"), default=0),
        generation=series.lineage.generations() if series.lineage is not None else 0,
    )
    return series.study.spec.search.summary(progress)


def _links(links: Mapping[str, str]) -> str:
    shown = []
    for name, target in links.items():
        scheme = target.partition(":")[0].lower() if ":" in target.split("/")[0] else ""
        if scheme in ("", "http", "https", "file"):
            shown.append(f'<a href="{escape(target)}">{text(name, 80)}</a>')
        else:  # javascript: and its like are shown, never followed
            shown.append(f"<span>{text(name, 80)}: <code>{escape(target)}</code></span>")
    return f'<p class="links">{"".join(shown)}</p>' if shown else ""


def best_parameters(series: Series) -> str:
    """The incumbent's parameters."""
    best = series.study.best
    if best is None:
        return ""
    params = series.trials[best.trial].params
    spec = series.study.spec
    rows = [(name, value(params[name])) for name in spec.space if name in params]
    rows += [(f"{name} (constant)", value(item)) for name, item in spec.constants.items() if name not in params]
    others = [(name, number(item)) for name, item in best.metrics.items() if name != series.metric]
    metrics = table(("its other metrics", "value"), others) if others else ""
    shown = table(("parameter", "value"), rows)
    other = other_best_words(series.study)
    words = f"of trial {best.trial}, best after {best.resource:,}{rule_words(spec)}."
    words += f" By the other rule, {other}." if other else ""
    caption = f'<p class="caption">{text(words, 300)}</p>'
    return f'<section class="card"><h2>Best parameters</h2>{caption}{shown}{metrics}</section>'


def value(item: Any) -> str:
    """A parameter's value, floats with six digits."""
    return f"{item:.6g}" if isinstance(item, float) else str(item)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], most: int = 300) -> str:
    """An HTML table; cells are escaped, numbers and short words stay on one line."""
    kept = [list(row) for row in rows]
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    titles = [escape(name) for name in head]
    stack = ' class="stack"' if len(titles) > 3 else ""
    body = "".join(
        "<tr>" + "".join(_cell(item, most, title) for item, title in zip(row, titles, strict=True)) + "</tr>"
        for row in kept
    )
    return f'<div class="scroll"><table{stack}><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(item: object, most: int, title: str) -> str:
    """In a narrow window the title stands beside each cell."""
    shown, label = text(item, most), f'data-label="{title}"'
    try:
        float(str(item).replace(",", ""))
    except ValueError:
        return f"<td {label}>{shown}</td>" if len(str(item)) > UNBROKEN else f'<td class="n" {label}>{shown}</td>'
    return f'<td class="n" {label}>{shown}</td>'


def top_trials(series: Series) -> str:
    """The best trials with all their parameters."""
    ranked = series.ranked_trials()[:TOP]
    if not ranked:
        return ""
    names = list(series.study.spec.space)
    rows = []
    for trial in ranked:
        loss = series.best_loss(trial)
        at = next(r.resource for r in trial.all_results if r.loss == loss)
        own = [value(trial.params[name]) if name in trial.params else "" for name in names]
        best = number(series.study.metric_value(loss))
        bracket = [str(trial.bracket)] * series.brackets
        rows.append(
            [str(trial.number), *bracket, best, str(at), str(trial.resource), trial_state(series.study, trial), *own]
        )
    caption = "Ranked by their best value; an empty cell is a parameter that the trial does not use."
    columns = ("trial", *["bracket"] * series.brackets, f"best {series.metric}", "at", "trained for", "state", *names)
    shown = table(columns, rows, 60)
    return f'<section class="card"><h2>Top trials</h2><p class="caption">{caption}</p>{shown}</section>'


def failure_rows(series: Series) -> list[tuple[float, tuple[str, str, str, str]]]:
    """(time, (what, trial, when, why)) of everything that went wrong, in order."""
    rows = [
        (time, (f"attempt failed: {f.outcome}", f"{f.trial}", f"attempt {f.attempt} to {f.target:,}", f.message))
        for time, f in series.failures
    ]
    names = series.bands.names
    rows += [
        (
            time,
            (
                "trial abandoned",
                f"{abandoned.trial}",
                f"{_where(series, abandoned)} {names.label(abandoned.bracket, abandoned.rung)}",
                abandoned.reason,
            ),
        )
        for time, abandoned in series.abandoned
    ]
    rows += [
        (time, ("report ignored", f"{late.trial}", f"attempt {late.attempt}", late.reason))
        for time, late in series.ignored
    ]
    return sorted(rows, key=lambda row: row[0])


def _where(series: Series, abandoned: TrialAbandoned) -> str:
    return "at" if series.trials[abandoned.trial].is_at(abandoned) else "on the way to"


def failures(series: Series) -> str:
    """What went wrong: abandoned trials first, then single attempts."""
    rows = failure_rows(series)
    diverged = sum(r.loss is None and not r.losses for trial in series.trials for r in trial.all_results)
    lost = math.fsum(s.end - s.start for s in series.spans if s.outcome is not None and s.value is None)
    if not rows and not diverged:
        return '<section class="card"><h2>Failures</h2><p class="caption">None.</p></section>'
    caption = (
        f"{plural(len(series.abandoned), 'trial')} abandoned, {plural(len(series.failures), 'attempt')} failed, "
        f"{plural(diverged, 'training')} diverged, {plural(len(series.ignored), 'late report')} ignored; "
        f"{duration(lost)} of worker time "
        "brought no result."
    )
    first = sorted(rows, key=lambda row: (row[1][0] != "trial abandoned", row[0]))[:FAILURES]
    more = f"<p>and {len(rows) - FAILURES:,} more</p>" if len(rows) > FAILURES else ""
    shown = [(duration(time), *cells) for time, cells in first]
    body = table(("time", "what", "trial", "when", "why"), shown) + more if shown else ""
    return f'<section class="card"><h2>Failures</h2><p class="caption">{caption}</p>{body}</section>'


TURNS = 50


def brackets(series: Series) -> str:
    """What each bracket took and brought, where there are several."""
    if not series.brackets:
        return ""
    bands, top = series.bands, max(band.rung.level for band in series.bands.all)
    starts = bands.entry_levels or {ladder.numbers[0]: ladder.start for ladder in bands.ladders}
    together = [[bracket] for bracket in starts] if bands.entry_levels else [ladder.numbers for ladder in bands.ladders]
    mine: dict[int, list[TrialRecord]] = {}
    for trial in series.trials:
        mine.setdefault(trial.bracket, []).append(trial)
    rows = []
    for numbers in together:
        trials = [trial for bracket in numbers for trial in mine.get(bracket, ())]
        best = min(trials, key=series.best_loss, default=None)
        loss = math.inf if best is None else series.best_loss(best)
        rows.append(
            (
                BracketView(numbers, "open").name,
                f"{starts[numbers[0]]:,}",
                f"{len(trials):,}",
                f"{sum(len(trial.results) for trial in trials):,}",
                f"{sum(trial.searched for trial in trials):,}",
                f"{sum(trial.searched == top for trial in trials):,}",
                number(series.study.metric_value(loss)) if loss < math.inf else "–",
                f"{best.number}" if best is not None and loss < math.inf else "–",
            )
        )
    columns = (
        "bracket",
        "starts at",
        "trials",
        "results",
        "units trained",
        f"trained to {top:,}",
        f"best {series.metric}",
        "by trial",
    )
    if bands.entry_levels:
        caption = "All brackets share their rungs; the number of a bracket says at which of them its trials begin."
    elif len(set(starts.values())) == 1:
        caption = "The same search several times, one after the other, each with rungs of its own."
    else:
        caption = (
            "Each bracket has rungs of its own. Those that start low try many trials and drop most of them early; "
            "those that start high train few for long, and are right where early results mislead."
        )
    shown = table(columns, rows)
    return f'<section class="card"><h2>Brackets</h2><p class="caption">{caption}</p>{shown}</section>'


def course(series: Series) -> str:
    """What changed the course of the study: ceilings that rose, halts, resumes, extensions."""
    if not series.turns:
        return ""
    rows = [(duration(time), *_turn(series, event)) for time, event in series.turns[:TURNS]]
    more = f"<p>and {len(series.turns) - TURNS:,} more</p>" if len(series.turns) > TURNS else ""
    caption = "What changed its course, from outside or by its own rules."
    shown = table(("time", "what", "why"), rows, 500) + more
    return f'<section class="card"><h2>Course of the study</h2><p class="caption">{caption}</p>{shown}</section>'


def _turn(series: Series, event: Turn) -> tuple[str, str]:
    if isinstance(event, CeilingRaised):
        return f"rung {event.rung} opened", _sentence(series.bands.names.ceiling_line(event))
    if isinstance(event, StudyHalted):
        return "halted", halt_words(series.study.spec, event)
    if isinstance(event, StudyExtended):
        return "extended", f"{event.configs:,} more configurations were asked for."
    if isinstance(event, TrialExtended):
        start = "from the start" if event.checkpoint is None else f"from {event.checkpoint.resource:,}"
        return f"trial {event.trial} extended", f"To be trained to {event.target:,}, {start}, beyond the search."
    if isinstance(event, TrialExtensionEnded):
        return f"trial {event.trial} not extended", f"Not trained to {event.target:,}: {event.reason}"
    return "resumed", "A controller went on with it."


def _sentence(words: str) -> str:
    """With a capital and a full stop."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


NO_LINKS: Mapping[str, str] = MappingProxyType({})


def write_report(
    entries: Iterable[Entry], path: Path, *, links: Mapping[str, str] = NO_LINKS, folder: Path | None = None
) -> Path:
    """Write a study's report to ``path`` and return it.

    Args:
        entries: the study's journal from its first entry on, read once; a prefix gives the report as of then.
        path: an ``.html`` file; folders above it are made. It is replaced as a whole or left as it was.
        links: name -> address, shown in the head (MLflow run, checkpoint).
        folder: of the study, for the ends of its logs; None shows none.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
        StorageError: the file cannot be written.
    """
    return write_page(render(read_series(entries), links, folder=folder), path)


def figures(series: Series) -> list[Figure]:
    """All figures that this study has something to show in, in reading order."""
    drawn = [
        front_figure(series),
        incumbent(series),
        *(_of_rungs(series) if series.lineage is None else _of_pbt(series)),
    ]
    found = [figure for figure in drawn if figure is not None]
    for figure in found:
        if figure.zoom:
            _make_room(figure)
    return found


def _of_rungs(series: Series) -> list[Figure | None]:
    found = importances(series)
    return [
        *grid_figures(series),
        learning_curves(series),
        ladder_figure(series),
        rung_counts(series),
        *device_figures(series),
        hop_figure(series),
        pool_slots(series),
        jobs_over_time(series),
        importance_bars(found) if found else None,
        parameter_panels(series, found) if found else None,
        contour(series, found) if found else None,
        parallel_coordinates(series, list(found.shares) if found else []),
        distribution(series),
    ]


def _of_pbt(series: Series) -> list[Figure | None]:
    """Parameters are compared in the first generation alone: later ones were chosen and changed, not drawn."""
    found = importances(series)
    drawn = found is not None and found.resource == series.levels[0]
    return [
        population_fitness(series),
        schedules(series),
        lineage_tree(series),
        *device_figures(series),
        hop_figure(series),
        pool_slots(series),
        jobs_over_time(series),
        importance_bars(found) if found is not None and drawn else None,
        distribution(series),
    ]


def _make_room(figure: Figure) -> None:
    """Plotly's buttons belong above the legend, not on it; how many rows the legend takes is estimated."""
    names = [trace.get("name", "") for trace in figure.data if trace.get("showlegend", True)]
    rows = 1 + sum(7 * len(name) + 52 for name in names) // 1050
    room = 14 + 20 * rows + figure.layout["height"] // 100  # the legend stands 1 % above the plot
    figure.layout["margin"]["t"] += room
    figure.layout["height"] += room - 14


def render(
    series: Series,
    links: Mapping[str, str] = NO_LINKS,
    *,
    folder: Path | None = None,
    live: Live | None = None,
    whole: bool = True,
) -> str:
    """The page as text; ``live`` and ``whole`` are those of :func:`html_page`."""
    drawn = figures(series)
    beside = ("rungs", "population")
    cards = "".join(card(figure) for figure in drawn if figure.key not in beside)
    first = best_parameters(series) + "".join(card(figure) for figure in drawn if figure.key in beside)
    if not drawn:
        empty = '<h2>Nothing to draw yet</h2><p class="caption">No job was granted.</p>'
        cards = f'<section class="card">{empty}</section>'
    return html_page(
        f"{series.study.name} – report",
        f"{head(series, links)}"
        f'<div class="{"pair" if len(series.study.spec.space) < 12 else "pair long"}">{first}</div>'
        f"{brackets(series)}{course(series)}{cards}"
        f"{device_table(series)}{hop_tables(series)}{front_table(series)}{top_trials(series)}{failures(series)}"
        f"{trials_card(series)}",
        drawn,
        f"A projection of the journal up to entry {series.study.seq - 1}; write it again at any time.",
        trials=embedded_trials(series, folder),
        live=live,
        whole=whole,
    )
