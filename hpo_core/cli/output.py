"""What ``hpo`` prints: tables, summaries, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal, StudyInfo
from hpo_core.model.errors import HpoError
from hpo_core.replay.damaged_journals import damage_named
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.views.failure_reasons import Failures, failure_lines, failures_of
from hpo_core.views.formatting import duration, number, plural
from hpo_core.views.front import FrontMember, front_rows
from hpo_core.views.rung_names import RungNames, halt_words
from hpo_core.views.rungs import BracketView, bracket_views, entry_levels, grouped_brackets, rung_rows
from hpo_core.views.summary import BestResult, exhausted_words, summarize
from hpo_core.views.trained_further import Extension


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
_SHOWN = (
    "study",
    "status",
    "reason",
    "rule",
    "trials",
    "jobs",
    "running",
    "waiting",
    "to_train_further",
    "abandoned",
    "failed_attempts",
    "best",
    "front",
)
"""Fields of the summary in ``hpo show --json``."""


def best_line(study: Study) -> str:
    """The incumbent in one line; with several objectives, also how many results are on the front."""
    best = study.best
    if best is None:
        return "no result yet"
    name = terminal_text(study.spec.metric.name)
    front = f", front of {len(study.state.front)}" if len(study.spec.objectives) > 1 else ""
    return f"{name} {number(study.metric_value(best.loss), 5)} (trial {best.trial} at {best.resource}){front}"


def _print_front(study: str, front: Sequence[FrontMember], most: int | None = None) -> None:
    """The front as a table, where there are several objectives."""
    if front and len(front[0].values) > 1:
        names = terminal_text(", ".join(front[0].values))
        out.print(Text(f"Pareto front of {names}: {plural(len(front), 'result')}"))
        out.print(table_of(front_rows(front, most)))
        if most is not None and len(front) > most:
            out.print(Text(f"and {len(front) - most} more: hpo show {study}", style="dim"))


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a study came to; its fields are the keys of ``--json``."""

    study: str
    status: str
    reason: str
    rule: str
    method: str
    trials: int
    jobs: int
    seconds: float
    metric: str
    failures: Failures
    best: BestResult | None
    front: tuple[FrontMember, ...]
    notices: Sequence[str]
    trained_further: Extension | None
    mlflow: str | None
    checkpoint: str | None
    report: str


def print_run_result(result: RunResult, *, extendable: bool, folder: str, as_json: bool) -> None:
    """The end of a run: JSON for programs, or a summary for people.

    Args:
        extendable: whether further configurations can be asked for.
        folder: of the study, where the logs lie.
    """
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    out.print()
    out.print(
        Text.assemble(
            (f"{result.study} {result.status}", "bold green" if result.status == "finished" else "bold yellow"),
            f": {result.trials} trials, {result.jobs} jobs in {duration(result.seconds)}",
        )
    )
    if result.reason:
        rule = "stop rule met: " if result.rule else ""
        out.print(Text(f"  reason      {rule}{terminal_text(result.reason)}", style="yellow"), soft_wrap=True)
    if (best := result.best) is not None:
        reached = f"{terminal_text(result.metric)} = {number(best.value, 5)}"
        out.print(Text(f"  best        {reached}  (trial {best.trial} at {best.resource})"))
        for key, value in best.params.items():
            shown = f"{value:.5g}" if isinstance(value, float) else str(value)
            out.print(Text(f"              {terminal_text(f'{key} = {shown}')}"))
    _print_front(result.study, result.front, most=_FRONT_SHOWN)
    if result.trained_further is not None:
        out.print(Text(f"  further     {result.trained_further.words}"), soft_wrap=True)
    for title, line in zip(["failures", *[""] * 99], failure_lines(result.failures, folder), strict=False):
        out.print(Text(f"  {title:<11} {terminal_text(line)}", style="yellow"), soft_wrap=True)
    for title, target in (("checkpoint", result.checkpoint), ("MLflow", result.mlflow), ("report", result.report)):
        if target:
            out.print(Text(f"  {title:<11} {target}"), soft_wrap=True)
    name = result.study
    if result.status != "finished":
        more = f"hpo resume {name}"
    else:
        more = f"hpo extend {name} --configs 30" if extendable else "hpo list"
    out.print(Text(f"  next        {more}   (also: hpo show {name}, hpo audit {name})"))


