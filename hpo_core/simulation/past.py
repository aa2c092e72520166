"""A past study's trials: learning curves, durations, failures. One pass over its journal."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import SpecError
from hpo_core.model.events import (
    AttemptFailed,
    AttemptReported,
    Entry,
    Event,
    JobCompleted,
    JobGranted,
    TrialAbandoned,
    TrialCreated,
)
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Point
from hpo_core.simulation.repeats import gang_speedup
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method
from hpo_core.study import Study

LEAST_LINES = 3
"""Fewest trials with jobs of different lengths that tell overhead from training."""


@dataclass(slots=True)
class PlayedTrial:
    """One trial as recorded."""

    params: Params
    curve: dict[int, Metrics] = field(default_factory=dict)
    """Resource -> metrics: all points reported on the way, and the results."""
    spans: dict[tuple[int, int], float] = field(default_factory=dict)
    """(resource a job started from, its target) -> seconds from its grant to its report."""
    failed: Outcome | None = None
    """Set where the trial was abandoned: how its last attempt ended."""
    failed_seconds: float = 0.0
    seconds_per_unit: float = 0.0

    @property
    def trained(self) -> int:
        return max((target for _, target in self.spans), default=0)


@dataclass(slots=True)
class PastCurve:
    """Some metrics of one trial, at all resources where it reported all of them."""

    resources: list[int]
    """Ascending."""
    values: dict[str, list[float]]

    @classmethod
    def of(cls, trial: PlayedTrial, names: Sequence[str]) -> PastCurve:
        resources = sorted(r for r, metrics in trial.curve.items() if all(name in metrics for name in names))
        return cls(resources, {name: [trial.curve[r][name] for r in resources] for name in names})

    @property
    def first(self) -> int:
        return self.resources[0] if self.resources else 0

    @property
    def last(self) -> int:
        return self.resources[-1] if self.resources else 0

    def at(self, resource: int, name: str) -> float:
        """A metric at a resource: straight lines between the points, before and beyond them as at the nearest."""
        resource = min(max(resource, self.first), self.last)
        place = bisect_left(self.resources, resource)
        values = self.values[name]
        if self.resources[place] == resource:
            return values[place]
        below, above = self.resources[place - 1], self.resources[place]
        start, end = values[place - 1], values[place]
        return start + (end - start) * (resource - below) / (above - below)

    def inside(self, low: int, high: int) -> list[int]:
        """Resources of the points strictly between two."""
        return self.resources[bisect_right(self.resources, low) : bisect_left(self.resources, high)]


@dataclass(slots=True)
class PastStudy:
    """Learning curves and durations of a journal.

    The seconds of a job are those from its grant to its report: training, starting a process, loading the data and
    the checkpoint, and waiting for a worker that was announced but not free; where jobs shared devices, for which they
    wait on purpose, those from an attempt's start to its end. Over jobs of different lengths of one
    trial, a straight line tells what every job costs beside its units; :attr:`overhead` is the median over trials, and
    0 where fewer than three trials have such jobs. Workers are taken to be equally fast.
    """

    spec: StudySpec
    trials: list[PlayedTrial]
    """Trials that reported something, or were abandoned, by number."""
    unused: int
    """Trials of which nothing is known."""
    overhead: float
    """Seconds of a job beside its units of training."""
    has_checkpoints: bool
    _curves: dict[tuple[str, ...], list[PastCurve]] = field(default_factory=dict)

    def curves(self, names: tuple[str, ...]) -> list[PastCurve]:
        """Curves of all trials, by number; empty where a trial never reported these metrics."""
        if names not in self._curves:
            self._curves[names] = [PastCurve.of(trial, names) for trial in self.trials]
        return self._curves[names]

    @property
    def time_unit(self) -> float:
        return statistics.median(trial.seconds_per_unit for trial in self.trials)

    def describe(self) -> str:
        """Where the figures come from, in one sentence."""
        most = max(trial.trained for trial in self.trials)
        top = sum(trial.trained == most for trial in self.trials)
        unused = f" ({self.unused} more never reported)" if self.unused else ""
        return (
            f"{len(self.trials)} trials of {self.spec.study!r}{unused}, {top} of them trained to {most}; "
            f"{self.time_unit:.3g} s a unit (median), {self.overhead:.3g} s a job beside"
        )


def read_past(entries: Iterable[Entry], *, seconds_per_unit: float | None = None) -> PastStudy:
    """Fold a journal.

    Args:
        entries: of one study, from the first one on.
        seconds_per_unit: takes the place of all recorded durations.

    Raises:
        SpecError: the study has no results, or no durations (and ``seconds_per_unit`` is not given).
    """
    spec: StudySpec | None = None
    found: list[PlayedTrial] = []
    grants: dict[int, tuple[float, JobGranted]] = {}
    failures: dict[int, tuple[Outcome, float]] = {}
    has_checkpoints = False
    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobGranted):
                grants[event.trial] = entry.time, event
            elif isinstance(event, JobCompleted):
                time, grant = grants[event.trial]
                failures.pop(event.trial, None)
                trial = found[event.trial]
                start = grant.checkpoint.resource if grant.checkpoint else 0
                trial.spans[start, event.resource] = entry.time - time
                if isinstance(entry.stimulus, AttemptReported):
                    report, slots = entry.stimulus.report, grant.demand.slots
                    has_share = isinstance(report.usage, Usage) and report.usage.share
                    if (has_share or slots > 1) and report.ended > report.started > 0:  # without its wait for others
                        trial.spans[start, event.resource] = report.ended - report.started
                    if slots > 1 and spec is not None:  # a gang: what it would have taken on one slot
                        trial.spans[start, event.resource] *= gang_speedup(spec)(slots)
                    trial.curve.update((point.resource, point.metrics) for point in report.curve)
                trial.curve[event.resource] = event.metrics
                has_checkpoints = has_checkpoints or event.checkpoint is not None
            elif isinstance(event, AttemptFailed):
                failures[event.trial] = event.outcome, entry.time - grants[event.trial][0]
            elif isinstance(event, TrialAbandoned) and event.trial in failures:  # else it stood at a rung
                found[event.trial].failed, found[event.trial].failed_seconds = failures[event.trial]
            elif isinstance(event, TrialCreated):
                found.append(PlayedTrial(event.params))
        spec = spec or Study.from_entries([entry]).spec
    assert spec is not None, "a journal begins with the entry that created its study"
    kept = [trial for trial in found if trial.curve or trial.failed]
    if not any(trial.curve for trial in kept):
        raise SpecError(
            f"Study {spec.study!r} has no results, so nothing can be simulated from it. Let it run for a while, or "
            "leave --from-journal out."
        )
    past = PastStudy(spec, kept, len(found) - len(kept), 0.0, has_checkpoints)
    if seconds_per_unit is None:
        _measure(past)
    else:
        for trial in kept:
            trial.seconds_per_unit = seconds_per_unit
            trial.spans = {(start, end): trial.seconds_per_unit * (end - start) for start, end in trial.spans}
    return past


def _measure(past: PastStudy) -> None:
    jobs = [[(t - s, seconds) for (s, t), seconds in trial.spans.items()] for trial in past.trials]
    if not any(seconds > 0 for own in jobs for _, seconds in own):
        raise SpecError(
            f"Study {past.spec.study!r} has no durations (a loop by hand has none); say how long a unit of training "
            "takes with --seconds-per-unit."
        )
    lines = []
    for own in jobs:
        if len({units for units, _ in own}) > 1:
            line = statistics.linear_regression([units for units, _ in own], [seconds for _, seconds in own])
            lines.append(line.intercept)
    if len(lines) >= LEAST_LINES:
        shortest = min(seconds for own in jobs for _, seconds in own)
        past.overhead = min(max(0.0, statistics.median(lines)), shortest)
    for trial, own in zip(past.trials, jobs, strict=True):
        if own:
            seconds = math.fsum(seconds - past.overhead for _, seconds in own)
            trial.seconds_per_unit = max(0.0, seconds) / sum(units for units, _ in own)
    known = [trial.seconds_per_unit for trial in past.trials if trial.spans]
    for trial in past.trials:
        if not trial.spans:
            trial.seconds_per_unit = statistics.median(known)


RULES = (
    "Each simulated trial plays a past one: first all of them in their order (in later repeats in a random one), then "
    "all again; more trials than the past had repeat its curves.",
    "Beyond what a trial was trained to, its metrics stay those of its last result: schedules and costs are those to "
    "expect, and what the trial would have become is not known.",
    "Parameters come from the past as well, so samplers cannot be compared this way.",
    "A job takes the seconds that the past has for it, else the overhead and its trial's own seconds per unit, on "
    "workers as fast as the past ones were on average, however many there are.",
)
"""Assumptions of the simulation, for people."""


class PastCurves:
    """Sampler and objective in one: trials of a past study, played again.

    A past trial that was abandoned fails again on the way to any target beyond its last result.

    Args:
        spec: of the simulated study.
        seed: of the repeat; 0 plays the past trials in their order.

    Raises:
        SpecError: the past knows nothing of a metric, or nothing at a resource that the search wants, or the search
            makes parameters of its own (PBT).
    """

    def __init__(self, past: PastStudy, spec: StudySpec, seed: int = 0) -> None:
        if spec.search.outline().population is not None:
            raise SpecError(
                "Population based training makes parameters as it goes, and a past study holds curves of its own only. "
                "Simulate it without --from-journal."
            )
        self.past = past
        self._metrics = [(metric.name, metric.sign) for metric in spec.objectives]
        self._metrics += [(name, 1.0) for name in spec.constraints]
        self._seed = seed
        self._passes: list[list[int]] = []
        self.guessed = 0
        """Results outside of what their past trial was trained to."""
        names = tuple(name for name, _ in self._metrics)
        self._curves = past.curves(names)
        known = [curve for curve in self._curves if curve.resources]
        if not known:
            reported = sorted({name for trial in past.trials for metrics in trial.curve.values() for name in metrics})
            raise SpecError(
                f"Study {past.spec.study!r} never reported {' and '.join(map(repr, names))} (it reported "
                f"{', '.join(reported)}); simulate a study with a metric that it did report."
            )
        self._rows = [row for row, curve in enumerate(self._curves) if curve.resources or past.trials[row].failed]
        levels = [rung.level for rung in create_method(spec).rungs()]
        least, most = min(curve.first for curve in known), max(curve.last for curve in known)
        if levels and (min(levels) < least or max(levels) > most):
            raise SpecError(
                f"Study {past.spec.study!r} has results at {least} to {most} units of training; this search wants "
                f"{min(levels)} to {max(levels)}. Choose min_resource and max_resource within that."
            )

    # Sampler.

    def propose(self, number: int, given: Params | None = None) -> Params:
        return self.past.trials[self._row(number)].params

    def apply(self, event: Event) -> None:
        """Nothing is learned."""

    def _row(self, number: int) -> int:
        count = len(self._rows)
        lap, place = divmod(number, count)
        while lap >= len(self._passes):
            again = self._seed or self._passes
            stream = Stream(self._seed, "past", len(self._passes))
            self._passes.append(stream.shuffled(self._rows) if again else self._rows)
        return self._passes[lap][place]

    # Objective.

    @property
    def time_unit(self) -> float:
        return self.past.time_unit

    def train(self, job: Job) -> Metrics | Outcome:
        """Metrics at the job's target, or how it fails."""
        trial = self._trial(job)
        if trial.failed is not None and job.target > trial.trained:
            return trial.failed
        curve = self._curves[self._row(job.trial)]
        self.guessed += not (curve.resources and curve.first <= job.target <= curve.last)
        return {name: curve.at(job.target, name) for name, _ in self._metrics}

    def curve(self, job: Job) -> list[Point]:
        """Known points on the way from the job's checkpoint to its target."""
        curve = self._curves[self._row(job.trial)]
        start = job.checkpoint.resource if job.checkpoint else 0
        return [
            Point(resource, {name: curve.at(resource, name) for name, _ in self._metrics})
            for resource in [*curve.inside(start, job.target), job.target]
        ]

    def seconds(self, job: Job) -> float:
        trial = self._trial(job)
        if trial.failed is not None and job.target > trial.trained:
            return trial.failed_seconds
        start = job.checkpoint.resource if job.checkpoint else 0
        recorded = trial.spans.get((start, job.target))
        if recorded is None:
            recorded = self.past.overhead + trial.seconds_per_unit * (job.target - start)
        return recorded

    def _trial(self, job: Job) -> PlayedTrial:
        return self.past.trials[self._row(job.trial)]
