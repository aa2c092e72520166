"""A Gaussian process with a Matern 5/2 kernel, one length scale per parameter.

Its settings are fitted from a fixed start by a few steps of average information (Gilmour et al. 1995): the curvature
costs matrix-vector products only. So they follow from the data, and a process that goes on after another has the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Array = NDArray[np.float64]

_LENGTH_SPREAD = 0.8
_NOISE, _NOISE_SPREAD = math.log(0.15), 1.0
_SIGNAL_SPREAD = 0.5
_LONGEST_STEP = 1.0
"""Longest step in the logarithm of a setting."""
_JITTER = 1e-8
_ROOT = math.sqrt(5.0)


class Settings(NamedTuple):
    """The fitted variances, and the length scale of each parameter."""

    lengths: Array
    signal: float
    noise: float


class Data(NamedTuple):
    """Observations: features of each point, the parameter of each feature, and scores."""

    features: Array
    owner: NDArray[np.intp]
    scores: Array


def fit(data: Data, steps: int) -> Settings:
    parameters = int(data.owner.max(initial=-1)) + 1
    length = math.log(0.6 * math.sqrt(max(1.0, parameters / 4)))  # in more dimensions points are farther apart
    mean = np.append(np.full(parameters, length), [0.0, _NOISE])
    spread = np.append(np.full(parameters, _LENGTH_SPREAD), [_SIGNAL_SPREAD, _NOISE_SPREAD])
    theta, shrink = mean.copy(), 1.0
    best, best_density, move = theta, -math.inf, np.zeros_like(theta)
    for last in range(steps, -1, -1):
        found = Likelihood(data, theta)
        away = (theta - mean) / spread**2
        density = found.log - 0.5 * float((theta - mean) @ away)
        if density > best_density:
            best, best_density = theta, density
            if last:
                gradient, information = found.slopes()
                _on_diagonal(information, 1.0 / spread**2)
                move = np.linalg.solve(information, gradient - away)
        else:
            shrink /= 4
        step = move * shrink
        theta = best + step * min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
    return _settings(best)


class Posterior:
    """The process's belief at other points."""

    def __init__(self, data: Data, settings: Settings) -> None:
        self._settings = settings
        self._scale = 1.0 / settings.lengths[data.owner]
        self._known = data.features * self._scale
        covariance = _matern(self._known, self._known, settings.signal)
        _on_diagonal(covariance, settings.noise + _JITTER)
        self._root, _ = inverse_root(covariance)
        self._weights = self._root.T @ (self._root @ data.scores)

    @property
    def lengths(self) -> Array:
        return self._settings.lengths

    def left_out(self) -> Array:
        """Scores less what would be expected of each from all others."""
        found: Array = self._weights / (self._root * self._root).sum(axis=0)
        return found

    def mean(self, features: Array) -> tuple[Array, Array]:
        """Expected scores, and the covariances for :meth:`deviation`."""
        cross = _matern(features * self._scale, self._known, self._settings.signal)
        return cross @ self._weights, cross

    def deviation(self, features: Array, cross: Array, awaited: Array) -> Array:
        """Standard deviation of the scores without noise, as it will be once there are results at ``awaited``.

        Those results are taken to be as expected, which leaves all means as they are.
        """
        signal = self._settings.signal
        rooted = cross @ self._root.T
        variance = signal - np.einsum("ij,ij->i", rooted, rooted)
        if len(awaited):
            there = awaited * self._scale
            known_there = _matern(there, self._known, signal) @ self._root.T
            joint = _matern(there, there, signal) - known_there @ known_there.T
            _on_diagonal(joint, self._settings.noise + _JITTER)
            shared = _matern(features * self._scale, there, signal) - rooted @ known_there.T
            variance = variance - np.einsum("ij,ij->i", shared @ np.linalg.inv(joint), shared)
        found: Array = np.sqrt(np.maximum(variance, 1e-10))
        return found


def _settings(theta: Array) -> Settings:
    values = np.exp(theta)
    return Settings(values[:-2], float(values[-2]), float(values[-1]))


def inverse_root(covariance: Array) -> tuple[Array, float]:
    lower = np.linalg.cholesky(covariance)
    return np.linalg.inv(lower), 2.0 * float(np.log(np.diagonal(lower)).sum())


def _on_diagonal(matrix: Array, added: Array | float) -> None:
    matrix.reshape(-1)[:: len(matrix) + 1] += added


def _distances(a: Array, b: Array) -> Array:
    found: Array = a @ b.T
    found *= -2.0
    found += (a * a).sum(1)[:, None] + (b * b).sum(1)
    np.maximum(found, 0.0, out=found)
    return np.sqrt(found, out=found)


