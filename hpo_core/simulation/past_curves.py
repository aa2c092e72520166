"""The learning curves and durations of a past study as an objective: "what if" before anything is started."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Event
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Point
from hpo_core.simulation.past import PastCurve, PastStudy, PlayedTrial
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method

NEAREST = 5
RULES = (
    "Each simulated trial plays a past one: first all of them in their order (in later repeats in a random one), then "
    "all again; more trials than the past had repeat its curves.",
    f"Beyond what a trial was trained to, its curve goes on like that of one of the {NEAREST} past trials nearest to "
    "it at its last result, shifted to it, and never better than the best that was really seen there. Trials trained "
    "far were the good ones: what the others would have become is a guess.",
    "Parameters come from the past as well, so samplers cannot be compared this way.",
    "A job takes the seconds that the past has for it, else the overhead and its trial's own seconds per unit, on "
    "workers as fast as the past ones were on average, however many there are.",
)
"""What the simulation takes for granted, for people."""


class PastCurves:
    """Sampler and objective in one: trials of a past study, played again.

    A past trial that was abandoned fails again on the way to any target beyond its last result. Continuation is by
    predictive mean matching (Little 1988, "Missing-Data Adjustments in Large Surveys"): the donor is drawn among the
    nearest ones instead of averaging them, so that rankings at the next rung stay as noisy as they were.

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
        self._cost = spec.repeats / past.spec.repeats
        self._passes: list[list[int]] = []
        self._continued: dict[int, PastCurve] = {}
        self._donors: dict[tuple[int, int], _Donors] = {}
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
        """A past trial, whatever is given: there are curves of those alone."""
        return self.past.trials[self._row(number)].params

    def apply(self, event: Event) -> None:
        """Nothing is learned."""

    def _row(self, number: int) -> int:
        """Which past trial a simulated one plays."""
        count = len(self._rows)
        lap, place = divmod(number, count)
        while lap >= len(self._passes):
            order = list(self._rows)
            if self._seed or self._passes:
                stream = Stream(self._seed, "past", len(self._passes))
                for i in range(count - 1, 0, -1):
                    j = stream.below(i + 1)
                    order[i], order[j] = order[j], order[i]
            self._passes.append(order)
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
        self.guessed += not self._curves[self._row(job.trial)].covers(job.target)
        curve = self._reaching(job)
        return {name: curve.at(job.target, name) for name, _ in self._metrics}

    def curve(self, job: Job) -> list[Point]:
        """Known points on the way from the job's checkpoint to its target."""
        curve = self._reaching(job)
        start = job.checkpoint.resource if job.checkpoint else 0
        return [
            Point(resource, {name: curve.at(resource, name) for name, _ in self._metrics})
            for resource in [*curve.inside(start, job.target), job.target]
        ]

    def seconds(self, job: Job) -> float:
        """Seconds from grant to report; a job with so many times the past's ``repeats`` takes so many times as long."""
        trial = self._trial(job)
        if trial.failed is not None and job.target > trial.trained:
            return trial.failed_seconds
        start = job.checkpoint.resource if job.checkpoint else 0
        recorded = trial.spans.get((start, job.target))
        if recorded is None:
            recorded = self.past.overhead + trial.seconds_per_unit * (job.target - start)
        return recorded * self._cost  # 1 where the past had as many seed repeats

    def _trial(self, job: Job) -> PlayedTrial:
        return self.past.trials[self._row(job.trial)]

    def _reaching(self, job: Job) -> PastCurve:
        """The job's curve, continued up to its target."""
        curve = self._continued.get(job.trial) or self._curves[self._row(job.trial)]
        if not curve.covers(job.target):
            while not curve.covers(job.target):
                curve = self._continue(curve, job)
            self._continued[job.trial] = curve
        return curve

    def _continue(self, curve: PastCurve, job: Job) -> PastCurve:
        """A curve made longer at the end that is nearer to the target, at best up to it."""
        anchor = curve.last if job.target > curve.last else curve.first
        donors = self._leading(anchor, job.target)
        reach = donors.reach
        own = curve.at(anchor, self._metrics[0][0])
        near = donors.pairs
        if math.isfinite(own):
            place = bisect_left(near, (own, -1))
            around = near[max(0, place - NEAREST) : place + NEAREST]
            near = sorted(around, key=lambda item: (abs(item[0] - own), item[1]))[:NEAREST]
        _, row = Stream(self._seed, f"donor/{job.trial}", reach).choice(near)
        donor = self._curves[row]
        gaps = {name: curve.at(anchor, name) - donor.at(anchor, name) for name, _ in self._metrics}
        inside = donor.inside(min(anchor, reach), max(anchor, reach))
        points = {r: {name: donor.at(r, name) + gap for name, gap in gaps.items()} for r in [*inside, reach]}
        for name, sign in self._metrics:
            points[reach][name] = sign * max(points[reach][name] * sign, donors.best[name])
        return curve.joined(points)

    def _leading(self, anchor: int, target: int) -> _Donors:
        """The past trials that lead from ``anchor`` to the target, or as near to it as any does.

        Raises:
            SpecError: none leads that way.
        """
        found = self._donors.get((anchor, target))
        if found is not None:
            return found
        if target > anchor:
            ends = [curve.last for curve in self._curves if curve.covers(anchor) and curve.last > anchor]
            reach = min(target, max(ends, default=anchor))
        else:
            ends = [curve.first for curve in self._curves if curve.covers(anchor) and curve.first < anchor]
            reach = max(target, min(ends, default=anchor))
        if reach == anchor:
            raise SpecError(
                f"Study {self.past.spec.study!r} trained nothing from {anchor} to {target} units, so nothing is known "
                "of it. Choose min_resource and max_resource within what it trained."
            )
        name, _ = self._metrics[0]
        leading = [(row, curve) for row, curve in enumerate(self._curves) if curve.covers(anchor, reach)]
        pairs = sorted((curve.at(anchor, name), row) for row, curve in leading)
        finite = [pair for pair in pairs if math.isfinite(pair[0])]
        best = {}
        for name, sign in self._metrics:
            seen = [curve.at(reach, name) * sign for _, curve in leading]
            best[name] = min((loss for loss in seen if math.isfinite(loss)), default=-math.inf)
        found = self._donors[anchor, target] = _Donors(reach, finite or pairs, best)
        return found


@dataclass(frozen=True, slots=True)
class _Donors:
    reach: int
    pairs: list[tuple[float, int]]
    """(first metric at the anchor, number of the past trial), sorted."""
    best: dict[str, float]
    """Per metric the smallest loss among them where they lead to."""
