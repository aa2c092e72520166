"""The Gaussian process of ``ranked_gp``: scores of results by configuration, rung and trial."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
Points = tuple[Array, ...]
"""Features, rung and trial of each; where all have one rung and trial, these stand there once."""

_PRIOR = (1.0, 10.0, 0.3, 10.0, 0.3)
"""Medians of what follows the lengths in the settings; a median length is 0.6, and longer with many parameters."""


def scores_of(results: Array) -> Array:
    """Normal quantiles of the places of results, rows of (violation of constraints, loss); low is good."""
    _, group, counts = np.unique(results, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(ndtri((np.cumsum(counts) - 0.5 * counts) / len(results))[group.ravel()])


def _terms(a: Points, b: Points, owner: NDArray[np.intp], settings: Array) -> tuple[Array, ...]:
    # Covariances; distances in rungs; terms of the configuration (Matern 5/2) and of the trial; slope of the first.
    signal, reach, own, own_reach, _ = settings[-5:]
    apart = np.abs(a[1][:, None] - b[1])
    r = math.sqrt(5.0) * cdist(a[0] / settings[owner], b[0] / settings[owner])
    decay = signal * np.exp(-r - apart / reach)
    slope = (1.0 + r) * decay
    same = (a[2][:, None] == b[2]) * (own * np.exp(-apart / own_reach))
    smooth = slope + r * r / 3.0 * decay
    return np.exp(-apart / 2.0) + smooth + same, apart, smooth, same, slope


def _inverse_root(covariances: Array, noise: float) -> Array:
    np.fill_diagonal(covariances, np.diagonal(covariances) + noise)
    return np.asarray(dtrtri(np.linalg.cholesky(covariances), lower=1)[0])


def fit(known: Points, scores: Array, owner: NDArray[np.intp]) -> Array:
    """The most probable settings, by L-BFGS from a fixed start, so that they follow from the data alone.

    Args:
        owner: the parameter of each feature.

    Returns:
        A length for each parameter; variance of the function of the configuration, and the rungs over which it stays
        alike; both of what is a trial's own; variance of noise.
    """
    count = int(owner[-1]) + 1
    # in more dimensions points are farther apart
    mean = np.log([0.6 * math.sqrt(max(1.0, count / 4))] * count + list(_PRIOR))
    spread = np.array([0.8] * count + [1.0] * len(_PRIOR))  # of the logarithms
    of_parameter = (owner[:, None] == np.arange(count)).astype(np.float64)

    def loss(theta: Array) -> tuple[float, Array]:
        settings = np.exp(theta)
        covariances, apart, smooth, own, slope = _terms(known, known, owner, settings)
        root = _inverse_root(covariances, settings[-1])
        weights = root.T @ (root @ scores)
        pull = root.T @ root - np.outer(weights, weights)
        x, slope, smooth, own = known[0] / settings[owner], 5.0 / 3.0 * pull * slope, pull * smooth, pull * own
        of_lengths = ((slope.sum(1)[:, None] * x - slope @ x) * x).sum(0) @ of_parameter
        of_reach, of_own_reach = np.vdot(smooth, apart) / settings[-4], np.vdot(own, apart) / settings[-2]
        others = np.array([smooth.sum(), of_reach, own.sum(), of_own_reach, settings[-1] * np.trace(pull)])
        away = (theta - mean) / spread
        value = 0.5 * (scores @ weights + away @ away) - np.log(np.diagonal(root)).sum()
        return float(value), np.append(of_lengths, 0.5 * others) + away / spread

    bounds = np.stack([mean - 4 * spread, mean + 4 * spread], axis=1)  # outside, covariances may be singular
    found: Array = minimize(loss, mean, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 20}).x
    return np.exp(found)


class Posterior:
    """Belief about scores.

    Args:
        awaited: what is trained now. Results as expected are assumed there: means stay, deviations shrink.
    """

    def __init__(self, known: Points, scores: Array, awaited: Points, owner: NDArray[np.intp], settings: Array) -> None:
        self._points = tuple(map(np.concatenate, zip(known, awaited, strict=True)))
        self._owner, self._settings, self._scores = owner, settings, scores
        self._root = _inverse_root(_terms(self._points, self._points, owner, settings)[0], settings[-1])
        self._known_root = self._root[: len(scores), : len(scores)]
        self._rooted = self._known_root @ scores

    def at(self, points: Points) -> tuple[Array, Array]:
        reduced = self._root @ _terms(self._points, points, self._owner, self._settings)[0]
        variance = 1.0 + self._settings[-5] - (reduced * reduced).sum(0)
        return self._rooted @ reduced[: len(self._rooted)], np.sqrt(np.maximum(variance, 1e-10))

    def improvement(self, points: Points, best: float) -> Array:
        means, deviations = self.at(points)
        by = (best - means) / deviations
        return np.asarray(deviations * (by * ndtr(by) + np.exp(-by * by / 2.0) / math.sqrt(2.0 * math.pi)))

    def trust(self, rows: NDArray[np.intp]) -> float:
        """Share of the variance explained among those known points that are liked best, each left out in turn."""
        left_out = self._known_root.T @ self._rooted / (self._known_root * self._known_root).sum(0)
        scores, expected = self._scores[rows], (self._scores - left_out)[rows]
        liked = np.argsort(expected, kind="stable")[: max(5, len(rows) // 4)]
        if scores[liked].std() * expected[liked].std() == 0.0:
            return 0.0
        return max(0.0, float(np.corrcoef(scores[liked], expected[liked])[0, 1])) ** 2
