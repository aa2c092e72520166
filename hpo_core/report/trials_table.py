"""All trials of a study as data for the page: rows for the table, and what the section of one trial shows.

The size is bounded: rows are there for every trial, details as far as they fit, the best and the failed trials first.
"""

from __future__ import annotations

import json
import math
from typing import Any

from hpo_core.checkpoints.storage import log_path
from hpo_core.report.curves import thinned_curve
from hpo_core.report.style import scale, text
from hpo_core.views.device_use import Span
from hpo_core.views.failure_reasons import rank_named
from hpo_core.views.formatting import duration
from hpo_core.views.hop_views import visit_lines
from hpo_core.views.series import Series
from hpo_core.views.states import trial_state, trial_story, usage_words

DETAIL_BYTES = 4_000_000
"""Bytes of the curves, stories, attempts and visits of all trials together."""
EPOCHS = 100
"""Latest epochs of a trial whose visits are listed."""


def trials_section(series: Series) -> str:
    """HTML of the table and of the section of one trial, which ``trials.js`` fills; empty where there is no trial."""
    if not series.trials:
        return ""
    return (
        '<section class="card"><h2>All trials</h2>'
        '<p class="caption">Click a title to sort, a number to see that trial. The filter takes words, and '
        "comparisons of a column: <code>state=winner</code>, <code>trained_for&gt;=9</code>.</p>"
        '<div class="bar"><input id="trials-filter" type="search" placeholder="Filter" aria-label="Filter">'
        '<select id="trials-sort" aria-label="Sort"></select>'
        '<button id="trials-back" aria-label="Page before">‹</button><span class="small" id="trials-count"></span>'
        '<button id="trials-on" aria-label="Next page">›</button>'
        '<button id="trials-csv">Download CSV</button></div>'
        '<div class="scroll"><table id="trials" class="stack"></table></div></section>'
        '<section class="card" id="trial" hidden></section>'
    )


def embedded_trials(series: Series) -> dict[str, Any] | None:
    """Data that ``trials.js`` shows; None where there is no trial."""
    if not series.trials:
        return None
    spec, best = series.study.spec, series.study.best
    names = dict.fromkeys(spec.space)
    for trial in series.trials:  # a journal from elsewhere may hold others
        names |= dict.fromkeys(trial.params)
    attempts: dict[int, list[Span]] = {trial.number: [] for trial in series.trials}
    for span in series.spans:
        attempts[span.trial].append(span)
    measured = any(span.usage is not None for span in series.spans)
    rows: list[dict[str, Any]] = []
    for trial in series.trials:
        own, at = attempts[trial.number], series.bests.get(trial.number)
        cells: dict[str, Any] = {"trial": trial.number, "state": trial_state(series.study, trial)}
        if series.brackets:
            cells["bracket"] = trial.bracket
        best_value = None if at is None else series.study.metric_value(series.best_loss(trial))
        cells |= {f"best {series.metric}": _plain(best_value), "at": None if at is None else at.resource}
        last = trial.results[-1].metrics if trial.results else {}
        cells |= {metric.name: _plain(last.get(metric.name)) for metric in spec.objectives[1:]}
        seconds = round(math.fsum(span.end - span.start for span in own), 1)
        cells |= {"trained for": trial.resource, "attempts": trial.attempts, "seconds": seconds}
        if measured:  # the largest memory, the others of the latest attempt
            usages = [span.usage for span in own if span.usage is not None]
            cells["memory MB"] = round(max(usage.memory for usage in usages) / 1e6, 1) if usages else None
            cells["cores"] = usages[-1].cores if usages else None
            cells["seconds per unit"] = usages[-1].unit_seconds or None if usages else None
        rows.append(cells)
    drawn = scale((v for c in series.curves.values() for v in c.values()), maximize=series.maximize)
    axis = drawn.axis(text(series.metric))
    return {
        "study": series.study.name,
        "columns": [*rows[0], *names],
        "params": len(names),
        "rows": [
            [*row.values(), *(_plain(trial.params.get(name)) for name in names)]
            for row, trial in zip(rows, series.trials, strict=True)
        ],
        "parents": {trial.number: trial.parent for trial in series.trials if trial.parent is not None},
        "winner": None if best is None else best.trial,
        "maximize": series.maximize,
        "axis": {key: axis[key] for key in ("title", "type", "tickvals", "ticktext") if key in axis},
        "details": _details(series, attempts),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > 2**53):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (int, float, str)) else json.dumps(value, default=str)


def _details(series: Series, attempts: dict[int, list[Span]]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    study = series.study
    left = DETAIL_BYTES
    ranked = series.ranked_trials()
    failed = [trial for trial in series.trials if trial.abandoned is not None]
    wanted = {trial.number: trial for trial in [*ranked[:1], *failed, *ranked, *series.trials]}
    for trial in wanted.values():
        created, *others = trial_story(study, trial.number)[:-1]  # parameters and state stand beside it
        own: dict[str, Any] = {
            "curve": thinned_curve(series, trial),
            "story": [line[:2_000] for line in (created.partition(": ")[0], *others)],
            "attempts": [
                [
                    *(span.attempt, span.target, span.outcome or "running"),
                    *(duration(span.start), duration(span.end - span.start)),
                    *(span.worker, usage_words(span.usage, unit=study.spec.unit_word)),
                ]
                for span in attempts[trial.number]
            ],
        }
        own["visits"] = [line[:2_000] for line in visit_lines(study.spec, trial)][-EPOCHS:]
        if trial.attempts:
            ranks = {failure.attempt: rank_named(failure.message) for failure in trial.failures}
            own["log"] = log_path(trial.number, trial.attempts - 1, ranks.get(trial.attempts - 1, 0))
        left -= len(json.dumps(own))
        if left < 0:
            break
        found[trial.number] = {key: value for key, value in own.items() if value}
    return found
