"""All trials of a study as data for the page: rows for the table, and what the section of one trial shows.

The size is bounded: rows are there for every trial, curves, stories and logs as far as they fit, the best and the
failed trials first.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo_core.checkpoints.paths import log_path
from hpo_core.model.events import JobCompleted
from hpo_core.report.scale import scale
from hpo_core.report.series import Series, Span
from hpo_core.report.style import text
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.state import TrialRecord
from hpo_core.views.failure_reasons import rank_named
from hpo_core.views.formatting import duration, listed, number
from hpo_core.views.hop_views import VISITS_NAMED, PartitionNames, epochs_of
from hpo_core.views.summary import repeat_spread
from hpo_core.views.trial_story import largest_memory, trial_state, trial_story, usage_words

TAIL = 3_000
"""Bytes of one log."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_tail(folder: Path, trial: int, attempts: int, ranks: Mapping[int, int] | None = None) -> tuple[str, str] | None:
    """Name and end of the log of the latest attempt that has one; None where none has.

    Args:
        folder: of the study.
        ranks: by attempt, the rank of its gang that failed.
    """
    for attempt in range(attempts - 1, max(-1, attempts - 4), -1):
        place = log_path(trial, attempt, (ranks or {}).get(attempt, 0))
        text = _end_of(folder / place)
        if text.strip():
            return place, text
    return None


def _end_of(path: Path) -> str:
    """Empty unless it is a regular file; what a training printed for a terminal is made plain text."""
    try:
        # A link would show another file of this user in a page that is passed on; a pipe would make us wait.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        file.seek(max(0, found.st_size - TAIL))
        raw = file.read(TAIL).decode("utf-8", "replace")
    if found.st_size > TAIL:
        raw = "… " + raw.partition("\n")[2]
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ESCAPES.sub("", raw).split("\n"))
    return masked(terminal_text("\n".join(lines), lines=True))


CURVE_POINTS = 60
"""Of one trial."""
CURVE_BYTES, STORY_BYTES, LOG_BYTES, VISIT_BYTES = 1_500_000, 1_500_000, 400_000, 1_000_000
"""Of all trials together."""
_USED = ["memory MB", "cores", "seconds per unit"]
"""Columns of a study whose attempts were measured: the largest memory, the others of the latest attempt."""
_SPREAD = ["std", "repeats"]
"""Columns of a study with seed repeats: standard deviation and single values behind the best."""
EPOCHS = 100
"""The latest ones of a trial whose visits are listed."""
LOGS = 300
"""Trials whose logs are looked for."""


def embedded_trials(series: Series, folder: Path | None = None) -> dict[str, Any] | None:
    """What ``trials.js`` shows; None where there is no trial.

    Args:
        folder: of the study, for the ends of logs; None shows none.
    """
    if not series.trials:
        return None
    study = series.study
    names = _parameters(series)
    others = [metric.name for metric in study.spec.objectives[1:]]
    brackets = ["bracket"] * series.brackets
    spans = _spans(series)
    columns = [
        "trial",
        "state",
        *brackets,
        f"best {series.metric}",
        "at",
        *_SPREAD * (study.spec.repeats > 1),
        *others,
        "trained for",
        "attempts",
        "seconds",
        *_USED * _is_measured(series),
    ]
    best = study.best
    values = [value for curve in series.curves.values() for value in curve.values()]
    return {
        "study": study.name,
        "columns": [*columns, *names],
        "params": len(names),
        "rows": [_row(series, trial, spans.get(trial.number, ()), names, others) for trial in series.trials],
        "parents": {trial.number: trial.parent for trial in series.trials if trial.parent is not None},
        "winner": None if best is None else best.trial,
        "axis": _axis(series, values),
        "details": _details(series, spans, folder),
    }


def _axis(series: Series, values: Iterable[float]) -> dict[str, Any]:
    """The metric's axis of one trial's curve: as of all, but as long as that curve needs."""
    drawn = scale(values, maximize=series.maximize).axis(text(series.metric))
    return {key: drawn[key] for key in ("title", "type", "tickvals", "ticktext") if key in drawn}


def _parameters(series: Series) -> list[str]:
    """Those of the space first, then others that a journal from elsewhere may hold."""
    names = dict.fromkeys(series.study.spec.space)
    for trial in series.trials:
        names |= dict.fromkeys(trial.params)
    return list(names)


def _row(
    series: Series, trial: TrialRecord, spans: Sequence[Span], names: Sequence[str], others: Sequence[str]
) -> list[Any]:
    loss = series.best_loss(trial)
    at = next((r for r in trial.all_results if r.loss == loss), None)
    last = trial.all_results[-1].metrics if trial.all_results else {}
    return [
        trial.number,
        trial_state(series.study, trial),
        *[trial.bracket] * series.brackets,
        _plain(series.study.metric_value(loss)) if at is not None else None,
        None if at is None else at.resource,
        *_spread_cells(series, at) * (series.study.spec.repeats > 1),
        *(_plain(last.get(name)) for name in others),
        trial.resource,
        trial.attempts,
        round(math.fsum(span.end - span.start for span in spans), 1),
        *_used_cells(spans) * _is_measured(series),
        *(_plain(trial.params.get(name)) for name in names),
    ]


