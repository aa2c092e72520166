"""The table of brackets, and the table of what changed the course of the study."""

from __future__ import annotations

import math

from hpo_core.model.events import CeilingRaised, StudyExtended, StudyHalted, TrialExtended, TrialExtensionEnded
from hpo_core.report.study.series import Series, Turn
from hpo_core.report.study.tables import table
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import duration, number
from hpo_core.views.rungs import BracketView, halt_words

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
