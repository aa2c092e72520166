"""What the pictures need beside the study's state: when, where and along which curve. One pass over the journal.

Time here is *active* time: seconds since the first grant, without the stretches in which no controller ran,
so that a study stopped overnight is not drawn as a night of nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpo_core.model.events import (
    AttemptFailed,
    AttemptReported,
    CapacityChanged,
    CeilingRaised,
    ControllerStarted,
    Entry,
    JobCompleted,
    JobGranted,
    ReportIgnored,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialExtended,
    TrialExtensionEnded,
)
from hpo_core.model.stage import FURTHER
from hpo_core.model.trial import Outcome
from hpo_core.report.study.rung_bands import Bands
from hpo_core.samplers.recorded_params import RecordedSampler
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.lineage import Lineage

Turn = CeilingRaised | StudyExtended | StudyHalted | StudyReopened | TrialExtended | TrialExtensionEnded


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt on one worker."""

    trial: int
    attempt: int
    level: int
    """Index into :attr:`Series.levels` of the resource it aims at."""
    origin: int
    """Level it started from (-1: from nothing)."""
    start: float
    end: float
    worker: str
    outcome: Outcome | None
    """None while it runs."""
    value: float | None = None
    """The metric it reached, None where there is none or it is not finite."""
    further: bool = False
    """Whether it trained beyond the search."""


@dataclass(slots=True)
class Series:
    """A study with its times, curves and failures. Values are the user's metric, not the loss."""

    study: Study
    bands: Bands
    began: float = 0.0
    """First grant, on the journal's clock."""
    wall: float = 0.0
    """Active seconds from the first grant to the last entry."""
    paused: float = 0.0
    """Seconds in which no controller ran."""
    slot_time: float = 0.0
    """Slots offered, integrated over active time."""
    levels: list[int] = field(default_factory=list)
    """Resources of all rungs, smallest first."""
    spans: list[Span] = field(default_factory=list)
    """Attempts in the order of their end; those that run come last."""
    curves: dict[int, dict[int, float]] = field(default_factory=dict)
    """Per trial: resource -> metric, from accepted reports; may hold NaN where a training diverged."""
    steps: list[tuple[float, float, int]] = field(default_factory=list)
    """Changes of the incumbent: (time, value, trial)."""
    failures: list[tuple[float, AttemptFailed]] = field(default_factory=list)
    abandoned: list[tuple[float, TrialAbandoned]] = field(default_factory=list)
    ignored: list[tuple[float, ReportIgnored]] = field(default_factory=list)
    lineage: Lineage | None = None
    """Where trials go on from others (PBT); the page then shows generations instead of rungs."""
    turns: list[tuple[float, Turn]] = field(default_factory=list)
    """What changed the course of the study, from outside or by its rules."""

    @property
    def maximize(self) -> bool:
        return self.study.spec.metric.mode == "max"

    @property
    def metric(self) -> str:
        return self.study.spec.metric.name

    @property
    def brackets(self) -> bool:
        """Whether there are several brackets, with rungs of their own or shared ones."""
        return self.bands.several or bool(self.bands.entrances) or len(self.bands.ladders[0].numbers) > 1

    @property
    def trials(self) -> list[TrialRecord]:
        return self.study.state.trials

    @property
    def busy(self) -> float:
        """Worker time of all attempts, good or bad."""
        return math.fsum(span.end - span.start for span in self.spans)

    @property
    def utilization(self) -> float | None:
        """Share of the offered slot time in which an attempt ran; None before there was any.

        Where nobody offered slots (a loop by hand), the largest number of attempts at once counts as offered.
        """
        offered = self.slot_time or self.wall * _most_at_once(self.spans)
        return min(1.0, self.busy / offered) if offered > 0 else None

    def level(self, resource: int) -> int:
        """Index of a resource in :attr:`levels`."""
        return bisect_left(self.levels, resource)

    def reached(self, trial: TrialRecord) -> int:
        """Index of the highest level a trial has a result at (-1: none)."""
        return self.level(trial.resource) if trial.all_results else -1

    def final(self, trial: TrialRecord) -> float | None:
        """The metric at a trial's highest resource."""
        return None if trial.loss is None else self.study.metric_value(trial.loss)

    def best_loss(self, trial: TrialRecord) -> float:
        """Smallest finite loss of a trial; infinite where there is none."""
        return min((r.loss for r in trial.all_results if r.loss is not None), default=math.inf)

    def standing(self) -> list[TrialRecord]:
        """Trials with a finite result, best first."""
        ranked = [(self.best_loss(trial), trial.number, trial) for trial in self.trials if trial.results]
        return [trial for loss, _, trial in sorted(ranked, key=lambda item: item[:2]) if loss < math.inf]


