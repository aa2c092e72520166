"""Times, attempts and learning curves of a study, read in one pass over its journal together with its state.

Time here is *active* time: seconds since the first grant, without the stretches in which no controller ran,
so that a study stopped overnight is not drawn as a night of nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.devices.measurement import Usage
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
    TrialExtended,
    TrialExtensionEnded,
)
from hpo_core.model.trial import FURTHER, Outcome
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.views.lineage import Lineage
from hpo_core.views.rungs import Bands
from hpo_core.views.trial_story import usage_of

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
    """Way it ended; None while it runs."""
    value: float | None = None
    """The metric it reached, None where there is none or it is not finite."""
    further: bool = False
    """Whether it trained beyond the search."""
    usage: Usage | None = None
    """What it used of its machine, where that was measured."""
    placed: JobPlaced | None = None
    """Place on a device that jobs share, while the attempt runs."""
    slots: int = 1
    """Slots that it held: the ranks of a gang, or one."""


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
    began: float = 0.0
    """First grant, on the journal's clock."""
    wall: float = 0.0
    """Active seconds from the first grant to the last entry."""
    paused: float = 0.0
    """Seconds in which no controller ran."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each such stretch after the first grant, on the journal's clock."""
    capacities: list[tuple[float, Inventory]] = field(default_factory=list)
    """What jobs could run on, from each active time on."""
    slot_time: float = 0.0
    """Slots offered, integrated over active time."""
    levels: list[int] = field(default_factory=list)
    """Resources of all rungs, smallest first."""
    spans: list[Span] = field(default_factory=list)
    """Attempts in the order of their end; those that run come last, and those that wait for a device are left out."""
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
    """What training functions were warned of, and the first trial of each."""
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
        return self.bands.several or bool(self.bands.entry_levels) or len(self.bands.ladders[0].numbers) > 1

    @property
    def trials(self) -> list[TrialRecord]:
        return self.study.state.trials

    @property
    def busy(self) -> float:
        """Worker time of all attempts, good or bad; that of a gang counts for each of its ranks."""
        return math.fsum((span.end - span.start) * span.slots for span in self.spans)

    @property
    def utilization(self) -> float | None:
        """Share of the offered slot time in which an attempt ran; None before there was any.

        Where nobody offered slots (a loop by hand), the largest number of attempts at once counts as offered.
        """
        offered = self.slot_time or self.wall * _most_at_once(self.spans)
        return min(1.0, self.busy / offered) if offered > 0 else None

    def active(self, time: float) -> float:
        """Active seconds until a time of the journal's clock, between 0 and :attr:`wall`."""
        paused = math.fsum(max(0.0, min(end, time) - begin) for begin, end in self.pauses)
        return min(max(0.0, time - self.began - paused), self.wall)

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
        return min((r.loss for r in trial.all_results if r.loss is not None and not r.infeasible), default=math.inf)

    def ranked_trials(self) -> list[TrialRecord]:
        """Trials with a finite result, best first."""
        ranked = [(self.best_loss(trial), trial.number, trial) for trial in self.trials if trial.results]
        return [trial for loss, _, trial in sorted(ranked, key=lambda item: item[:2]) if loss < math.inf]


def read_series(entries: Iterable[Entry]) -> Series:
    """Replay a study and read its series, in one pass over its entries.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
    """
    reader: _Reader | None = None
    for entry in entries:
        if reader is None:  # nothing is proposed: the sampler learns nothing
            reader = _Reader(Study.from_entries([entry], sampler=RecordedSampler([])))
        else:
            reader.study.replay(entry)
        reader.take(entry)
    if reader is None:
        raise JournalError("A journal begins with the entry that created its study; this one is empty.")
    return reader.series()


