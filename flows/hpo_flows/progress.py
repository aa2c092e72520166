"""Progress of a study in a terminal: a live table, or plain lines in pipes and logs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpo_core.model.trial import RESULTS, Job, Report
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.terminal.output import best_line
from hpo_core.views.device_use import granted_words
from hpo_core.views.failure_reasons import VARYING
from hpo_core.views.formatting import duration, plural
from hpo_core.views.rungs import (
    FEW,
    BracketView,
    RungNames,
    RungView,
    bracket_views,
    entry_levels,
    grouped_brackets,
    halt_words,
    is_stopping,
    is_unlimited,
)

BAR = 24
"""Width of a bar."""
REDRAW_SECONDS = 0.5
"""Seconds between two drawings at least: their cost must not grow with the number of reports."""


def remaining_units(study: Study) -> int | None:
    """Units of training still to come by the search's plan and the stop rule about them; None: neither limits them."""
    state = study.state
    if state.halted is not None:
        return state.resource_running
    planned = None if is_unlimited(study.spec) else sum(rung.units for rung in study.method.rungs())
    left = study.rules.resource_left(state)
    return min((units for units in (planned, left) if units is not None), default=None)


class Pace:
    """Units per second since this controller began, for the ETA."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._started = time.monotonic()
        self._units = study.state.resource_used
        self._jobs = study.state.completed_jobs
        self._last: tuple[int, float] = (0, 0.0)
        """Units done at the last result, and the seconds until then."""

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def eta(self) -> float | None:
        """Seconds to the end: of the plan, or of a stop rule that is due before it; None while nothing is known."""
        study = self._study
        left = [study.rules.seconds_left(time.time()) if study.state.halted is None else None]
        done, elapsed = study.state.resource_used - self._units, self.elapsed()
        if done != self._last[0]:
            self._last = done, elapsed
        units, since = remaining_units(study), elapsed - self._last[1]
        if not units:
            left.append(units)
        elif study.state.completed_jobs - self._jobs >= study.state.capacity:  # each slot has one
            # from the last result on it counts down, and is unknown where the next one is late
            expected = units * self._last[1] / max(done, 1) - since
            left.append(expected if expected > 0 else None)
        return min((seconds for seconds in left if seconds is not None), default=None)

    def eta_words(self) -> str:
        """``, ETA 5 s``; empty while nothing is known. An estimate has no milliseconds."""
        left = self.eta()
        if left is None:
            return ""
        soon = left < 0.5 and not self._study.at_rest
        return f", ETA {'under 1 s' if soon else duration(float(round(left)))}"


def standing(study: Study, pace: Pace) -> str:
    """Such as ``12 done, 2 running, best loss 0.1 (trial 3 at 9), ETA 5 s``."""
    done, running = study.state.completed_jobs, granted_words(study)
    return f"{done} done, {running}, best {best_line(study)}{pace.eta_words()}"


class ResultLines:
    """A line per report, with what was decided from it."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._names = RungNames(study.spec)
        self._stopping = is_stopping(study.spec)
        self._ceilings = len(study.state.ceilings)
        self._halted = study.state.halted is not None
        self._warned: set[str] = set()

    def lines(self, report: Report, granted: list[Job]) -> list[str]:
        """One report and its consequences in a line, then new warnings of its training function."""
        study, names = self._study, self._names
        trial = study.state.trials[report.trial] if report.trial < len(study.state.trials) else None
        known = trial.results if trial is not None and report.outcome in RESULTS else []
        last = next((r for r in known if r.attempt == report.attempt), known[-1] if known else None)
        if last is not None and trial is not None:
            reached = ", ".join(
                f"{metric.name} {report.metrics.get(metric.name, float('nan')):.5g}"
                for metric in study.spec.objectives
                if metric.name in report.metrics or not study.spec.any_metric
            )
            stage = last.stage
            text = f"trial {report.trial} at {last.resource} ({names.label(stage.bracket, stage.rung)}): {reached}"
            if trial.stopped is not None and trial.stopped.rung == stage.rung:
                text += f", {names.stop_line(trial.stopped)}"
        else:
            text = f"trial {report.trial}: {report.outcome}: {report.message}"
        for event in study.state.ceilings[self._ceilings :]:
            text += f" -> {names.ceiling_line(event)}"
        self._ceilings = len(study.state.ceilings)
        new = [line for line in report.warnings or () if line not in self._warned]
        self._warned.update(new)
        warnings = [terminal_text(f"warning, first seen in trial {report.trial}: {line}") for line in new]
        # a log, too, may be read in a terminal
        return [terminal_text(text) + "".join(f" -> {self._granted(job)}" for job in granted), *warnings]

    def _granted(self, job: Job) -> str:
        if job.retry:
            return f"trial {job.trial} tried again"
        if job.parent is not None:
            return f"trial {job.trial} goes on from trial {job.parent}, trains to {job.target}"
        if job.rung:
            went = "goes on" if self._stopping else "promoted"
            begins = " from its start" if job.checkpoint is None else ""
            label = self._names.label(job.bracket, job.rung)
            return f"trial {job.trial} {went} to {label}, trains to {job.target}{begins}"
        bracket = f" in bracket {job.bracket}" if self._names.several or self._names.shared else ""
        return f"new trial {job.trial}{bracket}"

    def news(self) -> str:
        """A line about a halt that was not shown yet, or nothing."""
        halted, before = self._study.state.halted, self._halted
        self._halted = halted is not None
        return (
            terminal_text(f"halted: {halt_words(self._study.spec, halted)}")
            if halted is not None and not before
            else ""
        )


