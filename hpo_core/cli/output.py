"""What ``hpo`` prints: tables, summaries, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpo_core.home import Home
from hpo_core.journal.damage import damage_named
from hpo_core.journal.protocol import Journal, StudyInfo
from hpo_core.model.errors import HpoError
from hpo_core.model.events import AttemptReported, Entry
from hpo_core.model.stage import FURTHER
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.views.front import front_facts, front_rows
from hpo_core.views.rung_names import RungNames, halt_words
from hpo_core.views.rungs import BracketView, bracket_views, entrances, folded, rung_rows


class SafeConsole(Console):
    """A console whose texts cannot command the terminal: what is styled is ours, what is text may be of others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                yield Segment(terminal_text(segment.text, lines=True), segment.style)


out = SafeConsole()
err = SafeConsole(stderr=True)
_FRONT_SHOWN = 10


def duration(seconds: float | None) -> str:
    """``1:02:03`` or ``2:03``; ``?`` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def best_line(study: Study) -> str:
    """The incumbent in one line; with several objectives, also how many results are on the front."""
    best = study.best
    if best is None:
        return "no result yet"
    name = terminal_text(study.spec.metric.name)
    front = f", front of {len(study.state.front)}" if len(study.spec.objectives) > 1 else ""
    return f"{name} {study.metric_value(best.loss):.5g} (trial {best.trial} at {best.resource}){front}"


def _print_front(facts: dict[str, Any], most: int | None = None) -> None:
    """The front as a table, where there are several objectives."""
    front = facts["front"]
    if front and len(front[0]["values"]) > 1:
        many = len(front)
        names = terminal_text(", ".join(front[0]["values"]))
        out.print(Text(f"Pareto front of {names}: {many} result{'' if many == 1 else 's'}"))
        out.print(table_of(front_rows(front, most)))
        if most is not None and many > most:
            out.print(Text(f"and {many - most} more: hpo show {facts['study']}", style="dim"))


def print_summary(facts: dict[str, Any]) -> None:
    """The end of a run, for people."""
    out.print()
    out.print(
        Text.assemble(
            (f"{facts['study']} {facts['status']}", "bold green" if facts["status"] == "finished" else "bold yellow"),
            f": {facts['trials']} trials, {facts['jobs']} jobs in {duration(facts['seconds'])}",
        )
    )
    if facts["reason"]:
        rule = "stop rule met: " if facts["rule"] else ""
        out.print(Text(f"  reason      {rule}{terminal_text(facts['reason'])}", style="yellow"), soft_wrap=True)
    best = facts["best"]
    if best is not None:
        reached = f"{terminal_text(facts['metric'])} = {best['value']:.5g}"
        out.print(Text(f"  best        {reached}  (trial {best['trial']} at {best['resource']})"))
        for key, value in best["params"].items():
            shown = f"{value:.5g}" if isinstance(value, float) else str(value)
            out.print(Text(f"              {terminal_text(f'{key} = {shown}')}"))
    _print_front(facts, most=_FRONT_SHOWN)
    if facts["trained_further"]:
        out.print(Text(f"  further     {facts['trained_further']['words']}"), soft_wrap=True)
    for title, key in (("checkpoint", "checkpoint"), ("MLflow", "mlflow"), ("report", "report")):
        if facts[key]:
            out.print(Text(f"  {title:<11} {facts[key]}"), soft_wrap=True)
    name = facts["study"]
    if facts["status"] != "finished":
        more = f"hpo resume {name}"
    elif facts["method"] == "recorded":
        more = "hpo list"
    else:
        more = f"hpo extend {name} --configs 30"
    out.print(Text(f"  next        {more}   (also: hpo show {name}, hpo audit {name})"))


def trained_further(study: Study, number: int, to: int) -> dict[str, Any]:
    """What became of the trial that was to be trained further."""
    trial = study.state.trials[number]
    result = next((r for r in reversed(trial.further) if r.resource >= to), None)
    name = study.spec.metric.name
    if result is not None:
        loss = "not finite" if result.loss is None else f"{study.metric_value(result.loss):.5g}"
        words = f"trial {number} trained further, to {result.resource}: {name} = {loss}"
    elif number in study.state.extended:
        held = study.state.halted
        why = f" ({held.reason})" if held is not None and study.state.further_held else ""
        words = (
            f"Study {study.name!r}, trial {number} is not trained to {to} yet{why}. Mend that, then "
            f"`hpo extend {study.name} --trial {number} --to {to}` goes on."
        )
    else:
        why = trial.given_up[-1].reason if trial.given_up else trial.status
        words = f"Study {study.name!r}, trial {number} was not trained to {to}: {why}"
    value = None if result is None or result.loss is None else study.metric_value(result.loss)
    return {"trial": number, "to": to, "reached": result is not None, "value": value, "words": words}


def _left_as_built(entries: Iterable[Entry], trial: int) -> Iterator[str]:
    """What the trial's attempts could not restore from another trial's checkpoint."""
    for entry in entries:
        if isinstance(entry.stimulus, AttemptReported) and entry.stimulus.report.trial == trial:
            report = entry.stimulus.report
            yield from (f"attempt {report.attempt} left as built: {line}" for line in report.unrestored)


def print_study(home: Home, name: str, at: int | None, as_json: bool, trial: int | None = None) -> None:
    """A study as of an entry, or the story of one trial."""
    source = home.read_journal()
    with damage_named(source, name):
        _print_study(source, name, at, as_json, trial)


def _print_study(source: Journal, name: str, at: int | None, as_json: bool, trial: int | None) -> None:
    info = source.info(name)
    if at is not None and at >= info.entries:
        raise HpoError(f"--at {at}: study {name!r} has entries 0 to {info.entries - 1}.")
    study = Study.open(name, source, at=at, reading=True)
    state = study.state
    if trial is not None:
        if trial >= len(state.trials):
            raise HpoError(f"--trial {trial}: study {name!r} has trials 0 to {len(state.trials) - 1} at that entry.")
        for line in [*state.story(trial), *_left_as_built(source.entries(name, 0, study.seq), trial)]:
            out.print(Text(terminal_text(line)), soft_wrap=True)
        return
    views = bracket_views(study, details=True)
    names = RungNames(study.spec)
    ceilings = [names.raised(event) for event in state.ceilings]
    facts = {
        "study": name,
        "entry": study.seq - 1,
        "entries": info.entries,
        "status": status_word(study, info) if at is None else study.status,
        "reason": state.halted.reason if state.halted else "",
        "rule": state.halted.rule if state.halted else "",
        "trials": len(state.trials),
        "jobs": state.completed_jobs,
        "running": [
            {
                "trial": j.trial,
                "bracket": j.bracket,
                "rung": None if j.rung == FURTHER else names.place(j.bracket, j.rung)[1],
                "target": j.target,
                "attempt": j.attempt,
            }
            for j in state.wanted()
        ],
        "waiting": list(state.waiting),
        "to_train_further": [{"trial": t.trial, "to": t.target} for t in state.extended.values()],
        "abandoned": state.abandoned_trials,
        "failed_attempts": state.failed_attempts,
        "rungs": _plain_rungs(study, views),
        "ceilings": ceilings,
        "best": None
        if study.best is None
        else {
            "trial": study.best.trial,
            "value": study.metric_value(study.best.loss),
            "resource": study.best.resource,
            "params": state.trials[study.best.trial].params,
        },
        "front": front_facts(study.spec, state),
    }
    if as_json:
        print_json(facts)
        return
    out.print(
        Text.assemble(
            (f"{name} ", "bold"),
            f"as of entry {facts['entry']} of {info.entries - 1}: {facts['status']}, {facts['trials']} trials, "
            f"{facts['jobs']} jobs done, {len(state.running)} running, {len(state.waiting)} waiting, "
            f"{facts['abandoned']} abandoned, {facts['failed_attempts']} failed attempts",
        )
    )
    if state.halted is not None:
        halted = terminal_text(f"halted: {halt_words(study.spec, state.halted)}")
        out.print(Text(halted, style="yellow"), soft_wrap=True)
    out.print(Text(f"best: {best_line(study)}"))
    _print_front(facts)
    if enter := entrances(study.spec):
        places = ", ".join(f"{level} (bracket {bracket})" for bracket, level in enter.items())
        out.print(Text(f"all brackets share these rungs; their trials enter at {places}"))
    out.print(table_of(without_repeats(rung_rows(study, folded(views)), "bracket", "state")))
    for line in ceilings:
        out.print(Text(f"ceiling: {line}"), soft_wrap=True)
    for wanted in state.extended.values():
        if wanted.trial not in state.running:
            out.print(Text(f"to be trained further: trial {wanted.trial} to {wanted.target}"))
    for job in state.wanted():
        rung = names.words(job.bracket, job.rung)
        out.print(Text(f"running: trial {job.trial} to {job.target} ({rung}, attempt {job.attempt})"))


def print_comparison(facts: dict[str, Any], page: Path, as_json: bool) -> None:
    """Studies side by side, and where the page is."""
    if as_json:
        print_json(facts | {"page": str(page)})
        return
    hidden = {"params", "jobs", "trial", "at", "worker_seconds"}
    if len(facts["groups"]) < len(facts["studies"]):
        out.print(table_of(facts["groups"]))
        out.print()
    out.print(table_of([{k: v for k, v in row.items() if k not in hidden} for row in facts["studies"]]))
    out.print(Text(f"\npage: {page}"), soft_wrap=True)


def _plain_rungs(study: Study, views: list[BracketView]) -> list[dict[str, Any]]:
    return [
        {
            "bracket": view.numbers[0] if view.numbers else None, "rung": rung.rung, "trained to": rung.level,
            "open": rung.is_open, "results": rung.results, "expected": rung.expected, "running": rung.running,
            "promoted": rung.promoted, "promotable": rung.waiting, "stopped": rung.stopped,
            "best": None if rung.best is None else study.metric_value(rung.best),
        }
        for view in views
        for rung in view.rungs
    ]  # fmt: skip


def without_repeats(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Rows whose cells in ``columns`` are empty where all of them say the same as in the row above."""
    told = [{column: row[column] for column in columns if column in row} for row in rows]
    return [
        row | dict.fromkeys(mine, "") if i and mine == told[i - 1] else row
        for i, (row, mine) in enumerate(zip(rows, told, strict=True))
    ]


def status_word(study: Study, info: StudyInfo) -> str:
    """The study's status, and whether somebody drives it."""
    from hpo_core.journal.sql import is_alive

    word: str = study.status
    if word == "open":
        return "running" if is_alive(info) else "interrupted"
    return word


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Rows of one shape as a table; what the first column names stays whole in a narrow terminal, to be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(rows[0]):
        whole = max(len(str(row[column])) for row in rows) if place == 0 else None
        table.add_column(terminal_text(column), no_wrap=whole is not None, min_width=whole)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else terminal_text(str(value))


def print_json(value: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
