"""Times, attempts and learning curves of a study, read in one pass over its journal together with its state.

Time here is *active* time: seconds since the first grant, without the stretches in which no controller ran,
so that a study stopped overnight is not drawn as a night of nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.errors import JournalError
from hpo_core.model.events import (
    AttemptFailed,
    AttemptReported,
    CapacityChanged,
    CeilingRaised,
    ControllerStarted,
    Entry,
    JobCompleted,
    JobGranted,
    JobPlaced,
    ReportIgnored,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
)
from hpo_core.model.trial import Outcome
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.device_use import DeviceUse, Span, device_uses, sharing
from hpo_core.views.lineage import Lineage
from hpo_core.views.rungs import Bands, entry_levels

Turn = CeilingRaised | StudyExtended | StudyHalted | StudyReopened

Track = tuple[Sequence[tuple[float, float]], float]
"""Changes of a loss as (place, loss) in ascending order of the place, and the place where the run ends."""


class Improvement(NamedTuple):
    """The incumbent changed."""

    time: float
    value: float
    trial: int
    loss: float
    resource: int
    """Units of training used in all until then."""


@dataclass(slots=True)
class Series:
    """A study with its times, curves and failures. Values are the user's metric, not the loss."""

    study: Study
    bands: Bands = field(init=False)
    began: float = math.inf
    """First grant, on the journal's clock."""
    last: float = 0.0
    """Last entry, likewise."""
    paused: float = 0.0
    """Seconds in which no controller ran."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each such stretch after the first grant, on the journal's clock."""
    capacities: list[tuple[float, Inventory]] = field(default_factory=list)
    """Devices and slots that jobs could run on, from each active time on."""
    slot_time: float = 0.0
    """Slots offered, integrated over active time."""
    levels: list[int] = field(default_factory=list)
    """Resources of all rungs, smallest first."""
    spans: list[Span] = field(default_factory=list)
    """Attempts in the order of their end; those that run come last, and those that wait for a device are left out."""
    uses: list[DeviceUse] = field(default_factory=list)
    """The devices that attempts shared; times are active ones."""
    bests: dict[int, JobCompleted] = field(default_factory=dict)
    """Per trial: the feasible result with the smallest finite loss."""
    curves: dict[int, dict[int, float]] = field(default_factory=dict)
    """Per trial: resource -> metric, from accepted reports; may hold NaN where a training diverged."""
    steps: list[Improvement] = field(default_factory=list)
    """Changes of the incumbent."""
    failures: list[tuple[float, AttemptFailed]] = field(default_factory=list)
    abandoned: list[tuple[float, TrialAbandoned]] = field(default_factory=list)
    ignored: list[tuple[float, ReportIgnored]] = field(default_factory=list)
    lineage: Lineage | None = None
    """Family tree where trials go on from others (PBT); the page then shows generations instead of rungs."""
    warnings: dict[str, int] = field(default_factory=dict)
    """Warnings of training functions, and the first trial of each."""
    turns: list[tuple[float, Turn]] = field(default_factory=list)
    """Changes of the course of the study, from outside or by its rules."""
    running: dict[int, Span] = field(default_factory=dict)
    """By trial: the attempt that runs, from when it was granted or placed."""

    @property
    def maximize(self) -> bool:
        return self.study.spec.metric.mode == "max"

    @property
    def metric(self) -> str:
        return self.study.spec.metric.name

    @property
    def brackets(self) -> bool:
        """True if there are several brackets, with rungs of their own or shared ones."""
        return self.bands.several or bool(entry_levels(self.study.spec)) or len(self.bands.ladders[0].numbers) > 1

    @property
    def trials(self) -> list[TrialRecord]:
        return self.study.state.trials

    @property
    def best(self) -> float | None:
        best = self.study.best
        return None if best is None else self.study.metric_value(best.loss)

    @property
    def by_resource(self) -> Track:
        return [(float(step.resource), step.loss) for step in self.steps], float(self.study.state.resource_used)

    @property
    def by_time(self) -> Track:
        return [(step.time, step.loss) for step in self.steps], self.wall

    @property
    def wall(self) -> float:
        """Active seconds from the first grant to the last entry."""
        return self.active(self.last)

    @property
    def busy(self) -> float:
        """Worker time of all attempts, good or bad; that of a gang counts for each of its ranks."""
        return math.fsum((span.end - span.start) * span.slots for span in self.spans)

    @property
    def utilization(self) -> float | None:
        """Share of the offered slot time in which an attempt ran; None before there was any.

        Where nobody offered slots (a loop by hand), the largest number of attempts at once counts as offered.
        """
        changes = [(span.start, span.slots) for span in self.spans] + [(span.end, -span.slots) for span in self.spans]
        at_once = accumulate(change for _, change in sorted(changes))
        offered = self.slot_time or self.wall * max(at_once, default=0)
        return min(1.0, self.busy / offered) if offered > 0 else None

    def active(self, time: float) -> float:
        """Active seconds until a time of the journal's clock, at most until its last entry."""
        time = min(time, self.last)
        paused = math.fsum(max(0.0, min(end, time) - begin) for begin, end in self.pauses)
        return max(0.0, time - self.began - paused)

    def level(self, resource: int) -> int:
        """Index of a resource in :attr:`levels`."""
        return bisect_left(self.levels, resource)

    def reached(self, trial: TrialRecord) -> int:
        """Index of the highest level a trial has a result at (-1: none)."""
        return self.level(trial.resource) if trial.results else -1

    def final(self, trial: TrialRecord) -> float | None:
        """The metric at a trial's highest resource."""
        return None if trial.loss is None else self.study.metric_value(trial.loss)

    def best_loss(self, trial: TrialRecord) -> float:
        """Smallest finite loss of a trial; infinite where there is none."""
        best = self.bests.get(trial.number)
        return math.inf if best is None or best.loss is None else best.loss

    def ranked_trials(self) -> list[TrialRecord]:
        known = [trial for trial in self.trials if trial.results and trial.number in self.bests]
        return sorted(known, key=lambda trial: (self.best_loss(trial), trial.number))

    def take(self, entry: Entry) -> None:
        """Note the facts of an entry that the study has replayed."""
        gap = 0.0 if self.began == math.inf else max(0.0, entry.time - self.last)
        if isinstance(entry.stimulus, ControllerStarted):
            self.paused += gap
            self.pauses.append((self.last, self.last + gap))
        elif self.capacities:
            self.slot_time += gap * self.capacities[-1][1].slots
        self.last = max(self.last, entry.time)
        now = self.active(entry.time)
        for event in entry.events:
            if self.lineage is not None:
                self.lineage.apply(event)
            if isinstance(event, JobGranted):
                self.began = min(self.began, entry.time)
                trial, origin = self.trials[event.trial], 0
                if event.checkpoint is not None:
                    origin = event.checkpoint.resource
                elif not trial.condemned:  # a loop by hand: its checkpoints are its own
                    results = trial.results
                    origin = max((result.resource for result in results if result.resource < event.target), default=0)
                self.running[event.trial] = Span(
                    event.trial, event.attempt, event.target, now, now, origin=origin, slots=event.demand.slots
                )
            elif isinstance(event, JobCompleted | AttemptFailed):
                self._ended(entry, event, now)
            elif isinstance(event, JobPlaced):  # it waited for its device until now
                span = self.running[event.trial]
                self.running[event.trial] = replace(span, start=max(span.start, self.active(event.began)))
            elif isinstance(event, CapacityChanged):
                self.capacities.append((now, event.inventory))
            elif isinstance(event, TrialAbandoned):
                self.abandoned.append((now, event))
            elif isinstance(event, ReportIgnored):
                self.ignored.append((now, event))
            elif isinstance(event, Turn):
                self.turns.append((now, event))

    def _ended(self, entry: Entry, event: JobCompleted | AttemptFailed, now: float) -> None:
        granted, usage = self.running.pop(event.trial), event.usage or None
        # A worker's clock may be off, absent (0) or of another machine; the journal's bounds it.
        start = min(max(self.active(event.started), granted.start), now)
        end = min(self.active(event.ended), now)
        end, value = now if end <= start else end, None
        if isinstance(event, JobCompleted):
            value = None if event.loss is None else self.study.metric_value(event.loss)
            outcome = Outcome.DIVERGED if value is None else Outcome.COMPLETED
        else:
            outcome = event.outcome
        facts: dict[str, Any] = {"start": start, "end": end, "worker": event.worker, "outcome": outcome, "value": value}
        self.spans.append(replace(granted, **facts, usage=usage, shared=sharing(usage)))
        if isinstance(event, AttemptFailed):
            self.failures.append((now, event))
            return
        if event.loss is not None and not event.violation and event.loss < self.best_loss(self.trials[event.trial]):
            self.bests[event.trial] = event
        curve = self.curves.setdefault(event.trial, {})
        if isinstance(entry.stimulus, AttemptReported):
            for line in entry.stimulus.report.warnings or ():
                self.warnings.setdefault(line, event.trial)
            for point in entry.stimulus.report.curve:
                if self.metric in point.metrics:
                    curve[point.resource] = float(point.metrics[self.metric])
        curve[event.resource] = math.nan if value is None else value
        best = self.study.best  # one result an entry: the incumbent is that of this event
        if best is not None and (not self.steps or best.loss != self.steps[-1].loss):
            value, used = self.study.metric_value(best.loss), self.study.state.resource_used
            self.steps.append(Improvement(now, value, best.trial, best.loss, used))


def read_series(entries: Iterable[Entry]) -> Series:
    """Replay a study and read its series, in one pass over its entries.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
    """
    series: Series | None = None
    for entry in entries:
        if series is None:  # nothing is proposed: the sampler learns nothing
            series = Series(Study.from_entries([entry], sampler=RecordedSampler([])))
            series.lineage = Lineage() if series.study.state.has_members else None
        else:
            series.study.replay(entry)
        series.take(entry)
    if series is None:
        raise JournalError("A journal begins with the entry that created its study; this one is empty.")
    study, series.bands = series.study, Bands(series.study)
    placed = study.state.placed
    running = [replace(span, end=series.wall, shared=placed.get(n)) for n, span in series.running.items()]
    resources = {result.resource for trial in series.trials for result in trial.results}
    resources |= {span.target for span in (*series.spans, *running)}
    series.spans += [span for span in running if study.state.trains(span.trial)]
    on_devices = [(span, span.shared) for span in series.spans if span.shared is not None]
    series.uses = device_uses(on_devices, study.spec.packing_settings)
    series.levels = sorted(resources | {band.rung.level for band in series.bands.all})
    series.began = min(series.began, series.last)
    return series