def _is_measured(series: Series) -> bool:
    return any(span.usage is not None for span in series.spans)


def _used_cells(spans: Sequence[Span]) -> list[Any]:
    """What stands in the columns :data:`_USED`."""
    usages = [span.usage for span in spans if span.usage is not None]
    memory = largest_memory(usages)
    if memory is None:
        return [None] * len(_USED)
    return [round(memory / 1e6, 1), usages[-1].cores, usages[-1].unit_seconds or None]


def _spread_cells(series: Series, result: JobCompleted | None) -> list[Any]:
    """What stands in the columns :data:`_SPREAD`."""
    found = None if result is None else repeat_spread(result, series.study.spec.metric.name)
    if found is None:
        return [None, None]
    return [_plain(found.std), ", ".join(number(value, 5) for value in found.values)]


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON or a number of JavaScript cannot hold becomes words."""
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > 2**53):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (int, float, str)) else json.dumps(value, default=str)


def _spans(series: Series) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in series.spans:
        found.setdefault(span.trial, []).append(span)
    return found


def _details(series: Series, spans: dict[int, list[Span]], folder: Path | None) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    left = {"curve": CURVE_BYTES, "story": STORY_BYTES, "log": LOG_BYTES, "visits": VISIT_BYTES}
    partitions = PartitionNames.of(series.study.spec)

    def keep(trial: TrialRecord, key: str, value: Any, budget: str) -> None:
        size = len(json.dumps(value))
        if value and size <= left[budget]:
            left[budget] -= size
            found.setdefault(trial.number, {})[key] = value

    for place, trial in enumerate(_most_wanted(series)):
        keep(trial, "curve", _curve(series, trial), "curve")
        keep(trial, "spread", _spread_at_results(series, trial), "curve")
        if left["story"] > 0:
            keep(trial, "story", _story(series, trial), "story")
            keep(trial, "attempts", [_attempt(series, span) for span in spans.get(trial.number, ())], "story")
        if partitions is not None and left["visits"] > 0:
            keep(trial, "visits", _visits(trial, partitions), "visits")
        if folder is not None and place < LOGS:
            ranks = {failure.attempt: rank_named(failure.message) for failure in trial.failures}
            keep(trial, "log", log_tail(folder, trial.number, trial.attempts, ranks), "log")
    return found


def _most_wanted(series: Series) -> Iterable[TrialRecord]:
    """The winner, what failed, then by rank."""
    ranked = series.ranked_trials()
    order = [*ranked[:1], *(trial for trial in series.trials if trial.abandoned is not None), *ranked, *series.trials]
    return {trial.number: trial for trial in order}.values()


def _curve(series: Series, trial: TrialRecord) -> list[tuple[int, float | None]]:
    curve = sorted(series.curves.get(trial.number, {}).items())
    rungs = {result.resource for result in trial.all_results}
    step = -(-len(curve) // CURVE_POINTS) or 1
    return [
        (at, float(f"{value:.6g}") if math.isfinite(value) else None)
        for k, (at, value) in enumerate(curve)
        if k % step == 0 or at in rungs
    ]


def _spread_at_results(series: Series, trial: TrialRecord) -> dict[int, float]:
    """Standard deviation over the seed repeats, by units of training; error bars of the curve."""
    found = {r.resource: repeat_spread(r, series.study.spec.metric.name) for r in trial.all_results}
    return {at: float(f"{one.std:.4g}") for at, one in found.items() if one is not None and one.std is not None}


def _story(series: Series, trial: TrialRecord) -> list[str]:
    """Without its parameters and its state, which stand beside it."""
    created, *others = trial_story(series.study, trial.number)[:-1]
    return [line[:2_000] for line in (created.partition(": ")[0], *others)]


def _visits(trial: TrialRecord, names: PartitionNames) -> list[list[Any]]:
    """A row for each of the latest epochs: number, partitions in order, workers, those of validation, seconds."""
    epochs = [epoch for result in trial.all_results for epoch in epochs_of(result.visits or (), names, result.together)]
    return [
        [
            epoch.epoch,
            listed([" + ".join(name for name, _, _ in unit) for unit in epoch.units], VISITS_NAMED),
            listed([" + ".join(worker for _, worker, _ in unit) for unit in epoch.units], VISITS_NAMED),
            listed([f"{name} on {worker}" for name, worker, _ in epoch.evaluated], VISITS_NAMED),
            duration(epoch.seconds),
        ]
        for epoch in epochs[-EPOCHS:]
    ]


def _attempt(series: Series, span: Span) -> list[Any]:
    outcome = "running" if span.outcome is None else span.outcome.value
    length = duration(span.end - span.start)
    used = usage_words(span.usage, hops=series.study.spec.data is not None)
    return [span.attempt, series.levels[span.level], outcome, duration(span.start), length, span.worker, used]


def trials_card(series: Series) -> str:
    """HTML of both; empty where there is no trial."""
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
