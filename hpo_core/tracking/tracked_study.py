"""A study as a tracker shows it, followed entry by entry: curves, promotions, best values. Pure.

Every point and every time is a function of the entries alone, so a second projection repeats the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any, NamedTuple

import msgspec

from hpo_core.journal.protocol import damaged_entry
from hpo_core.model.errors import HpoError
from hpo_core.model.events import (
    AttemptFailed,
    AttemptReported,
    CeilingRaised,
    ControllerStarted,
    Entry,
    JobCompleted,
    JobGranted,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.model.trial import Metrics, Params, Report
from hpo_core.samplers.sampler import RecordedSampler
from hpo_core.search.method import Loss, loss_of
from hpo_core.spec import StudySpec
from hpo_core.state import Incumbent, StudyState
from hpo_core.study import Study
from hpo_core.tracking.tracker_links import usage_metrics
from hpo_core.views.rungs import Place, RungNames


class Promotion(msgspec.Struct, frozen=True):
    """A trial went on to a higher rung."""

    time: float
    trial: int
    bracket: int
    rung: int
    """Counted within the bracket, also where brackets share their rungs."""
    target: int
    loss: float | None
    """Loss at the rung below."""
    resource: int
    """Units of training behind that loss."""
    rank: int
    """Rank from 1 by loss among the results of the rung below then; 0 with several objectives."""
    among: int


def numbers_of(params: Params) -> dict[str, float]:
    return {k: float(v) for k, v in params.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _key(loss: Loss, trial: int) -> tuple[Any, int]:
    return (math.inf if loss is None else loss, trial)


BYTES_MOVED = "bytes_moved"
"""Metric of a trial's run, where models hop: bytes of all states that its model hopped with until then."""
_OF_A_RUN = (
    TrialCreated, JobGranted, JobCompleted, AttemptFailed, TrialAbandoned, TrialStopped,
)  # fmt: skip
"""Events that change the run of their trial."""
FINAL = "final_"
PARAM = "param/"
"""Prefix of parameters as metrics: MLflow compares its own params as texts."""
TRAINED_TO = "trained_to"
"""Metric of a trial's run: the units of training behind its latest result."""