def print_study(home: Home, name: str, at: int | None, as_json: bool) -> None:
    """A study as of an entry."""
    source = home.read_journal()
    with damage_named(source, name):
        _print_study(source, name, at, as_json, folder=home.study_folder(name))


def _print_study(source: Journal, name: str, at: int | None, as_json: bool, *, folder: Path) -> None:
    info = source.info(name)
    if at is not None and at >= info.entries:
        raise HpoError(f"--at {at}: study {name!r} has entries 0 to {info.entries - 1}.")
    study = Study.open(name, source, at=at, reading=True)
    state = study.state
    views = bracket_views(study, details=True)
    names = RungNames(study.spec)
    ceilings = [names.ceiling_line(event) for event in state.ceilings]
    summary, failures = summarize(study), failures_of(state)
    status = status_word(study, info) if at is None else summary.status
    if as_json:
        print_json(
            {"entry": study.seq - 1, "entries": info.entries, "rungs": _plain_rungs(study, views), "ceilings": ceilings}
            | summary.plain(*_SHOWN)
            | {"status": status, "failures": msgspec.to_builtins(failures)}
        )
        return
    out.print(
        Text.assemble(
            (f"{name} ", "bold"),
            f"as of entry {study.seq - 1} of {info.entries - 1}: {status}, {summary.trials} trials, "
            f"{summary.jobs} jobs done, {len(summary.running)} running, {len(summary.waiting)} waiting, "
            f"{summary.abandoned} abandoned, {summary.failed_attempts} failed attempts",
        )
    )
    if state.halted is not None:
        halted = terminal_text(f"halted: {halt_words(study.spec, state.halted)}")
        out.print(Text(halted, style="yellow"), soft_wrap=True)
    elif state.exhausted:
        out.print(Text(exhausted_words(study), style="yellow"), soft_wrap=True)
    out.print(Text(f"best: {best_line(study)}"))
    for line in failure_lines(failures, str(folder)):
        out.print(Text(terminal_text(line), style="yellow"), soft_wrap=True)
    _print_front(name, summary.front)
    if enter := entry_levels(study.spec):
        places = ", ".join(f"{level} (bracket {bracket})" for bracket, level in enter.items())
        out.print(Text(f"all brackets share these rungs; their trials enter at {places}"))
    out.print(table_of(without_repeats(rung_rows(study, grouped_brackets(views)), "bracket", "state")))
    for line in ceilings:
        out.print(Text(f"ceiling: {line}"), soft_wrap=True)
    for wanted in state.extended.values():
        if wanted.trial not in state.running:
            out.print(Text(f"to be trained further: trial {wanted.trial} to {wanted.target}"))
    for job in state.wanted():
        rung = names.label(job.bracket, job.rung)
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
            "bracket": view.numbers[0] if view.numbers else None,
            "rung": rung.rung,
            "trained to": rung.level,
            "open": rung.is_open,
            "results": rung.results,
            "expected": rung.expected,
            "running": rung.running,
            "promoted": rung.promoted,
            "promotable": rung.waiting,
            "stopped": rung.stopped,
            "best": None if rung.best is None else study.metric_value(rung.best),
        }
        for view in views
        for rung in view.rungs
    ]


def without_repeats(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Rows whose cells in ``columns`` are empty where all of them say the same as in the row above."""
    shown = [{column: row[column] for column in columns if column in row} for row in rows]
    return [
        row | dict.fromkeys(mine, "") if i and mine == shown[i - 1] else row
        for i, (row, mine) in enumerate(zip(rows, shown, strict=True))
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
