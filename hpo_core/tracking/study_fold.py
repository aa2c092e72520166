"""Entries folded into what a tracker shows: curves, rung sizes, incumbents, promotions. Pure; no tracker here.

Every point and every time is a function of the entries alone, so a second projection repeats the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import NamedTuple

import msgspec

from hpo_core.journal.damage import damaged_entry
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import (
    AttemptFailed,
    AttemptReported,
    CeilingRaised,
    Entry,
    Event,
    JobCompleted,
    JobGranted,
    StudyCreated,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialCreated,
    TrialExtended,
    TrialExtensionEnded,
    TrialStopped,
    concerns_search,
)
from hpo_core.model.stage import FURTHER
from hpo_core.model.trial import Metrics, Report
from hpo_core.search.halving.pareto_rungs import ParetoRung
from hpo_core.search.method import Done, SearchMethod, create_method
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord
from hpo_core.views.rung_names import RungNames

Place = tuple[int | None, int]
"""A rung: (bracket, or None where all brackets share their rungs; place in its ladder)."""

TRAINED_TO = "trained_to"
"""Metric of a trial's run: the units of training behind its latest result."""


class MetricPoint(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    time: float
    """Seconds since the epoch."""
    step: int


class Promotion(msgspec.Struct, frozen=True):
    """A trial went on to a higher rung."""

    seq: int
    time: float
    trial: int
    bracket: int
    rung: int
    """Counted within the bracket, also where brackets share their rungs."""
    target: int
    loss: float | None
    """At the rung below."""
    rank: int
    """From 1, among the results of the rung below at that moment: by loss, or as that rung ranks several objectives."""
    among: int


class TrialNotes(msgspec.Struct):
    """What a run shows of a trial that the study's state does not keep."""

    created: float
    worker: str = ""
    outcome: str = ""
    """Of the latest attempt that ended."""
    failure: str = ""
    """The latest failure, also after a retry mended it."""
    nonfinite: str = ""
    ended: float | None = None
    """When its run last ended (result, abandoned, halted)."""
    fresh: bool = True
    """Created since the last :meth:`StudyFold.settle`."""
    points: list[MetricPoint] = []
    """Since the last :meth:`StudyFold.settle`."""


class StudyFold:
    """A study as of the last entry added, and what changed since the last :meth:`settle`."""

    def __init__(self) -> None:
        self.state = StudyState()
        self.next_seq = 0
        self.created = 0.0
        self.time = 0.0
        self.trials: list[TrialNotes] = []
        self.promotions: list[Promotion] = []
        self.touched: dict[int, None] = {}
        self.points: list[MetricPoint] = []
        self._ranked: dict[Place, list[tuple[float, int]]] = {}
        """Results by rung, abandoned trials among them; with one objective."""
        self._fronts: dict[Place, ParetoRung] = {}
        """The same with several."""
        self._sizes: dict[str, int] = {}
        self._method: SearchMethod | None = None
        self._grown: dict[str, None] = {}
        self._names: RungNames | None = None
        self._first_of: dict[int, int] = {}
        """Base level to the lowest bracket that begins there."""
        self._several = False
        self._on_front: set[tuple[int, int]] = set()
        """(trial, resource) of the members of the front, where there are several objectives."""
        self._best: dict[int, float] = {}
        """Smallest loss so far in each objective but the first."""

    @property
    def spec(self) -> StudySpec:
        """The study's description."""
        if self.state.spec is None:
            raise JournalError("No entry was projected yet. Project the journal from entry 0.")
        return self.state.spec

    @property
    def status(self) -> str:
        """``finished``, ``halted`` or ``running``."""
        state = self.state
        assert self._method is not None
        left = state.running or state.waiting or state.extended
        if not left and isinstance(self._method.next_action(), Done):
            return "finished"
        return "halted" if state.halted is not None else "running"

    @property
    def names(self) -> RungNames:
        """How the study's rungs are called."""
        assert self._names is not None
        return self._names

    def _rung_key(self, place: Place, base: int) -> str:
        """Name of a rung in metrics.

        Brackets that begin at the same level repeat each other (rounds of synchronous halving or Hyperband) and
        are counted together, under the number of the first: a hundred brackets must not be hundreds of metrics.
        """
        bracket, rung = place
        if not self._several or bracket is None:
            return f"rung_{rung}"
        return f"bracket_{self._first_of.setdefault(base, bracket)}_rung_{rung}"

    def settle(self) -> None:
        """Forget what changed: it was written."""
        for number in self.touched:
            notes = self.trials[number]
            notes.fresh = False
            notes.points = []
        self.touched = {}
        self.points = []

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        if entry.seq != self.next_seq:
            raise JournalError(
                f"Projection: entry {entry.seq} was given where entry {self.next_seq} is next. "
                "Give the journal's entries in order and without a gap."
            )
        try:
            self._add(entry)
        except HpoError:
            raise
        except Exception as error:
            raise damaged_entry("" if self.state.spec is None else self.spec.study, entry.seq, error) from error

    def _add(self, entry: Entry) -> None:
        report = entry.stimulus.report if type(entry.stimulus) is AttemptReported else None
        if not self.next_seq:
            self.created = entry.time
        for event in entry.events:
            if type(event) is JobGranted:
                self._granted(event, entry)
            elif type(event) is JobCompleted:
                self._completed(event, report, entry)
            elif type(event) is AttemptFailed:
                self._failed(event)
            elif type(event) is TrialAbandoned:
                self._abandoned(event, report, entry)
            self._apply(event, entry)
        for key in self._grown:
            size = float(self._sizes[key])
            self.points.append(MetricPoint(f"{key}_size", size, entry.time, self.state.resource_used))
        self._grown = {}
        self.time = entry.time
        self.next_seq += 1

    def _apply(self, event: Event, entry: Entry) -> None:
        state = self.state
        before, front = state.incumbent, self._on_front
        state.apply(event)
        if type(event) is StudyCreated:
            self._method = create_method(self.spec)
            self._names = RungNames(self.spec)
            rungs = self._method.rungs()
            for rung in rungs:
                if rung.rung == 0 and rung.bracket is not None:
                    self._first_of.setdefault(rung.level, rung.bracket)
            self._several = len(self._first_of) > 1
            reachable = [rung.level for rung in rungs if rung.is_open]
            if len(reachable) < len(rungs):
                self.points.append(MetricPoint("ceiling", float(max(reachable)), entry.time, 0))
        assert self._method is not None
        if concerns_search(event):
            self._method.apply(event)
        if type(event) is TrialCreated:
            self.trials.append(TrialNotes(entry.time))
            self.touched[event.trial] = None
        elif type(event) in (TrialStopped, TrialExtended, TrialExtensionEnded):
            self.touched[event.trial] = None  # type: ignore[union-attr]
        elif type(event) is CeilingRaised:
            self.points.append(MetricPoint("ceiling", float(event.level), entry.time, state.resource_used))
        elif type(event) is StudyHalted or type(event) is StudyReopened:
            for number in (*state.waiting, *state.extended):
                self.touched[number] = None
                self.trials[number].ended = entry.time
        best = state.incumbent
        if best is not None and best is not before:
            value = best.loss * self.spec.metric.sign
            key = f"best_{self.spec.metric.name}"
            self.points.append(MetricPoint(key, value, entry.time, state.resource_used))
        if type(event) is JobCompleted and event.losses:
            self._on_front = {(member.trial, member.resource) for member in state.front}
            if self._on_front != front:
                self._front_changed(front, entry)

    def _front_changed(self, before: set[tuple[int, int]], entry: Entry) -> None:
        """Runs of trials that enter the front or leave it are tagged anew, and each objective's best may have moved."""
        state, used = self.state, self.state.resource_used
        for trial, _ in self._on_front ^ before:
            self.touched[trial] = None
        self.points.append(MetricPoint("front_size", float(len(state.front)), entry.time, used))
        for i, metric in enumerate(self.spec.objectives[1:], 1):  # the first one's is the incumbent's
            best = min(member.losses[i] for member in state.front)
            if best != self._best.get(i):
                self._best[i] = best
                self.points.append(MetricPoint(f"best_{metric.name}", best * metric.sign, entry.time, used))

    def _granted(self, event: JobGranted, entry: Entry) -> None:
        self.touched[event.trial] = None
        trial = self.state.trials[event.trial]
        if event.retry or not trial.results or event.rung == FURTHER:
            return
        below = trial.results[-1]
        place = self.names.place(below.bracket, below.rung)
        if len(self.spec.objectives) > 1:
            rung = self._fronts[place]
            rank, among = rung.rank(below.trial), rung.size
            rung.promote(below.trial)
        else:
            ranked = self._ranked[place]
            rank, among = bisect_left(ranked, _rank_key(below.loss, below.trial)) + 1, len(ranked)
        promotion = Promotion(
            entry.seq, entry.time, event.trial, event.bracket, event.rung, event.target,
            below.loss, rank, among,
        )  # fmt: skip
        self.promotions.append(promotion)

    def _completed(self, event: JobCompleted, report: Report | None, entry: Entry) -> None:
        self.touched[event.trial] = None
        notes, trial = self.trials[event.trial], self.state.trials[event.trial]
        notes.worker, notes.ended = event.worker, event.ended or entry.time
        notes.outcome = "completed" if event.loss is not None or event.losses else "diverged"
        self._curve(trial, report, event.metrics, event.resource, entry.time)
        for metric in self.spec.objectives:
            if self.spec.any_metric and metric.name not in event.metrics:
                continue
            final = event.metrics.get(metric.name, math.nan)
            self._point(notes, MetricPoint(f"final_{metric.name}", final, notes.ended, event.resource))
        if TRAINED_TO not in event.metrics:  # an axis beside the metric: results of different rungs do not compare
            self._point(notes, MetricPoint(TRAINED_TO, float(event.resource), notes.ended, event.resource))
        if self.state.has_members:  # parameters change along a line of trials, and MLflow's params cannot
            for name, value in trial.params.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._point(notes, MetricPoint(f"param_{name}", float(value), notes.ended, event.resource))
        if event.rung != FURTHER:
            self._rank(event.bracket, event.rung, event.loss, event.trial, event.losses)

    def _failed(self, event: AttemptFailed) -> None:
        self.touched[event.trial] = None
        notes = self.trials[event.trial]
        notes.worker = event.worker or notes.worker
        notes.outcome = str(event.outcome)
        message = f": {event.message}" if event.message else ""
        notes.failure = f"attempt {event.attempt} to {event.target}: {event.outcome}{message}"

    def _abandoned(self, event: TrialAbandoned, report: Report | None, entry: Entry) -> None:
        self.touched[event.trial] = None
        notes, trial = self.trials[event.trial], self.state.trials[event.trial]
        notes.ended = entry.time
        if report is not None and report.trial == event.trial and trial.granted is not None:
            # No attempt will train these steps again, and they show how it failed.
            self._curve(trial, report, {}, trial.granted.target, entry.time)
        if not trial.is_at(event):
            self._rank(event.bracket, event.rung, None, event.trial)

    def _rank(self, bracket: int, rung: int, loss: float | None, trial: int, losses: tuple[float, ...] = ()) -> None:
        place = self.names.place(bracket, rung)
        if len(self.spec.objectives) > 1:
            whole = losses and all(loss == loss for loss in losses)  # a population's fitness may have gaps
            self._fronts.setdefault(place, ParetoRung(1, 1.0)).add(trial, losses if whole else None)
        else:
            insort(self._ranked.setdefault(place, []), _rank_key(loss, trial))
        record = self.state.trials[trial]
        base = record.results[0].resource if record.results else record.granted.target if record.granted else 0
        key = self._rung_key(place, base)
        self._sizes[key] = self._sizes.get(key, 0) + 1
        self._grown[key] = None

    def _curve(self, trial: TrialRecord, report: Report | None, last: Metrics, target: int, now: float) -> None:
        """Points of one attempt above what is trained already; the last ones are the recorded metrics."""
        steps: dict[int, Metrics] = {}
        for point in report.curve if report is not None else ():
            if trial.resource < point.resource <= target:
                steps.setdefault(point.resource, {}).update(point.metrics)
        if last:
            steps.setdefault(target, {}).update(last)
        ended = (report.ended if report is not None else 0.0) or now
        started = report.started if report is not None and 0 < report.started <= ended else ended
        checkpoint = trial.granted.checkpoint if trial.granted is not None else None
        first = checkpoint.resource if checkpoint is not None else 0
        notes = self.trials[trial.number]
        for step in sorted(steps):
            share = (step - first) / (target - first) if target > first else 1.0
            at = started + (ended - started) * share
            for name, value in steps[step].items():
                self._point(notes, MetricPoint(name, value, at, step))

    def _point(self, notes: TrialNotes, point: MetricPoint) -> None:
        if math.isinf(point.value):
            # MLflow stores an infinity as 1.8e308, which ruins every axis; NaN sorts last and is skipped there.
            notes.nonfinite = f"{point.key} = {point.value} at {point.step}"
            point = point._replace(value=math.nan)
        notes.points.append(point)


def _rank_key(loss: float | None, trial: int) -> tuple[float, int]:
    return (math.inf if loss is None else loss, trial)