def _matern(a: Array, b: Array, signal: float) -> Array:
    # Covariances; in place, since fresh memory for each step costs more than the steps.
    r = _distances(a, b)
    r *= _ROOT
    decay = np.negative(r)
    np.exp(decay, out=decay)
    squares = r * r
    squares /= 3.0
    r += 1.0
    r += squares
    r *= decay
    r *= signal
    return r


class Likelihood:
    """Likelihood of the data under the settings ``theta`` (their logarithms)."""

    def __init__(self, data: Data, theta: Array) -> None:
        settings = _settings(theta)
        self._data, self._noise, self._parameters = data, settings.noise, len(settings.lengths)
        self._scaled = data.features / settings.lengths[data.owner]
        r = _distances(self._scaled, self._scaled)
        r *= _ROOT
        decay = np.exp(-r)
        decay *= settings.signal
        self._slope = (1.0 + r) * decay
        r *= r
        r *= decay
        r /= 3.0
        r += self._slope
        self._kernel = r
        covariance = self._kernel.copy()
        _on_diagonal(covariance, settings.noise + _JITTER)
        root, log_det = inverse_root(covariance)
        self._inverse = root.T @ root
        self._weights = self._inverse @ data.scores
        self.log = -0.5 * (float(data.scores @ self._weights) + log_det)

    def slopes(self) -> tuple[Array, Array]:
        s, weights, inverted, n = self._scaled, self._weights, self._inverse, self._parameters
        slope = self._slope * (5.0 / 3.0)
        of_parameter = (self._data.owner[:, None] == np.arange(n)).astype(np.float64)
        squares, q = s * s, s.shape[1]
        columns = np.concatenate([s, squares, np.ones((len(s), 1))], axis=1)
        products = slope @ (columns * weights[:, None])
        by_feature = squares * products[:, 2 * q :] - 2.0 * s * products[:, :q] + products[:, q : 2 * q]
        changes = np.empty((len(s), n + 2))
        changes[:, :n] = by_feature @ of_parameter
        changes[:, -2] = self._kernel @ weights
        changes[:, -1] = self._noise * weights

        pulled = (inverted * slope) @ columns
        traces = np.empty(n + 2)
        traces[:n] = 2.0 * (squares * pulled[:, 2 * q :] - s * pulled[:, :q]).sum(0) @ of_parameter
        traces[-2] = float(np.vdot(inverted, self._kernel))
        traces[-1] = self._noise * float(np.diagonal(inverted).sum())
        return 0.5 * (changes.T @ weights - traces), 0.5 * changes.T @ (inverted @ changes)


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

    def values(self) -> float:
        if self.choices:
            return self.choices
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        if not self.step:
            return math.inf if self.high > self.low else 1
        return math.floor((self.distribution.high - self.distribution.low) / self.step + 1e-9) + 1

    def grid(self) -> Array:
        assert isinstance(self.distribution, FloatDistribution | IntDistribution)
        return self.units([self.distribution.low + self.step * at for at in range(int(self.values()))])

    def numbers(self, units: Array) -> Array:
        """Optuna's numbers of the values: of a choice its index."""
        return units if self.choices else self._values(units)

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
        found = rng.random((count, len(self.axes)))
        listed = self.choices > 0
        found[:, listed] = np.floor(found[:, listed] * self.choices[listed])
        return self.rounded(found)

    def rounded(self, points: Array) -> Array:
        for column, one in enumerate(self.axes):
            points[:, column] = one.rounded(points[:, column])
        return points

    def size(self) -> float:
        """Number of configurations; infinite where a parameter is continuous."""
        return math.prod(one.values() for one in self.axes)

    def listed(self) -> Array:
        units = [np.arange(one.choices) if one.choices else one.grid() for one in self.axes]
        return np.stack(np.meshgrid(*units, indexing="ij"), axis=-1).reshape(-1, len(units)).astype(np.float64)

    def configurations(self, points: Array) -> list[frozenset[tuple[str, float]]]:
        """Keys of the configurations, without inactive parameters."""
        columns = [
            [(one.name, float(f"{value:.12g}")) for value in one.numbers(points[:, column]).tolist()]
            for column, one in enumerate(self.axes)
        ]
        return [frozenset(pair for pair in row if pair[1] == pair[1]) for row in zip(*columns, strict=True)]

    def params(self, point: Array) -> dict[str, Any]:
        return {one.name: one.value(float(at)) for one, at in zip(self.axes, point, strict=True)}