class _Reader:
    """Reads each entry after the study replayed it."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.found = Series(study)
        if study.state.has_members:
            self.found.lineage = Lineage()
        self.targets: set[int] = set()
        self.attempts: list[tuple[JobGranted, dict[str, Any]]] = []
        """Grants with what is known of their spans; levels depend on all results."""
        self.running: dict[int, tuple[float, JobGranted]] = {}
        self.began: float | None = None
        self.last = 0.0
        self.slots = 0

    def take(self, entry: Entry) -> None:
        found = self.found
        if self.began is not None:
            gap = max(0.0, entry.time - self.last)
            if isinstance(entry.stimulus, ControllerStarted):
                found.paused += gap
                found.pauses.append((self.last, self.last + gap))
            else:
                found.slot_time += gap * self.slots
        self.last = max(self.last, entry.time)
        for event in entry.events:
            now = self.active(entry.time)
            if found.lineage is not None:
                found.lineage.apply(event)
            if isinstance(event, JobGranted):
                if self.began is None:
                    self.began = entry.time
                self.targets.add(event.target)
                self.running[event.trial] = (now, event)
            elif isinstance(event, JobCompleted):
                self._completed(entry, event)
            elif isinstance(event, AttemptFailed):
                self._end(entry, event, event.outcome, None)
                found.failures.append((now, event))
            elif isinstance(event, JobPlaced):  # it waited for its device until now
                granted, grant = self.running[event.trial]
                self.running[event.trial] = (max(granted, min(self.active(event.began), now)), grant)
            elif isinstance(event, CapacityChanged):
                self.slots = event.inventory.slots
                found.capacities.append((now, event.inventory))
            elif isinstance(event, TrialAbandoned):
                found.abandoned.append((now, event))
            elif isinstance(event, ReportIgnored):
                found.ignored.append((now, event))
            elif isinstance(event, Turn):
                found.turns.append((now, event))

    def active(self, time: float) -> float:
        """Seconds since the first grant in which a controller ran."""
        return 0.0 if self.began is None else max(0.0, time - self.began - self.found.paused)

    def _completed(self, entry: Entry, event: JobCompleted) -> None:
        found, study = self.found, self.study
        value = None if event.loss is None else study.metric_value(event.loss)
        self._end(entry, event, Outcome.COMPLETED if event.loss is not None else Outcome.DIVERGED, value)
        curve = found.curves.setdefault(event.trial, {})
        if isinstance(entry.stimulus, AttemptReported):
            for line in entry.stimulus.report.warnings or ():
                found.warnings.setdefault(line, event.trial)
            for point in entry.stimulus.report.curve:
                if found.metric in point.metrics:
                    curve[point.resource] = float(point.metrics[found.metric])
        curve[event.resource] = math.nan if value is None else value
        best = study.best  # one result an entry: the incumbent is that of this event
        if best is not None and (not found.steps or best.loss != found.steps[-1].loss):
            time = self.active(entry.time)
            found.steps.append(
                Improvement(time, study.metric_value(best.loss), best.trial, best.loss, study.state.resource_used)
            )

    def _end(self, entry: Entry, event: JobCompleted | AttemptFailed, outcome: Outcome, value: float | None) -> None:
        granted, grant = self.running.pop(event.trial)
        # A worker's clock may be off, absent (0) or of another machine; the journal's bounds it.
        reported = self.active(entry.time)
        start = min(max(self.active(event.started), granted), reported)
        end = self.active(event.ended)
        end = reported if end <= start else min(end, reported)
        facts = {"start": start, "end": end, "worker": event.worker, "outcome": outcome}
        self.attempts.append((grant, facts | {"value": value, "usage": usage_of(event)}))

    def series(self) -> Series:
        """The whole, once the last entry was taken in."""
        found = self.found
        found.bands = Bands(self.study)
        resources = {result.resource for trial in found.trials for result in trial.all_results}
        found.levels = sorted(resources | self.targets | {band.rung.level for band in found.bands.all})
        found.began = self.began if self.began is not None else self.last
        found.wall = self.active(self.last)
        placed = self.study.state.placed
        running = [
            (grant, {"start": at, "end": found.wall, "worker": "", "outcome": None, "placed": placed.get(grant.trial)})
            for at, grant in self.running.values()
            if self.study.state.trains(grant.trial)
        ]
        found.spans = [
            Span(
                trial=grant.trial,
                attempt=grant.attempt,
                level=found.level(grant.target),
                origin=self._origin(grant),
                further=grant.rung == FURTHER,
                slots=grant.demand.slots,
                **facts,
            )
            for grant, facts in (*self.attempts, *running)
        ]
        return found

    def _origin(self, grant: JobGranted) -> int:
        """Level that an attempt started from; -1: from nothing."""
        found, trial = self.found, self.found.trials[grant.trial]
        if grant.checkpoint is not None:
            return bisect_right(found.levels, grant.checkpoint.resource) - 1
        if trial.condemned:
            return -1
        results = trial.all_results if grant.rung == FURTHER else trial.results  # by hand: checkpoints are its own
        below = [result.resource for result in results if result.resource < grant.target]
        return found.level(below[-1]) if below else -1


def _most_at_once(spans: Sequence[Span]) -> int:
    changes = sorted([(s.start, s.slots) for s in spans] + [(s.end, -s.slots) for s in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
