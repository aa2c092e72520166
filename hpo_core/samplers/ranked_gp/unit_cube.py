"""Values of Optuna's distributions as numbers from 0 to 1, and as features of a Gaussian process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Array = NDArray[np.float64]


class Axis(NamedTuple):
    """One parameter. Numbers lie in [low, high] after the logarithm, if any; half a step is added at both ends."""

    name: str
    distribution: BaseDistribution
    choices: int
    """0: a number."""
    low: float
    high: float
    log: bool
    step: float

    def units(self, values: Sequence[Any]) -> Array:
        """From 0 to 1; the index of a choice."""
        if self.choices:
            return np.array([self.distribution.to_internal_repr(value) for value in values], dtype=np.float64)
        if self.log:  # the logarithm of the C library, which is the same on every machine more often than numpy's
            values = [math.log(value) if value > 0 else self.low for value in values]
        found = np.array(values, dtype=np.float64)
        if self.high <= self.low:
            return np.full_like(found, 0.5)
        found -= self.low
        found /= self.high - self.low
        return np.minimum(np.maximum(found, 0.0, out=found), 1.0, out=found)

    def rounded(self, units: Array) -> Array:
        """Each the place of the nearest value that there is."""
        if self.choices or not self.step or self.high <= self.low:
            return units
        found = self._values(units)
        if self.log:
            found = np.log(found)
        scaled: Array = (found - self.low) / (self.high - self.low)
        return scaled

    def value(self, unit: float) -> Any:
        """The value at a place; the inverse of :meth:`units`."""
        if self.choices:
            return self.distribution.to_external_repr(int(unit))
        return self.distribution.to_external_repr(float(self._values(np.array([unit]))[0]))

    def _values(self, units: Array) -> Array:
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        found = self.low + units * (self.high - self.low)
        if self.log:
            found = np.exp(found)
        low, high = self.distribution.low, self.distribution.high
        if self.step:
            last = math.floor((high - low) / self.step + 1e-9)
            found = low + np.clip(np.round((found - low) / self.step), 0, last) * self.step
        clipped: Array = np.clip(found, low, high)
        return clipped


def axis(name: str, distribution: BaseDistribution) -> Axis:
    """The axis of a parameter.

    Raises:
        ValueError: no distribution that Optuna had when this was written.
    """
    if isinstance(distribution, CategoricalDistribution):
        return Axis(name, distribution, len(distribution.choices), 0.0, 1.0, False, 0.0)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise ValueError(f"ranked_gp knows float, int and categorical parameters; {name} is {distribution!r}")
    step = float(distribution.step or 0.0)
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        below = low - step / 2
        return Axis(name, distribution, 0, math.log(below), math.log(high + step / 2), True, step)
    return Axis(name, distribution, 0, low - step / 2, high + step / 2, False, step)


class UnitCube:
    """All parameters together. Points are rows of places, a choice by its index, NaN where a parameter is inactive."""

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.axes = [axis(name, distribution) for name, distribution in space.items()]
        self.choices = np.array([one.choices for one in self.axes], dtype=np.intp)
        self.owner = np.array([i for i, one in enumerate(self.axes) for _ in range(max(1, one.choices))], dtype=np.intp)
        """The parameter of each feature."""

    def __len__(self) -> int:
        return len(self.axes)

    def points(self, params: Sequence[Mapping[str, Any]]) -> Array:
        found = np.full((len(params), len(self.axes)), np.nan)
        for column, one in enumerate(self.axes):
            name = one.name
            try:
                found[:, column] = one.units([values[name] for values in params])
            except KeyError:  # it is inactive in some
                rows = [row for row, values in enumerate(params) if name in values]
                found[rows, column] = one.units([params[row][name] for row in rows])
        return found

    def features(self, points: Array) -> Array:
        """Numbers as they are; of a choice one column each, so that two different ones are at distance 1."""
        columns = []
        for column, one in enumerate(self.axes):
            at = points[:, column]
            if one.choices:
                columns += [(at == choice) * math.sqrt(0.5) for choice in range(one.choices)]
            else:
                columns.append(np.where(np.isnan(at), 0.5, at))
        return np.stack(columns, axis=1)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Points drawn evenly."""
        found = rng.random((count, len(self.axes)))
        listed = self.choices > 0
        found[:, listed] = np.floor(found[:, listed] * self.choices[listed])
        return self.rounded(found)

    def rounded(self, points: Array) -> Array:
        for column, one in enumerate(self.axes):
            points[:, column] = one.rounded(points[:, column])
        return points

    def params(self, point: Array) -> dict[str, Any]:
        return {one.name: one.value(float(at)) for one, at in zip(self.axes, point, strict=True)}
