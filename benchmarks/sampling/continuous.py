"""Continuous problems: recorded curves, learnt by a small network, so that every proposal has a curve of its own.

Tables favour samplers that repeat a region, for a proposal is moved to a row that was not tried yet. Here is nothing to
run out of. Eight main components of the curves are learnt from the parameters (scikit-learn), and the time of a unit.
"""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPRegressor

from hpo_core.model.trial import Params

from .problems import FunctionProblem, TableProblem

COMPONENTS, HIDDEN, DRAWN = 8, (64, 64), 20_000


class ContinuousProblem(FunctionProblem):
    """One table of numbers as a function of its parameters; workers and budget are the table's."""

    size: int | None = None
    family = "continuous"

    def __init__(self, table: TableProblem) -> None:
        self.name = f"continuous_{table.name}"
        self.space, self.max_resource, self.workers = table.space, table.max_resource, table.workers
        curves, seconds = table.curves.losses, table.curves.seconds[:, -1] / table.max_resource
        rows = np.isfinite(curves).all(axis=1) & np.isfinite(seconds)
        points = np.array([self._point(row) for row in table.rows])[rows]
        curves, costs = curves[rows], np.log(seconds[rows])
        self._middle = curves.mean(axis=0)
        _, _, self._components = np.linalg.svd(curves - self._middle, full_matrices=False)
        self._components = self._components[:COMPONENTS]
        targets = np.column_stack([(curves - self._middle) @ self._components.T, costs])
        self._mean, self._scale = targets.mean(axis=0), targets.std(axis=0)
        self._model = MLPRegressor(
            hidden_layer_sizes=HIDDEN,
            alpha=1e-3,
            early_stopping=True,
            n_iter_no_change=20,
            max_iter=400,
            random_state=0,
        )
        self._model.fit(points, (targets - self._mean) / self._scale)
        self._lowest_cost, self._highest_cost = costs.min(), costs.max()
        self.until = table.until * float(np.exp(costs).mean() / np.nanmean(seconds))
        rng = np.random.default_rng(0)
        drawn = rng.random((DRAWN, points.shape[1]))
        found = self._curves(drawn)[0]
        self._best, self._median = self._lowest(drawn, found[:, -1], rng), float(np.median(found[:, -1]))
        lowest = found.min(axis=1)
        self._best_lowest, self._median_lowest = min(self._best, float(lowest.min())), float(np.median(lowest))
        self._kept: dict[str, tuple[NDArray[np.float64], float]] = {}

    def _lowest(self, drawn: NDArray[np.float64], ends: NDArray[np.float64], rng: np.random.Generator) -> float:
        best = drawn[np.argsort(ends)[:20]]
        for scale in np.repeat([0.1, 0.03, 0.01, 0.003, 0.001], 3):
            near = np.repeat(best, 50, axis=0)
            near = np.concatenate([best, np.clip(near + scale * rng.standard_normal(near.shape), 0.0, 1.0)])
            best = near[np.argsort(self._curves(near)[0][:, -1])[:20]]
        return float(self._curves(best)[0][:, -1].min())

    def _point(self, params: Params) -> list[float]:
        found = []
        for name, one in self.space.items():
            low, high, value = one["low"], one["high"], params[name]
            if one.get("log"):
                low, high, value = math.log(low), math.log(high), math.log(value)
            found.append((value - low) / (high - low))
        return found

    def _curves(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        found = self._mean + self._scale * self._model.predict(points)
        costs = np.clip(found[:, -1], self._lowest_cost, self._highest_cost)
        return self._middle + found[:, :-1] @ self._components, np.exp(costs)

    def _at(self, place: str) -> tuple[NDArray[np.float64], float]:
        if place not in self._kept:
            curves, costs = self._curves(np.array([self._point(json.loads(place))]))
            self._kept[place] = curves[0], float(costs[0])
        return self._kept[place]

    def loss(self, place: str, resource: int) -> float:
        return float(self._at(place)[0][resource - 1])

    def seconds(self, place: str, resource: int) -> float:
        return resource * self._at(place)[1]

    def regret(self, place: str) -> float:
        end = self.loss(place, self.max_resource)
        return min(1.0, max(0.0, (end - self._best) / (self._median - self._best)))

    def checkpoint_regret(self, place: str, resource: int) -> float:
        found = (self.loss(place, resource) - self._best_lowest) / (self._median_lowest - self._best_lowest)
        return min(1.0, max(0.0, found))
