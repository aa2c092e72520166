"""Output of ``hpo``: tables, summaries, JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpo_core.home import Home, checked_name, is_name
from hpo_core.journal.protocol import Journal, StudyInfo
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.errors import HpoError
from hpo_core.replay.audit import damage_named
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec.sent_functions import short_name
from hpo_core.study import Study
from hpo_core.terminal.without_terminal import has_columns
from hpo_core.views.device_use import (
    TO_RESUME,
    DeviceUse,
    device_lines,
    granted_words,
    measured_ratio_lines,
    measured_ratios,
    running_lines,
    sharing,
)
from hpo_core.views.failure_reasons import Failures, failure_lines, failures_of, next_command
from hpo_core.views.formatting import duration, number, plural
from hpo_core.views.hop_views import hopping_line, plain_hops
from hpo_core.views.rungs import (
    BracketView,
    RungNames,
    bracket_views,
    entry_levels,
    grouped_brackets,
    halt_words,
    rung_rows,
)
from hpo_core.views.series import read_series
from hpo_core.views.states import grid_states, study_word
from hpo_core.views.summary import (
    FrontMember,
    StudySummary,
    constraint_words,
    exhausted_words,
    front_rows,
    other_best_words,
    packing_words,
    rule_words,
    summarize,
)

UNBROKEN = 16
"""A cell of at most so many characters (a date), or without a space (a name), stays on one line; a longer one may be
folded, but not below this width."""


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of one shape: a table, or the cells of each row below each other where the terminal is narrow.

    In a pipe the table is as wide as its cells.
    """
    titles = [terminal_text(title) for title in rows[0]]
    cells = [[cell_text(value) for value in row.values()] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True, header_style="bold")
    for title, *column in zip(titles, *cells, strict=True):
        longest = max(map(cell_len, (title, *column)))
        word = max(cell_len(part) for text in (title, *column) for part in text.split(" "))
        unbroken = max(word, min(longest, UNBROKEN))
        table.add_column(Text(title), overflow="fold", no_wrap=unbroken == longest, min_width=unbroken)
    for row in cells:
        table.add_row(*map(Text, row))
    least, most = Measurement.get(console, console.options.update(max_width=1_000_000), table)
    if not console.is_terminal and not has_columns():
        table.width = most
    if table.width is not None or least <= console.width:
        console.print(table, crop=False)
        return
    room = max(map(cell_len, titles))
    for at, row in enumerate(cells):
        lines = [(set_cell_size(f"{title}", room), cell) for title, cell in zip(titles, row, strict=True) if cell]
        shown = [Text.assemble((f"{title}  ", "bold"), cell) for title, cell in lines]
        console.print(*([Text()] if at else []), *shown, sep="\n", soft_wrap=True)


def cell_text(value: Any) -> str:
    """A value in a table of the terminal: numbers with five digits."""
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else terminal_text(str(value))


class SafeConsole(Console):
    """A console whose texts cannot command the terminal: what is styled is ours, what is text may be of others."""

    def __init__(self, **settings: Any) -> None:
        if "COLUMNS" in os.environ and not has_columns():
            settings.setdefault("width", shutil.get_terminal_size().columns)
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                yield Segment(terminal_text(segment.text, lines=True), segment.style)

    def say(self, text: object, style: str = "", *, title: str = "", lines: bool = False) -> None:
        """Print a text as one line, which the terminal breaks where it is narrow.

        Args:
            title: what the line is about; dim, with a colon after it.
            lines: whether the text may have several lines.
        """
        shown = str(text) if lines else terminal_text(str(text))
        self.print(Text.assemble((f"{title}: " if title else "", "dim"), (shown, style)), soft_wrap=True)


out = SafeConsole()
err = SafeConsole(stderr=True)
_FRONT_SHOWN = 10
_JOBS_SHOWN = 8


def say_facts(facts: Iterable[tuple[str, object]], style: str = "") -> None:
    """Print each title with its words as a line; what has no words is left out."""
    for title, words in facts:
        if words:
            out.say(words, style, title=title)