class PlainLines:
    """A line per report, for pipes and logs.

    Args:
        each: number of lines after which a line waits until two percent more of the time have passed, so that a long
            study writes some hundred lines and not one for each of its reports. Warnings, a halt and the first
            failures of a kind are always written.
    """

    def __init__(self, study: Study, write: Callable[[str], None], *, each: float = math.inf) -> None:
        self._study = study
        self._write = write
        self._each = each
        self._pace = Pace(study)
        self._lines = ResultLines(study)
        self._next = 0.0
        self._unwritten: tuple[str, str, int] | None = None
        """The latest line, its message and its trial."""
        self._told: dict[str, int] = {}
        """Trial of the line that a message was written in, by a pattern of messages that differ in numbers alone."""

    def on_report(self, report: Report, granted: list[Job]) -> None:
        line, *warnings = self._lines.lines(report, granted)
        message, elapsed = terminal_text(report.message), self._pace.elapsed()
        self._unwritten = line, message, report.trial
        is_new = report.outcome not in RESULTS and self._once(message) == message and len(self._told) < 100
        if elapsed >= self._next or is_new:
            self._each -= 1
            self._next = elapsed + redraw_seconds(elapsed) if self._each <= 0 else 0.0
            self._write_latest()
        for line in warnings:
            self._write(line)
        self.on_tick()

    def _write_latest(self) -> None:
        if self._unwritten is None:
            return
        line, message, trial = self._unwritten
        self._write(f"[{standing(self._study, self._pace)}] {self._once(line)}")
        if message:
            pattern = re.escape(VARYING.sub("\0", message)).replace("\0", f"(?:{VARYING.pattern})")
            self._told.setdefault(pattern, trial)
        self._unwritten = None

    def _once(self, line: str) -> str:
        # The line without messages that were written before.
        for pattern, trial in self._told.items():
            line = re.sub(pattern, f"the same as trial {trial}", line)
        return line

    def on_tick(self) -> None:
        """Results are written as they come; a halt may come between them."""
        if news := self._lines.news():
            self._write(self._once(news))

    def close(self) -> None:
        self._write_latest()
        self.on_tick()


def redraw_seconds(elapsed: float) -> float:
    """Seconds until progress that is kept (a log, a notebook) is written again: half a second, later two percent."""
    return max(REDRAW_SECONDS, 0.02 * elapsed)


