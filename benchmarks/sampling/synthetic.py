"""Made-up problems, each with one property turned on.

They are functions of the parameters, so a proposal needs no nearest row. What the parameters are worth comes from the
project's own made-up curves (``AnalyticCurves``): a bowl with an optimum of its own per parameter, and a fifth of
chance. Each seed is another world. Where a property does not say otherwise all curves have one shape and never cross.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job, Params, Rung
from hpo_core.simulation import AnalyticCurves
from hpo_core.spec import StudySpec

from .problems import FunctionProblem

RESOURCE, WORKERS, FULL_RUNS, DRAWN = 27, 9, 20, 400
FLOOR = 0.05
"""No curve of ``AnalyticCurves`` ends below."""
NOISE = 0.1
"""Standard deviation where there is most; without that property a tenth of it."""


@dataclass(frozen=True)
class Kind:
    """One property.

    Args:
        what: for the report.
        space: of the study.
        crossing: curves of ``AnalyticCurves``: fast and slow ones, whatever their end.
        overfitting: what begins fast is worse again later, by parameter ``p0``.
        diverging: the upper two fifths of ``p1`` learn fast, then end in NaN.
        noise: its share by the share of training that is done.
        cost: how many times as long the slowest training takes as the fastest one, by ``p0``.
    """

    what: str
    space: dict[str, Any]
    crossing: bool = False
    overfitting: bool = False
    diverging: bool = False
    noise: Callable[[float], float] = lambda share: 0.1
    cost: float = 1.0


def numbers(count: int) -> dict[str, Any]:
    return {f"p{k}": {"type": "float", "low": 0.0, "high": 1.0} for k in range(count)}


CHOICES = {f"c{k}": {"type": "categorical", "choices": ["a", "b", "c", "d"]} for k in range(3)}
CONDITIONAL = {
    "kind": {"type": "categorical", "choices": ["a", "b"]},
    **{f"{kind}{k}": numbers(1)["p0"] | {"when": {"kind": kind}} for kind in "ab" for k in range(3)},
}
KINDS = {
    "plain": Kind("nothing", numbers(5)),
    "crossing": Kind("curves cross", numbers(5), crossing=True),
    "overfitting": Kind("what begins fast is worse later", numbers(5), overfitting=True),
    "diverging": Kind("two fifths of the space diverge", numbers(5), diverging=True),
    "noise-shrinks": Kind("noise that shrinks with training", numbers(5), noise=lambda share: 1 - 0.9 * share),
    "noise-grows": Kind("noise that grows with training", numbers(5), noise=lambda share: 0.1 + 0.9 * share),
    "costs": Kind("twenty times the cost by a parameter", numbers(5), cost=20.0),
    "choices": Kind("three choices of four beside two numbers", numbers(2) | CHOICES),
    "conditional": Kind("three parameters of each of two kinds", CONDITIONAL),
    **{f"numbers-{n}": Kind(f"{n} parameters", numbers(n)) for n in (2, 10, 20, 40)},
}


class SyntheticProblem(FunctionProblem):
    """One world of a kind."""

    size: int | None = None

    def __init__(self, kind: str, seed: int) -> None:
        self.name, self.family = f"synthetic_{kind}", "synthetic"
        self.kind, self._seed = KINDS[kind], seed
        self.space, self.max_resource, self.workers = self.kind.space, RESOURCE, WORKERS
        self._spec = StudySpec.from_plain(
            {
                "study": self.name,
                "metric": {"name": "loss"},
                "space": self.space,
                "search": {"method": "asha", "configs": DRAWN, "min_resource": 1, "max_resource": RESOURCE},
            }
        )
        self._parameters = self._spec.search_space()
        self._curves = AnalyticCurves(self._spec, seed, noise=0.0, chance=0.2)
        self.until = FULL_RUNS / WORKERS * float(np.mean([self.seconds(one, RESOURCE) for one in self._drawn]))

    def loss(self, place: str, resource: int) -> float:
        share = resource / RESOURCE
        drawn = Stream(self._seed, f"noise/{place}", resource).normal()
        return self.value(place, resource) + NOISE * self.kind.noise(share) * drawn

    def value(self, place: str, resource: int) -> float:
        """Without noise; NaN from where it diverges."""
        kind, params, share = self.kind, self.params(place), resource / RESOURCE
        if kind.crossing:
            return self._analytic(params, resource)
        end, speed = self._analytic(params, RESOURCE), 5.0
        if kind.diverging and params["p1"] > 0.6:
            if share > 0.1 + 1.5 * (1 - params["p1"]):
                return math.nan
            speed = 10.0
        if kind.overfitting:
            speed += 15.0 * params["p0"]
            end += 0.5 * params["p0"] * max(0.0, share - 0.3)
        return end + (1.0 - end) * math.exp(-speed * share)

    def seconds(self, place: str, resource: int) -> float:
        return resource * (self.kind.cost ** self.params(place)["p0"] if self.kind.cost > 1 else 1.0)

    def regret(self, place: str) -> float:
        end = self.value(place, RESOURCE)
        return min(1.0, (end - FLOOR) / (self._median - FLOOR)) if math.isfinite(end) else 1.0

    def checkpoint_regret(self, place: str, resource: int) -> float:
        return min(1.0, (self.value(place, resource) - FLOOR) / (self._median_lowest - FLOOR))

    @cached_property
    def _drawn(self) -> list[str]:
        draws = (self._parameters.draw(Stream(self._seed, "drawn", n)) for n in range(DRAWN))
        return [json.dumps(one, sort_keys=True) for one in draws]

    @cached_property
    def _median(self) -> float:
        ends = np.array([self.value(one, RESOURCE) for one in self._drawn])
        return float(np.median(np.where(np.isfinite(ends), ends, np.inf)))

    @cached_property
    def _median_lowest(self) -> float:
        drawn = self._drawn[:100]
        return float(np.median([np.nanmin([self.value(one, t) for t in range(1, RESOURCE + 1)]) for one in drawn]))

    def _analytic(self, params: Params, resource: int) -> float:
        job = Job(trial=0, attempt=0, stage=Rung(0, 0), target=resource, params=params)
        return self._curves.train(job)["loss"]
