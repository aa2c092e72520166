"""What a person sees while a study runs: a live board in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpo_core.console import best_line, duration
from hpo_core.study import Study
from hpo_core.trial import RESULTS, Job, Report


def expected_rungs(study: Study) -> list[int]:
    """How many results each rung is expected to end with (exact for random and recorded searches)."""
    search = study.spec.search
    if search.method == "recorded":
        counts: dict[int, int] = {}
        for grant in search.grants:
            counts[grant.rung] = counts.get(grant.rung, 0) + 1
        return [counts[k] for k in sorted(counts)]
    width = search.configs + study.state.extra_configs
    if search.method == "random":
        return [width]
    expected = [width]
    for done, _, _ in study.method.rung_sizes()[1:]:
        expected.append(max(done, int(expected[-1] // search.reduction_factor)))
    return expected


def remaining_units(study: Study) -> int:
    """Units of training still to come, by the expected rung sizes."""
    levels = study.method.levels()
    sizes = study.method.rung_sizes()
    steps = [level - below for level, below in zip(levels, [0, *levels], strict=False)]
    left = zip(expected_rungs(study), sizes, steps, strict=True)
    return sum(max(0, wanted - done) * step for wanted, (done, _, _), step in left)


class Pace:
    """Units per second since this controller began, for the ETA."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._started = time.monotonic()
        self._units = study.state.resource_used

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def eta(self) -> float | None:
        """Seconds to the end, or None while nothing is known."""
        done = self._study.state.resource_used - self._units
        if done <= 0:
            return None
        return remaining_units(self._study) * self.elapsed() / done


def result_line(study: Study, report: Report, granted: list[Job]) -> str:
    """One report and what was decided from it."""
    metric = study.spec.metric.name
    trial = study.state.trials[report.trial] if report.trial < len(study.state.trials) else None
    if report.outcome in RESULTS and trial is not None and trial.results:
        last = trial.results[-1]
        text = (
            f"trial {report.trial} at {last.resource} (rung {last.rung}): {metric} "
            f"{report.metrics.get(metric, float('nan')):.5g}"
        )
    else:
        text = f"trial {report.trial}: {report.outcome}: {report.message}"
    for job in granted:
        if job.rung:
            text += f" -> trial {job.trial} promoted to rung {job.rung}, trains to {job.target}"
        elif job.attempt:
            text += f" -> trial {job.trial} tried again"
        else:
            text += f" -> new trial {job.trial}"
    return text


class PlainLines:
    """A line per report, for pipes and logs."""

    def __init__(self, study: Study, write: Callable[[str], None]) -> None:
        self._study = study
        self._write = write
        self._pace = Pace(study)

    def told(self, report: Report, granted: list[Job]) -> None:
        state = self._study.state
        self._write(
            f"[{state.completed_jobs} done, {len(state.running)} running, best {best_line(self._study)}, "
            f"ETA {duration(self._pace.eta())}] {result_line(self._study, report, granted)}"
        )

    def tick(self) -> None:
        """A line per report is enough."""

    def close(self) -> None:
        """Nothing is open."""


class LiveBoard:
    """Rungs filling up, best so far, running jobs, ETA; redrawn in place."""

    def __init__(self, study: Study, console: Console) -> None:
        self._study = study
        self._pace = Pace(study)
        self._last = ""
        self._live = Live(self._board(), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def told(self, report: Report, granted: list[Job]) -> None:
        self._last = result_line(self._study, report, granted)
        self.tick()

    def tick(self) -> None:
        self._live.update(self._board())

    def close(self) -> None:
        self._live.stop()

    def _board(self) -> Group:
        study = self._study
        state = study.state
        at_rung: dict[int, int] = {}
        for grant in state.running.values():
            at_rung[grant.rung] = at_rung.get(grant.rung, 0) + 1
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("rung", "trained to", "", "results", "running", "promoted"):
            table.add_column(column, justify="left" if column == "" else "right")
        rows = zip(study.method.levels(), study.method.rung_sizes(), expected_rungs(study), strict=True)
        for k, (level, (done, promoted, _), expected) in enumerate(rows):
            bar = ProgressBar(total=max(expected, 1), completed=min(done, expected), width=28)
            table.add_row(
                str(k), str(level), bar, f"{done}/{expected}", str(at_rung.get(k, 0) or ""), str(promoted or "")
            )
        head = Text.assemble(
            (f"{study.name}  ", "bold"),
            f"{state.completed_jobs} jobs done, {len(state.running)} running, "
            f"{duration(self._pace.elapsed())} elapsed, ETA {duration(self._pace.eta())}",
        )
        best = Text.assemble(("best  ", "dim"), (best_line(study), "green"))
        last = Text.assemble(("last  ", "dim"), self._last, overflow="ellipsis", no_wrap=True)
        return Group(head, table, best, last)