class LiveBoard:
    """Rungs filling up, best so far, running jobs, ETA; redrawn in place.

    Args:
        stays: whether the last state stays in the terminal after the end.
    """

    def __init__(self, study: Study, console: Console, *, stays: bool = False) -> None:
        self._study = study
        self.notes = BoardNotes(study)
        self._drawn = time.monotonic()
        self._console = console
        self._live = Live(console=self._console, refresh_per_second=4, transient=not stays)
        self._live.update(self.board())
        self._live.start()

    def on_report(self, report: Report, granted: list[Job]) -> None:
        for line in self.notes.take(report, granted):  # above the board, where it stays
            self._console.print(Text(line, style="yellow"), soft_wrap=True)
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self.on_tick()

    def on_tick(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(self.board())

    def close(self) -> None:
        """Nothing more is trained: show from now on what the end waits for, until :meth:`stop`."""
        self.wait_for("ending")

    def wait_for(self, words: str) -> None:
        """Show what the end of the study waits for, and how long already."""
        if self._live.is_started:
            self.notes.wait_for(words)
            self._live.update(self, refresh=True)

    def __rich__(self) -> Group:
        """The board as of the moment at which it is drawn, once the study has ended."""
        return self.board()

    def stop(self) -> None:
        """Leave the terminal; safe to call twice."""
        self._live.stop()

    def end(self, error: BaseException | None) -> None:
        """Show the last state: how the study ended, in place of what runs and the ETA."""
        self.notes.end(error)
        self.on_tick()
        self.close()

    def board(self) -> Group:
        return drawn_board(self._study, self.notes, self._console.width)


def drawn_board(study: Study, notes: BoardNotes, width: int) -> Group:
    """The board as of now, for a terminal of ``width`` characters."""
    head = Text.assemble((f"{study.name}  ", "bold"), notes.head())
    parts: list[RenderableType] = [head, rung_table(study, width, ended=notes.ended)]
    for title, line, style in notes.lines():
        parts.append(Text.assemble((f"{title:<9}", "dim"), (terminal_text(line), style), overflow="fold"))
    return Group(*parts)


class BoardNotes:
    """The words of a board: counts, times, stop rules, best and last result."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.pace = Pace(study)
        self._lines = ResultLines(study)
        self.last = ""
        self._end = ""
        self._done: tuple[float, str, float] | None = None
        """Seconds when the last job was done; what is waited for since then, and since when."""

    @property
    def ended(self) -> bool:
        return bool(self._end) or self._done is not None

    def wait_for(self, words: str) -> None:
        """Say from now on what the end of the study waits for, such as "writing the report"."""
        now = self.pace.elapsed()
        self._done = (now if self._done is None else self._done[0]), words, now

    def take(self, report: Report, granted: list[Job]) -> list[str]:
        """Keep the words of a report; returns new warnings of its training function."""
        self.last, *warnings = self._lines.lines(report, granted)
        return warnings

    def end(self, error: BaseException | None) -> None:
        """Say from now on how the study ended."""
        halted = error is None or isinstance(error, KeyboardInterrupt)
        word = self._study.status if halted else f"ended by {type(error).__name__}"
        jobs = plural(self._study.state.completed_jobs, "job")
        seconds = self.pace.elapsed() if self._done is None else self._done[0]
        self._end = f"{word}: {jobs} done in {duration(seconds)}"

    def head(self) -> str:
        """Counts and times; at the end how it ended."""
        if self._end:
            return self._end
        if self._done is not None:
            seconds, words, since = self._done
            jobs = plural(self._study.state.completed_jobs, "job")
            return f"{jobs} done in {duration(seconds)}; {words}, {self.pace.elapsed() - since:.0f} s"
        return (
            f"{self._study.state.completed_jobs} jobs done, {granted_words(self._study)}, "
            f"{duration(self.pace.elapsed())} elapsed{self.pace.eta_words()}"
        )

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """(title, words, colour) of each line below the rungs."""
        study = self._study
        if enter := entry_levels(study.spec):
            places = ", ".join(f"{bracket} at {level:,}" for bracket, level in enter.items())
            yield "brackets", f"all on these rungs, entered by {places}", ""
        if study.state.ceilings:
            yield "ceiling", RungNames(study.spec).ceiling_line(study.state.ceilings[-1]), ""
        if not self.ended and (rules := study.rules.progress(study.state, time.time())):
            yield "stops at", ", ".join(rules), ""
        if study.state.halted is not None:
            yield "halted", halt_words(study.spec, study.state.halted), "yellow"
        yield "best", best_line(study), "green"
        if self.last and not self.ended:
            yield "last", self.last, ""


def rung_table(study: Study, width: int = 80, *, ended: bool = False) -> Table:
    """A line per rung of what goes on; brackets that are over, or have not begun, in a line each, many ones together.

    In a terminal of less than 80 characters there is no bar.

    Args:
        ended: leave out what runs, since nothing does any more.
    """
    views = bracket_views(study)
    several = len(views) > 1
    unlimited = is_unlimited(study.spec)
    went = "went on" if is_stopping(study.spec) else "promoted"
    columns = ["bracket"] * several + ["rung", "trained to", "", "results", "running", went]
    rows: list[tuple[list[str | ProgressBar], str]] = []
    for view in grouped_brackets(views):
        # of several brackets, what rests is summed up to one line, unless a few ones are shown for the last time
        resting = several and view.state != "open" and not (ended and len(views) <= FEW)
        rungs = [view.total] if resting else view.rungs
        whole = len(rungs) < len(view.rungs)
        for k, rung in enumerate(rungs):
            name = [view.name if k == 0 else ""] * several
            last = view.rungs[-1]
            cells = [
                *name,
                f"{rung.rung}–{last.rung}" if whole else str(rung.rung),
                f"{rung.level:,}–{last.level:,}" if whole else f"{rung.level:,}",
                *_progress(rung, view, unlimited, several),
            ]
            goes_on = not several or ended or view.state == "open"
            rows.append((cells, "" if rung.is_open and goes_on else "dim"))
    left_out = [*(["running"] if ended else []), *([""] if width < 80 else [])]
    kept = [k for k, column in enumerate(columns) if column not in left_out]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for k in kept:
        table.add_column(columns[k], justify="left" if columns[k] in ("", "bracket") else "right", no_wrap=True)
    for cells, style in rows:
        table.add_row(*(cells[k] for k in kept), style=style)
    return table


def _progress(rung: RungView, view: BracketView, unlimited: bool, several: bool) -> list[str | ProgressBar]:
    if not rung.is_open:
        return ["", "closed", "", ""]
    expected = max(rung.expected, rung.results)
    bar: str | ProgressBar = ProgressBar(total=max(expected, 1), completed=rung.results, width=BAR)
    shown = f"{rung.results:,}/{expected:,}"
    if unlimited:
        bar, shown = "", f"{rung.results:,}"
    running = str(rung.running or "")
    if several and view.state != "open":
        running = view.state
    return [bar, shown, running, f"{rung.promoted:,}" if rung.promoted else ""]