def read_series(entries: Sequence[Entry]) -> Series:
    """Fold a study's entries.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
    """
    study = Study.from_entries(entries, sampler=RecordedSampler([]))  # nothing is proposed: learn nothing
    series = Series(study, Bands(study))
    resources = {result.resource for trial in study.state.trials for result in trial.all_results}
    targets = {event.target for entry in entries for event in entry.events if type(event) is JobGranted}
    series.levels = sorted(resources | targets | {band.rung.level for band in series.bands.all})
    if study.spec.search.method == "pbt" or any(trial.parent is not None for trial in study.state.trials):
        series.lineage = Lineage()
    fold = _Fold(series)
    for entry in entries:
        fold.take(entry)
    fold.close()
    return series


class _Fold:
    def __init__(self, series: Series) -> None:
        self.series = series
        self.level = {resource: index for index, resource in enumerate(series.levels)}
        self.running: dict[int, tuple[float, JobGranted]] = {}
        self.began: float | None = None
        self.last = 0.0
        self.slots = 0
        self.best = math.inf

    def take(self, entry: Entry) -> None:
        series = self.series
        if self.began is not None:
            gap = max(0.0, entry.time - self.last)
            if isinstance(entry.stimulus, ControllerStarted):
                series.paused += gap
            else:
                series.slot_time += gap * self.slots
        self.last = max(self.last, entry.time)
        for event in entry.events:
            if series.lineage is not None:
                series.lineage.apply(event)
            if isinstance(event, JobGranted):
                if self.began is None:
                    self.began = entry.time
                self.running[event.trial] = (self.active(entry.time), event)
            elif isinstance(event, JobCompleted):
                self._completed(entry, event)
            elif isinstance(event, AttemptFailed):
                self._end(entry, event, event.outcome, None)
                series.failures.append((self.active(entry.time), event))
            elif isinstance(event, CapacityChanged):
                self.slots = event.inventory.slots
            elif isinstance(event, TrialAbandoned):
                series.abandoned.append((self.active(entry.time), event))
            elif isinstance(event, ReportIgnored):
                series.ignored.append((self.active(entry.time), event))
            elif isinstance(event, Turn):
                series.turns.append((self.active(entry.time), event))

    def active(self, time: float) -> float:
        return 0.0 if self.began is None else max(0.0, time - self.began - self.series.paused)

    def _completed(self, entry: Entry, event: JobCompleted) -> None:
        series = self.series
        value = None if event.loss is None else series.study.metric_value(event.loss)
        self._end(entry, event, Outcome.COMPLETED if event.loss is not None else Outcome.DIVERGED, value)
        curve = series.curves.setdefault(event.trial, {})
        if isinstance(entry.stimulus, AttemptReported):
            for point in entry.stimulus.report.curve:
                if series.metric in point.metrics:
                    curve[point.resource] = float(point.metrics[series.metric])
        curve[event.resource] = math.nan if value is None else value
        if value is not None and event.loss is not None and event.loss < self.best:
            self.best = event.loss
            series.steps.append((self.active(entry.time), value, event.trial))

    def _end(self, entry: Entry, event: JobCompleted | AttemptFailed, outcome: Outcome, value: float | None) -> None:
        granted, grant = self.running.pop(event.trial)
        # A worker's clock may be off, absent (0) or of another machine; the journal's bounds it.
        reported = self.active(entry.time)
        start = min(max(self.active(event.started), granted), reported)
        end = self.active(event.ended)
        end = reported if end <= start else min(end, reported)
        self.series.spans.append(self._span(grant, start, end, event.worker, outcome, value))

    def _span(
        self,
        grant: JobGranted,
        start: float,
        end: float,
        worker: str,
        outcome: Outcome | None,
        value: float | None,
    ) -> Span:
        trial = self.series.trials[grant.trial]
        origin = -1
        if grant.checkpoint is not None:
            origin = bisect_right(self.series.levels, grant.checkpoint.resource) - 1
        elif not trial.condemned:  # a loop by hand keeps its checkpoints to itself
            results = trial.all_results if grant.rung == FURTHER else trial.results
            below = [result.resource for result in results if result.resource < grant.target]
            origin = self.level[below[-1]] if below else -1
        return Span(
            grant.trial, grant.attempt, self.level[grant.target], origin, start, end, worker, outcome, value,
            grant.rung == FURTHER,
        )  # fmt: skip

    def close(self) -> None:
        series = self.series
        series.began = self.began if self.began is not None else self.last
        series.wall = self.active(self.last)
        for granted, grant in self.running.values():
            series.spans.append(self._span(grant, granted, series.wall, "", None, None))


def _most_at_once(spans: Sequence[Span]) -> int:
    changes = sorted([(s.start, 1) for s in spans] + [(s.end, -1) for s in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
