"""A Gaussian process with a Matern 5/2 kernel, one length scale per parameter.

Its settings are fitted from a fixed start by a few steps of average information (Gilmour et al. 1995): the curvature
costs matrix-vector products only. So they follow from the data, and a process that goes on after another has the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LENGTH_SPREAD = 0.8
_NOISE, _NOISE_SPREAD = math.log(0.15), 1.0
_SIGNAL_SPREAD = 0.5
_LONGEST_STEP = 1.0
"""In the logarithm of a setting."""
_JITTER = 1e-8
_ROOT = math.sqrt(5.0)


class Settings(NamedTuple):
    """What is fitted: variances, and the length scale of each parameter."""

    lengths: Array
    signal: float
    noise: float


class Data(NamedTuple):
    """Observations: features of each point, the parameter of each feature, scores, and the noise beyond the common."""

    features: Array
    owner: NDArray[np.intp]
    scores: Array
    excess: Array


def prior_log_length(parameters: int) -> float:
    """In more dimensions points are farther apart."""
    return math.log(0.6 * math.sqrt(max(1.0, parameters / 4)))


def fit(data: Data, parameters: int, steps: int) -> Settings:
    """Settings near the most probable ones."""
    mean = np.append(np.full(parameters, prior_log_length(parameters)), [0.0, _NOISE])
    spread = np.append(np.full(parameters, _LENGTH_SPREAD), [_SIGNAL_SPREAD, _NOISE_SPREAD])
    theta, shrink = mean.copy(), 1.0
    best, best_value = theta, -math.inf
    value, gradient, information = _posterior(data, theta, mean, spread)
    for _ in range(steps):
        if value > best_value:
            best, best_value, kept = theta, value, (gradient, information)
        else:
            shrink /= 4
            gradient, information = kept
        move = np.linalg.solve(information, gradient) * shrink
        theta = best + move * min(1.0, _LONGEST_STEP / max(float(np.abs(move).max()), 1e-12))
        value, gradient, information = _posterior(data, theta, mean, spread)
    return _settings(theta if value > best_value else best)


class Posterior:
    """What the process believes at other points."""

    def __init__(self, data: Data, settings: Settings) -> None:
        self._settings = settings
        self._scale = 1.0 / settings.lengths[data.owner]
        self._known = data.features * self._scale
        covariance = settings.signal * _matern(_distances(self._known, self._known))
        covariance[np.diag_indices_from(covariance)] += settings.noise + data.excess + _JITTER
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ data.scores

    def mean(self, features: Array) -> tuple[Array, Array]:
        """Expected scores, and the covariances for :meth:`deviation`."""
        cross = self._settings.signal * _matern(_distances(features * self._scale, self._known))
        return cross @ self._weights, cross

    def deviation(self, features: Array, cross: Array, awaited: Array) -> Array:
        """Standard deviation of the scores without noise, as it will be once there are results at ``awaited``.

        Those results are taken to be as expected, which leaves all means as they are.
        """
        signal = self._settings.signal
        partly = cross @ self._inverse
        variance = signal - np.einsum("ij,ij->i", partly, cross)
        if len(awaited):
            there = awaited * self._scale
            to_known = signal * _matern(_distances(there, self._known))
            joint = signal * _matern(_distances(there, there)) - to_known @ self._inverse @ to_known.T
            joint[np.diag_indices_from(joint)] += self._settings.noise + _JITTER
            shared = signal * _matern(_distances(features * self._scale, there)) - partly @ to_known.T
            variance = variance - np.einsum("ij,ij->i", shared @ np.linalg.inv(joint), shared)
        found: Array = np.sqrt(np.maximum(variance, 1e-10))
        return found


def _settings(theta: Array) -> Settings:
    values = np.exp(theta)
    return Settings(values[:-2], float(values[-2]), float(values[-1]))


def _distances(a: Array, b: Array) -> Array:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * (a @ b.T)
    found: Array = np.sqrt(np.maximum(squares, 0.0))
    return found


def _matern(distances: Array) -> Array:
    r = _ROOT * distances
    found: Array = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return found


def _posterior(data: Data, theta: Array, mean: Array, spread: Array) -> tuple[float, Array, Array]:
    """Log density, its gradient, and the average information (observed and expected curvature halved)."""
    settings = _settings(theta)
    s = data.features / settings.lengths[data.owner]
    r = _ROOT * _distances(s, s)
    decay = np.exp(-r)
    kernel = settings.signal * (1.0 + r + r * r / 3.0) * decay
    covariance = kernel.copy()
    covariance[np.diag_indices_from(covariance)] += settings.noise + data.excess + _JITTER
    inverse = np.linalg.inv(covariance)
    weights = inverse @ data.scores
    log_det = 2.0 * float(np.log(np.diagonal(np.linalg.cholesky(covariance))).sum())

    slope = settings.signal * (5.0 / 3.0) * (1.0 + r) * decay
    parameters = len(theta) - 2
    squares = s * s
    q = s.shape[1]
    products = slope @ np.concatenate([weights[:, None], s * weights[:, None], squares * weights[:, None]], axis=1)
    by_feature = squares * products[:, :1] - 2.0 * s * products[:, 1 : q + 1] + products[:, q + 1 :]
    changes = np.zeros((len(s), parameters + 2))
    np.add.at(changes.T, data.owner, by_feature.T)
    changes[:, -2] = kernel @ weights
    changes[:, -1] = settings.noise * weights

    pull = inverse * slope
    traces = np.zeros(parameters + 2)
    np.add.at(traces, data.owner, 2.0 * (squares.T @ pull.sum(1)) - 2.0 * np.einsum("ij,ij->j", s, pull @ s))
    traces[-2] = float((inverse * kernel).sum())
    traces[-1] = settings.noise * float(np.trace(inverse))

    away = (theta - mean) / spread**2
    gradient = 0.5 * (changes.T @ weights - traces) - away
    information = 0.5 * changes.T @ (inverse @ changes)
    information[np.diag_indices_from(information)] += 1.0 / spread**2
    value = -0.5 * (float(data.scores @ weights) + log_det + float((theta - mean) @ away))
    return value, gradient, information