class MetricPoint(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    time: float
    """Seconds since the epoch."""
    step: int


class TrialNotes(msgspec.Struct):
    """Facts about a trial that its run shows and the study's state does not keep."""

    created: float
    failure: str = ""
    """The latest failure, also after a retry mended it."""
    ended: float | None = None
    """When its run last ended (result, abandoned, halted)."""
    fresh: bool = True
    """Created since the last :meth:`TrackedStudy.clear_changes`."""
    points: list[MetricPoint] = []
    """Since the last :meth:`TrackedStudy.clear_changes`."""


class TrackedStudy:
    """A study as of the last entry added, and what changed since the last :meth:`clear_changes`.

    The study itself is replayed once, by :class:`~hpo_core.study.Study`; each entry is read after it was replayed.
    """

    study: Study
    """The study, replayed up to the last entry added, from entry 0 on."""
    state: StudyState
    spec: StudySpec
    names: RungNames
    """Names of the study's rungs."""

    def __init__(self) -> None:
        self.created = 0.0
        self.time = 0.0
        self.seconds = 0.0
        """Time in which a controller drove it, the start of its workers included."""
        self._is_driven = False
        """Some controller has driven it."""
        self.trials: list[TrialNotes] = []
        self.touched: dict[int, None] = {}
        self.points: list[MetricPoint] = []
        self.promotions: list[Promotion] = []
        """All promotions so far, in the order of the journal."""
        self._by_loss: dict[Place, list[tuple[Any, int]]] = {}
        """Results by rung, abandoned trials among them; with one objective."""
        self._grants: dict[int, JobGranted] = {}
        """By trial: its latest job."""
        self._incumbent: Incumbent | None = None
        self._on_front: set[tuple[int, int]] = set()
        """(trial, resource) of the members of the front, where there are several objectives."""

    def clear_changes(self) -> None:
        for number in self.touched:
            notes = self.trials[number]
            notes.fresh = False
            notes.points = []
        self.touched = {}
        self.points = []

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        try:
            if entry.seq == 0:
                self._begin(entry)
            else:
                self.study.replay(entry)
            self._read(entry)
        except HpoError:
            raise
        except Exception as error:
            raise damaged_entry(self.study.name, entry.seq, error) from error

    def _read(self, entry: Entry) -> None:
        report = entry.stimulus.report if type(entry.stimulus) is AttemptReported else None
        for k, event in enumerate(entry.events):
            if isinstance(event, _OF_A_RUN):
                self.touched[event.trial] = None
            if type(event) is JobCompleted:
                self._completed(event, report, entry)
            elif type(event) is AttemptFailed:
                self._failed(event)
            elif type(event) is TrialAbandoned:
                self._abandoned(event, report, entry)
            elif type(event) is StudyHalted or type(event) is StudyReopened:
                self._waiting_ended(entry, k)
            elif type(event) is CeilingRaised:
                self._study_point(entry, "ceiling", float(event.level))
            elif type(event) is TrialCreated:
                self.trials.append(notes := TrialNotes(entry.time))
                for name, value in numbers_of(event.params).items():
                    self._point(notes, MetricPoint(f"{PARAM}{name}", value, entry.time, 0))
            elif type(event) is JobGranted:
                self._granted(event, entry)
        self._best_changed(entry)
        if self.time and not (type(entry.stimulus) is ControllerStarted and self._is_driven):
            self.seconds += entry.time - self.time
        self._is_driven = self._is_driven or type(entry.stimulus) is ControllerStarted
        self.time = entry.time

    def _begin(self, entry: Entry) -> None:
        self.study = study = Study.from_entries([entry], sampler=RecordedSampler([]))
        self.state, self.spec = study.state, study.spec
        self.names = RungNames(study.spec)
        self.created = entry.time
        rungs = study.method.rungs()
        reachable = [rung.level for rung in rungs if rung.is_open]
        if len(reachable) < len(rungs):
            self._study_point(entry, "ceiling", float(max(reachable)))

    def _study_point(self, entry: Entry, key: str, value: float) -> None:
        self.points.append(MetricPoint(key, value, entry.time, self.state.resource_used))

    def _granted(self, event: JobGranted, entry: Entry) -> None:
        self._grants[event.trial] = event
        results = self.state.trials[event.trial].results
        if event.retry or not results:
            return
        below = results[-1]
        ranked = self._by_loss.get(self.names.place(below.bracket, below.rung), [])
        rank = bisect_left(ranked, _key(loss_of(below), below.trial)) + 1 if ranked else 0
        self.promotions.append(
            Promotion(
                time=entry.time,
                trial=event.trial,
                bracket=event.bracket,
                rung=event.rung,
                target=event.target,
                loss=below.loss,
                resource=below.resource,
                rank=rank,
                among=len(ranked),
            )
        )

    def _waiting_ended(self, entry: Entry, at: int) -> None:
        later = {event.trial for event in entry.events[at + 1 :] if type(event) is AttemptFailed}
        for number in self.state.waiting:
            if number not in later:
                self.touched[number] = None
                self.trials[number].ended = entry.time

    def _best_changed(self, entry: Entry) -> None:
        state = self.state
        best = state.incumbent
        if best is None or not any(type(event) is JobCompleted for event in entry.events):
            return
        # at every result: between two points MLflow draws a straight line, and a search seems to gain steadily
        self._study_point(entry, f"best_{self.spec.metric.name}", best.loss * self.spec.metric.sign)
        if self._incumbent is not None and best.trial != self._incumbent.trial:
            self.touched[self._incumbent.trial] = None
        self._incumbent = best
        if not best.losses:
            return
        for i, metric in enumerate(self.spec.objectives[1:], 1):
            smallest = min(member.losses[i] for member in state.front)
            self._study_point(entry, f"best_{metric.name}", smallest * metric.sign)
        front = {(member.trial, member.resource) for member in state.front}
        if front == self._on_front:
            return
        for trial, _ in front ^ self._on_front:
            self.touched[trial] = None
        self._on_front = front
        self._study_point(entry, "front_size", float(len(front)))

    def _completed(self, event: JobCompleted, report: Report | None, entry: Entry) -> None:
        notes = self.trials[event.trial]
        notes.ended = event.ended or entry.time
        self._curve(notes, event.trial, report, event.metrics, target=event.resource, now=entry.time)
        values = self._of_result(event) | (usage_metrics(event.usage) if event.usage else {})
        for key, value in values.items():
            if key not in event.metrics:  # what the user reports goes before
                step = 0 if key.startswith(FINAL) or key == TRAINED_TO else event.resource  # no curves: one value each
                self._point(notes, MetricPoint(key, value, notes.ended, step))
        self._rank(event, loss_of(event))

    def _of_result(self, event: JobCompleted) -> dict[str, float]:
        spec, trial = self.spec, self.state.trials[event.trial]
        found: dict[str, float] = {}
        for metric in spec.objectives:
            if spec.any_metric and metric.name not in event.metrics:
                continue
            found[f"{FINAL}{metric.name}"] = event.metrics.get(metric.name, math.nan)
        found |= {f"{FINAL}{name}": event.metrics.get(name, math.nan) for name in spec.constraints}
        found[TRAINED_TO] = float(
            event.resource
        )  # an axis beside the metric: results of different rungs do not compare
        if event.visits:
            visits = (visit for result in trial.results for visit in result.visits or ())
            found[BYTES_MOVED] = float(sum(visit.size for visit in visits))
        return found

    def _failed(self, event: AttemptFailed) -> None:
        notes = self.trials[event.trial]
        for key, value in (usage_metrics(event.usage) if event.usage else {}).items():
            self._point(notes, MetricPoint(key, value, event.ended or self.time, event.target))
        message = f": {event.message}" if event.message else ""
        notes.failure = f"attempt {event.attempt} (training to {event.target}): {event.outcome}{message}"

    def _abandoned(self, event: TrialAbandoned, report: Report | None, entry: Entry) -> None:
        notes, trial = self.trials[event.trial], self.state.trials[event.trial]
        notes.ended = entry.time
        grant = self._grants.get(event.trial)
        if report is not None and report.trial == event.trial and grant is not None:
            # No attempt will train these steps again, and they show how it failed.
            self._curve(notes, event.trial, report, {}, target=grant.target, now=entry.time)
        if not trial.is_at(event):
            self._rank(event, None)

    def _rank(self, event: JobCompleted | TrialAbandoned, loss: Loss) -> None:
        # Rank a result, or a trial that will not bring one, in its rung.
        if len(self.spec.objectives) == 1:
            place = self.names.place(event.bracket, event.rung)
            insort(self._by_loss.setdefault(place, []), _key(loss, event.trial))

    def _curve(
        self, notes: TrialNotes, trial: int, report: Report | None, last: Metrics, *, target: int, now: float
    ) -> None:
        # Points of one attempt above what is trained already; the last ones are the recorded metrics.
        steps: dict[int, Metrics] = {}
        trained = max((r.resource for r in self.state.trials[trial].results if r.resource < target), default=0)
        for point in report.curve if report is not None else ():
            if trained < point.resource <= target:
                steps.setdefault(point.resource, {}).update(point.metrics)
        if last:
            steps.setdefault(target, {}).update(last)
        ended = (report.ended if report is not None else 0.0) or now
        started = report.started if report is not None and 0 < report.started <= ended else ended
        checkpoint = self._grants[trial].checkpoint if trial in self._grants else None
        first = 0 if checkpoint is None else checkpoint.resource
        for step in sorted(steps):
            share = (step - first) / (target - first) if target > first else 1.0
            at = started + (ended - started) * share
            for name, value in steps[step].items():
                self._point(notes, MetricPoint(name, value, at, step))

    def _point(self, notes: TrialNotes, point: MetricPoint) -> None:
        if math.isinf(point.value):
            # MLflow stores an infinity as 1.8e308, which ruins every axis; NaN sorts last and is skipped there.
            point = point._replace(value=math.nan)
        notes.points.append(point)