def best_line(study: Study) -> str:
    """The incumbent in one line; with several objectives, also how many results are on the front."""
    best = study.best
    if best is None:
        return "none feasible yet" if study.state.infeasible_results else "none yet"
    name = terminal_text(study.spec.metric.name)
    front = f", front of {len(study.state.front)}" if len(study.spec.objectives) > 1 else ""
    where = f"(trial {best.trial} at {best.resource}{rule_words(study)}){front}"
    return f"{name} {number(study.metric_value(best.loss), 5)} {where}"


def _print_front(study: str, front: Sequence[FrontMember], most: int | None = None) -> None:
    if front and len(front[0].values) > 1:
        names = terminal_text(", ".join(front[0].values))
        out.say(f"Pareto front of {names}: {plural(len(front), 'result')}")
        print_rows(out, front_rows(front, most))
        if most is not None and len(front) > most:
            out.say(f"and {len(front) - most} more: hpo show {study}", style="dim")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run of a study."""

    summary: StudySummary
    jobs_now: int
    """Jobs of this run that have a result; the study may have more from before."""
    seconds: float
    failures: Failures
    notices: Sequence[str]
    mlflow: str | None
    checkpoint: str | None
    report: str

    def plain(self) -> dict[str, Any]:
        """As ``--json`` prints it: its own fields, and those of the summary that tell how the study ended."""
        own: dict[str, Any] = msgspec.to_builtins(self)
        del own["summary"]
        names = ("study", "status", "reason", "rule", "method", "trials", "jobs", "metric", "best", "front")
        return self.summary.plain(*names) | own


def print_run_result(
    result: RunResult, *, following: str, folder: str, as_json: bool, then: str = "", other_best: str = ""
) -> None:
    """The end of a run: JSON for programs, or a summary for people.

    Args:
        following: the command to type next (:func:`~hpo_core.views.failure_reasons.next_command`).
        then: the one after it, where it takes two to mend what went wrong.
        folder: of the study, where the logs lie.
        other_best: words about the best by the other rule of ``best_of``, where that is another result.
    """
    if as_json:
        print_json(result.plain())
        return

    def tell(title: str, words: object, style: str = "") -> None:
        if words:
            out.say(f"  {title:<11} {words}", style)

    out.print()
    study = result.summary
    style = "bold green" if study.status == "finished" else "bold yellow"
    now = "" if result.jobs_now == study.jobs else f" ({result.jobs_now or 'none'} of them now)"
    took = f"{study.trials} trials, {study.jobs} jobs{now} in {duration(result.seconds)}"
    out.print(Text.assemble((f"{study.study} {study.status}", style), f": {took}"), soft_wrap=True)
    tell("reason", study.reason and f"{'stop rule met: ' if study.rule else ''}{study.reason}", "yellow")
    if (best := study.best) is not None:
        tell("best", f"{study.metric} = {number(best.value, 5)}  (trial {best.trial} at {best.resource})")
        for key, value in best.params.items():  # in full: they are copied from here
            tell("", f"{key} = {value}")
        tell("", other_best)
    _print_front(study.study, study.front, most=_FRONT_SHOWN)
    for at, line in enumerate(failure_lines(result.failures, folder, study.reason or "")):
        tell("" if at else "failures", line, "yellow")
    tell("checkpoint", result.checkpoint)
    tell("MLflow", result.mlflow)
    tell("report", result.report)
    commands = (f"hpo show {study.study}", f"hpo audit {study.study}")
    others = ", ".join(command for command in commands if command != following)
    tell("next", f"{following}   ({f'then: {then}; ' if then else ''}also: {others})")


_DRIVEN = ("running", "open")
"""Status of a study that a controller drives; the second as of an earlier entry."""


MORE: tuple[str, ...] = ("hpo_core.pool.words",)
"""Modules that say more of studies that run: ``columns`` of ``hpo list``, and ``status_line`` of ``hpo status``."""

NOTES: tuple[str, ...] = ("hpo_core.execution.hopping.hopped_job",)
"""Modules whose ``progress_notes`` say how far jobs that run have come."""


def more_columns(source: Journal) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for module in MORE:
        for name, columns in import_module(module).columns(source).items():
            found.setdefault(name, {}).update(columns)
    return found


def print_status(home: Home, name: str, as_json: bool) -> None:
    """Where a study stands, in a few lines; as JSON the same as :func:`print_study`."""
    if as_json:
        print_study(home, name, None, as_json)
        return
    source, folder = home.read_journal(), home.study_folder(name)
    with damage_named(source, name):
        study = Study.open(name, source, reading=True)
        status = status_word(study, source.info(name))
        _print_state(study, status, summarize(study))
        jobs = study.state.wanted()[:_JOBS_SHOWN]
        progress = {trial: note for one in NOTES for trial, note in import_module(one).progress_notes(jobs, folder)}
        running = running_lines(study, progress, jobs=_JOBS_SHOWN, driven=status in _DRIVEN)
        say_facts(
            [
                ("best", best_line(study)),
                ("data", hopping_line(study)),
                *(import_module(module).status_line(source, name) for module in MORE),
                ("stops at", ", ".join(study.rules.progress(study.state, _now_of(status)))),
                *(("", line) for line in running),
            ]
        )
        _print_failures(study, folder)
        if status != "running":
            out.say(f"next: {f'hpo resume {name}' if status == 'interrupted' else next_command(study)}")
        out.say(f"more: hpo show {name}", style="dim")


def _print_state(study: Study, status: str, summary: StudySummary, as_of: str = "") -> None:
    counts = [plural(summary.trials, "trial"), f"{plural(summary.jobs, 'job')} done"]
    counts += [granted_words(study, driven=status in _DRIVEN)] if summary.running else []
    counts += [
        f"{count:,} {word}"
        for count, word in (
            (len(summary.waiting), "waiting"),
            (summary.abandoned, "abandoned"),
            (summary.failed_attempts, f"lost or failed attempt{'' if summary.failed_attempts == 1 else 's'}"),
        )
        if count
    ]
    out.print(Text.assemble((summary.study, "bold"), f"{as_of}: {status}, {', '.join(counts)}"), soft_wrap=True)
    if study.state.halted is not None:
        say_facts([("halted", halt_words(study.spec, study.state.halted))], "yellow")
    elif study.state.exhausted:
        out.say(exhausted_words(study), style="yellow")
    if (states := grid_states(study)) is not None:
        say_facts([("grid", ", ".join(f"{count:,} {state}" for state, count in states.items() if count))])


def _print_failures(study: Study, folder: Path) -> None:
    halted = study.state.halted
    said = "" if halted is None else halted.reason
    say_facts((("", line) for line in failure_lines(failures_of(study.state), str(folder), said)), "yellow")


def _now_of(status: str) -> float:
    """No seconds pass in a study that nobody drives."""
    return time.time() if status == "running" else 0.0


def _settings(study: Study, summary: StudySummary, created: float, now: float) -> Iterator[tuple[str, str]]:
    spec = study.spec
    yield "wanted", ", ".join(f"{metric.mode}imize {metric.name}" for metric in spec.objectives)
    yield "method", f"{summary.method}, sampler {summary.sampler}, seed {summary.seed}"
    yield "objective", short_name(spec.objective)
    yield "cluster", spec.cluster.title if spec.objective else ""  # it was imported, or trains in its own process
    yield "packing", packing_words(spec.packing)
    yield "gangs", study.parts.sizes.words()
    yield "share", spec.share_words
    yield "data", hopping_line(study)
    yield "created", time.strftime("%Y-%m-%d %H:%M", time.localtime(created))
    yield "resource", f"{summary.resource:,} units of training used"
    yield "stops at", ", ".join(study.rules.progress(study.state, now))
    yield "checkpoint", summary.checkpoint or ""
    yield "best", best_line(study)
    yield from (("", f"    {key} = {value}") for key, value in (summary.best.params if summary.best else {}).items())
    yield "", other_best_words(study)


def study_at(source: Journal, name: str, at: int | None) -> tuple[Study, StudyInfo]:
    """A study as of an entry of its journal; None: the last one.

    Raises:
        HpoError: it has no such entry.
    """
    info = source.info(name)
    if at is not None and at >= info.entries:
        raise HpoError(f"--at {at}: study {name!r} has entries 0 to {info.entries - 1}.")
    return Study.open(name, source, at=at, reading=True), info


def print_study(home: Home, name: str, at: int | None, as_json: bool) -> None:
    """A study as of an entry."""
    source = home.read_journal()
    with damage_named(source, name):
        _print_study(*study_at(source, name, at), at, as_json, home=home)


def _print_study(study: Study, info: StudyInfo, at: int | None, as_json: bool, *, home: Home) -> None:
    state, folder = study.state, home.study_folder(study.name)
    views = bracket_views(study, details=True)
    names = RungNames(study.spec)
    ceilings = [names.ceiling_line(event) for event in state.ceilings]
    summary = summarize(study)
    status = status_word(study, info) if at is None else summary.status
    if as_json:
        print_json(
            {"entry": study.seq - 1, "entries": info.entries, "rungs": _plain_rungs(study, views), "ceilings": ceilings}
            | msgspec.to_builtins(summary)
            | {"status": status, "failures": msgspec.to_builtins(failures_of(state))}
            | _plain_jobs(study)
        )
        return
    which = f"{study.seq - 1:,} ({'the last one' if at is None else f'0 is the first of {info.entries:,}'})"
    _print_state(study, status, summary, f" as of entry {which}")
    say_facts(_settings(study, summary, info.created, _now_of(status) if at is None else 0.0))
    say_facts(("device", line) for line in device_lines(_device_uses(study)))
    say_facts(("", line) for line in measured_ratio_lines(measured_ratios(study)))
    _print_failures(study, folder)
    say_facts([("constraints", constraint_words(study.spec, state.infeasible_results))])
    _print_front(study.name, summary.front)
    if enter := entry_levels(study.spec):
        places = ", ".join(f"{level} (bracket {bracket})" for bracket, level in enter.items())
        out.say(f"all brackets share these rungs; their trials enter at {places}")
    print_rows(out, without_repeats(rung_rows(study, grouped_brackets(views)), "bracket", "state"))
    say_facts(("ceiling", line) for line in ceilings)
    for job in state.wanted():
        rung, placed = names.label(job.bracket, job.rung), state.placed.get(job.trial)
        where = f" on {placed.device}, {memory_words(placed.share[1])}" if placed is not None else ""
        what = "running" if state.trains(job.trial) else "waiting for a device"
        what = what if status in _DRIVEN else TO_RESUME
        say_facts([(what, f"trial {job.trial} to {job.target} ({rung}, attempt {job.attempt}){where}")])
    say_facts(home.study_links(study.name).items())


def _device_uses(study: Study) -> list[DeviceUse]:
    state = study.state
    usages = [result.usage for trial in state.trials for result in trial.results]
    usages += [failure.usage for trial in state.trials for failure in trial.failures]
    if not state.placed and not any(sharing(usage or None) for usage in usages):
        return []
    return read_series(study.journal.entries(study.name, 0, study.seq)).uses


def _plain_jobs(study: Study) -> dict[str, Any]:
    """``grid``: configurations in each state; ``devices``: those that jobs shared; ``hops``: of models.

    As far as there are any.
    """
    uses: list[dict[str, Any]] = msgspec.to_builtins(_device_uses(study))
    found = {
        "grid": grid_states(study),
        "devices": [{key: value for key, value in use.items() if key != "load"} for use in uses],
        "ratios": msgspec.to_builtins(measured_ratios(study)),
        "hops": plain_hops(study),
    }
    return {name: value for name, value in found.items() if value}


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
    from hpo_core.journal.sql import is_alive

    return study_word(study, driven=is_alive(info))


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def names_of_studies(context: typer.Context, incomplete: str) -> list[str]:
    """Names that complete what was typed, for a shell; empty where there is no journal to look into."""
    home = Home(context.params.get("home"), context.params.get("journal"))
    try:
        names = [info.name for info in home.read_journal().studies()]
    except Exception:  # a shell that asks for a completion shows no error
        return []
    return [name for name in names if name.startswith(incomplete) and is_name(name)]


Name = Annotated[str, typer.Argument(help="Name of the study.", callback=checked_name, autocompletion=names_of_studies)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
HomeOption = Annotated[
    str | None, typer.Option("--home", help="Folder of journal, checkpoints, reports (HPO_HOME, or .hpo).")
]
JournalOption = Annotated[
    str | None, typer.Option("--journal", help="SQLAlchemy URL of the journal (HPO_JOURNAL, or SQLite in the home).")
]
UsePrefect = Annotated[
    bool | None,
    typer.Option("--prefect/--no-prefect", help="Show the study in Prefect; default: as the study file says."),
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a controller that seems alive.")]
