"""Learning curves of simulations: made up for a study that has no past, or recorded in a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Event
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


class CurveTable:
    """Learning curves of many configurations, one row each.

    Attributes:
        losses: [configurations, resources] float64; smaller is better; column ``k`` is after ``k + 1`` units.
        seconds: [configurations, resources] float64, cumulative; one second per unit where not measured.
        mode: of the original metric; ``losses`` has ``max`` flipped already.
    """

    def __init__(self, name: str, losses: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64], mode: str) -> None:
        self.name = name
        self.losses = losses
        self.seconds = seconds
        self.mode = mode
        final = np.where(np.isfinite(losses[:, -1]), losses[:, -1], np.inf)
        self.final = final
        self.best_final = float(final.min())
        self.median_final = float(np.median(final))

    @classmethod
    def load(cls, path: Path) -> CurveTable:
        """Read an ``.npz`` curve file (``meta_json`` names metric and direction).

        Raises:
            SpecError: the file is absent or not in that format.
        """
        try:
            with np.load(path) as data:
                meta = json.loads(str(data["meta_json"]))
                losses = np.asarray(data[meta["primary_metric"]], dtype=np.float64)
                times = np.asarray(data["time_s"], dtype=np.float64) if "time_s" in data else None
                lengths = np.asarray(data["n_points"]) if "n_points" in data else None
                untrained = float(data["fidelity"][0]) == 0.0
        except (OSError, KeyError, ValueError) as error:
            raise SpecError(f"{path} holds no learning curves ({error}). Give an .npz file with meta_json.") from error
        if meta["direction"] == "max":
            losses = -losses
        if untrained:  # point 0 is before training
            losses = losses[:, 1:]
            times = None if times is None else times[:, 1:] - times[:, :1]
        if lengths is not None:  # runs that ended early by their own rule keep their best and cost no more
            losses = np.fmin.accumulate(losses, axis=1)
        if times is not None:
            times = _held(times, path)
        else:
            units = np.arange(1.0, losses.shape[1] + 1)
            times = np.broadcast_to(units, losses.shape).copy()
            if lengths is not None:
                times = np.minimum(times, lengths[:, None].astype(np.float64))
        return cls(path.stem, losses, times, meta["direction"])

    @property
    def max_resource(self) -> int:
        return int(self.losses.shape[1])

    def train(self, job: Job) -> dict[str, float]:
        """Metrics of ``job.params["row"]`` at the job's target."""
        return {"loss": float(self.losses[job.params["row"], job.target - 1])}

    def curve(self, job: Job) -> list[Point]:
        """The metrics on the way from the job's checkpoint to its target, for methods that read curves."""
        row = self.losses[job.params["row"]]
        start = job.checkpoint.resource if job.checkpoint else 0
        return [Point(unit + 1, {"loss": float(row[unit])}) for unit in range(start, job.target)]

    def cost(self, job: Job) -> float:
        """Seconds from the job's checkpoint to its target."""
        row = self.seconds[job.params["row"]]
        start = job.checkpoint.resource if job.checkpoint else 0
        return max(0.0, float(row[job.target - 1] - (row[start - 1] if start else 0.0)))

    def regret(self, row: int) -> float:
        """Normalised regret of a configuration fully trained: 0 the best of the table, 1 its median or worse."""
        return min(1.0, (float(self.final[row]) - self.best_final) / (self.median_final - self.best_final))


def _held(times: npt.NDArray[np.float64], path: Path) -> npt.NDArray[np.float64]:
    """Measured times; after the last one of a run that ended early, that one: it costs no more.

    Raises:
        SpecError: a time is missing before the last one.
    """
    known = np.isfinite(times)
    last = np.where(known.any(axis=1), times.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1), -1)
    columns = np.arange(times.shape[1])
    if (gaps := ~known & (columns <= last[:, None])).any() or (last < 0).any():
        row = int(np.argmax(gaps.any(axis=1) | (last < 0)))
        raise SpecError(
            f"{path}: row {row} of time_s has no time where it has one later, or none at all; a training whose "
            "duration is not known would cost nothing. Fill in the cumulative seconds, or drop the row."
        )
    held: npt.NDArray[np.float64] = np.take_along_axis(times, np.minimum(columns, last[:, None]), axis=1)
    return held


class TableSampler:
    """Rows of a table in a random order, each at most once."""

    def __init__(self, rows: int, seed: int) -> None:
        self._order = Stream(seed, "table", 0).shuffled(range(rows))

    def propose(self, number: int) -> Params:
        return {"row": self._order[number]}

    def apply(self, event: Event) -> None:
        """A random order learns nothing."""
