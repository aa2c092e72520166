"""Made-up learning curves for a study that has no past: they show schedules and costs, not losses to come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Metrics, Params, Point
from hpo_core.spec import StudySpec

MOST_KNOWN = 2**16
"""Configurations that are kept; a million of them would take 700 MB."""


class AnalyticCurves:
    """Losses as a pure function of (seed, parameters, resource).

    A configuration's curve falls from about 1 to its own limit, for one half as a power law
    ``(1 + t / tau) ** -alpha``, for the other as ``exp(-t / tau)``. The limit follows from the parameters, through
    a smooth bowl with its own optimum per parameter (so that a sampler has something to learn), and from chance.
    ``tau`` spreads over two decades around R / 30, independently of the limit: curves cross, and
    early results mislead. Each point carries independent normal noise.

    With ``mode: max`` the metric is one minus the loss. Several metrics have a curve of their own each.

    Args:
        spec: names the metrics, the space and the largest resource (256 where there is none).
        seed: of the world; one world for all repeats of a simulation.
        seconds_per_unit: of an average configuration.
        overhead: seconds of every job beside its training.
        cost_spread: standard deviation of the logarithm of a configuration's cost per unit; mean cost stays.
        noise: standard deviation of each point.
        chance: share of the differences between limits that no parameter explains.
    """

    def __init__(
        self,
        spec: StudySpec,
        seed: int = 0,
        *,
        seconds_per_unit: float = 1.0,
        overhead: float = 0.0,
        cost_spread: float = 0.0,
        noise: float = 0.005,
        chance: float = 0.5,
    ) -> None:
        if not 0 <= chance <= 1:
            raise SpecError(f"Analytic curves: chance = {chance} must be a share, from 0 to 1.")
        for name, value in (("overhead", overhead), ("cost spread", cost_spread), ("noise", noise)):
            if not 0 <= value < math.inf:
                raise SpecError(f"Analytic curves: {name} = {value} must be a number, 0 or more.")
        if not 0 < seconds_per_unit < math.inf:
            raise SpecError(f"Analytic curves: seconds per unit = {seconds_per_unit} must be a number above 0.")
        self._space = spec.search_space().parameters
        self._constraints = list(spec.constraints)
        self._metrics = [(metric.name, metric.mode == "max") for metric in spec.objectives]
        self._scale = float(spec.search.outline().max_resource or 256)
        self._seed = seed
        self._seconds_per_unit = seconds_per_unit
        self._overhead = overhead
        self._cost_spread = cost_spread
        self._noise = noise
        self._chance = chance
        self._known: dict[int, _Configuration] = {}
        world = Stream(seed, "world", 0)
        self._optimum = {name: world.uniform() for name in spec.space}

    @property
    def time_unit(self) -> float:
        return self._seconds_per_unit

    @property
    def guessed(self) -> int:
        return 0

    def train(self, job: Job) -> Metrics:
        return self._at(job, job.target)

    def curve(self, job: Job) -> list[Point]:
        start = job.checkpoint.resource if job.checkpoint else 0
        step = max(1, -(-(job.target - start) // 64))
        return [Point(unit, self._at(job, unit)) for unit in range(job.target, start, -step)][::-1]

    def seconds(self, job: Job) -> float:
        """Seconds from the job's checkpoint to its target."""
        cost = self._configuration(job).seconds_per_unit
        return self._overhead + cost * (job.target - (job.checkpoint.resource if job.checkpoint else 0))

    def _at(self, job: Job, resource: int) -> Metrics:
        shapes = self._configuration(job).shapes
        found: Metrics = {}
        for (name, flipped), shape in zip(self._metrics, shapes, strict=True):
            loss = shape.loss(resource)
            if self._noise:
                loss += self._noise * self._draw(shape.key, resource)
            found[name] = 1.0 - loss if flipped else loss
        for name in self._constraints:  # three configurations in ten violate it, whatever they were trained to
            key = repr(sorted(job.params.items()))
            found[name] = Stream(self._seed, f"constraint/{name}/{key}", 0).uniform() - 0.7
        return found

    def _draw(self, key: str, resource: int) -> float:
        return Stream(self._seed, f"noise/{key}", resource).normal()

    def _configuration(self, job: Job) -> _Configuration:
        known = self._known.get(job.trial)
        if known is None or known.params != job.params:  # another repeat has another trial of that number
            key = repr(sorted(job.params.items()))
            bowl = self._bowl(job.params)
            keys = [f"{name}/{key}" for name, _ in self._metrics]
            cost = self._seconds_per_unit
            if self._cost_spread:
                z = Stream(self._seed, f"cost/{key}", 0).normal()
                cost *= math.exp(self._cost_spread * z - self._cost_spread**2 / 2)
            draws = [(Stream(self._seed, f"curve/{key}", 0), key) for key in keys]
            shapes = [_Shape(stream, bowl, self._chance, self._scale, key) for stream, key in draws]
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[job.trial] = _Configuration(job.params, shapes, cost)
        return known

    def _bowl(self, params: Mapping[str, Any]) -> float:
        own = {name: value for name, value in params.items() if name in self._optimum}  # not the constants
        distances = [(self._place(name, value) - self._optimum[name]) ** 2 for name, value in own.items()]
        return min(1.0, 3.0 * math.fsum(distances) / len(distances)) if distances else 0.5

    def _place(self, name: str, value: Any) -> float:
        parameter = self._space.get(name)
        share = None if parameter is None else parameter.share(value)
        if share is not None:
            return share
        return Stream(self._seed, f"choice/{name}/{value!r}", 0).uniform()


@dataclass(frozen=True, slots=True)
class _Configuration:
    params: Params
    shapes: list[_Shape]
    """One per metric."""
    seconds_per_unit: float


class _Shape:
    """One configuration's curve of one metric, without noise."""

    __slots__ = ("alpha", "key", "limit", "start", "tau")

    def __init__(self, stream: Stream, bowl: float, chance: float, scale: float, key: str) -> None:
        self.key = key
        self.limit = 0.05 + 0.9 * (1 - chance) * bowl + 0.9 * chance * stream.uniform()
        self.start = max(self.limit, 0.95 + 0.1 * stream.uniform())
        self.tau = scale / 30 * 10 ** (2 * stream.uniform() - 1)
        self.alpha = 0.5 + stream.uniform() if stream.uniform() < 0.5 else 0.0

    def loss(self, resource: int) -> float:
        left = (1 + resource / self.tau) ** -self.alpha if self.alpha else math.exp(-resource / self.tau)
        return self.limit + (self.start - self.limit) * left
