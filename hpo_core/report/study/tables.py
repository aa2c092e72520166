"""Head, tiles and tables of the page as HTML; every word from outside is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from hpo_core.model.events import TrialAbandoned
from hpo_core.pool.words import share_words
from hpo_core.report.study.series import Series
from hpo_core.report.style import text
from hpo_core.search.search_settings import Progress
from hpo_core.views.formatting import duration, number, plural
from hpo_core.views.jobs.data_words import data_words
from hpo_core.views.jobs.device_words import granted_words
from hpo_core.views.jobs.gang_words import gang_words
from hpo_core.views.jobs.kept_apart import kept_apart_in, kept_apart_lines
from hpo_core.views.jobs.measured_ratios import measured_ratio_lines, measured_ratios
from hpo_core.views.jobs.packing_words import packing_words
from hpo_core.views.next_command import next_command
from hpo_core.views.repeat_spread import spread_of
from hpo_core.views.rung_names import halt_words
from hpo_core.views.summary import exhausted_words, notices_of, other_best_words, rule_words
from hpo_core.views.trial_state import trial_state

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
