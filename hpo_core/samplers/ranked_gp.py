"""``ranked_gp``: proposals by one Gaussian process on the ranks of all results, after MOBSTER (Klein et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import ndtr, ndtri

from hpo_core.model.events import Event, JobCompleted, TrialAbandoned, TrialCreated
from hpo_core.model.rng import Stream, derive_seed
from hpo_core.model.space import ListedParameter
from hpo_core.model.trial import Params
from hpo_core.samplers.sampler import SamplerContext

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
        left_out: Array = self._known_root.T @ self._rooted / (self._known_root * self._known_root).sum(0)
        scores, expected = self._scores[rows], (self._scores - left_out)[rows]
        liked = np.argsort(expected, kind="stable")[: max(5, len(rows) // 4)]
        if scores[liked].std() * expected[liked].std() == 0.0:
            return 0.0
        return max(0.0, float(np.corrcoef(scores[liked], expected[liked])[0, 1])) ** 2


_MOST, _FITTED = 150, 100
"""Results in the model, and those that its settings are fitted to."""
_RANDOM = 0.1
"""Share of configurations that stay random after the first model."""
_GROWTH = 1.08
"""The settings are fitted anew after so many times the results."""
_ENOUGH = 8
"""Improvement is expected on the highest rung with so many results."""
_DRAWN, _NEAR, _CENTRES = 200, 100, 5
"""Candidates drawn evenly; those near the best configurations, at most; how many of these there are."""


class RankedGP:
    """Proposes the configuration with the largest expected improvement.

    A result counts by its place among those of all rungs, so the scale of losses does not matter. Results that violate
    constraints come last. Results of earlier studies are ranked apart, and fill what this study's leave of the model.
    """

    def __init__(self, context: SamplerContext, n_startup_trials: int | None = None) -> None:
        self._space, self._seed, self._names = context.space, context.seed, context.space.order
        self._enough = len(self._names) + 4 if n_startup_trials is None else n_startup_trials
        parameters = [context.space.parameters[name] for name in self._names]
        self._choices = np.array([len(p.listed()) if isinstance(p, ListedParameter) else 0 for p in parameters])
        self._choice = np.concatenate([range(count) if count else [-1] for count in self._choices.tolist()])
        """A choice is one feature each, so that two different ones are at distance 1; -1: a number."""
        self._owner = np.append(np.repeat(np.arange(len(parameters)), np.maximum(self._choices, 1)), len(parameters))
        """The parameter of each feature; the last feature says that it is of an earlier study."""
        self._is_plain = not context.space.has_forbidden and not any(map(context.space.above, self._names))
        self._places: dict[int, Array] = {}
        self._awaited: dict[int, None] = {}
        self._tried: set[str] = set()
        self._results: list[tuple[int, int, float, float]] = []
        """Trial, resource, violation of constraints, loss; trials of earlier studies are below 0."""
        self._past: list[tuple[int, int, float, float]] = []
        for number, one in enumerate(context.past):
            self._places[-1 - number] = self._place(one.params)
            self._past += [(-1 - number, resource, 0.0, losses[0]) for resource, losses in one.losses.items()]
        self._fitted: dict[int, Array] = {}
        """The latest settings of the model, by the number of results that they are fitted to."""

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            self._places[event.trial] = self._place(event.params)
            self._tried.add(repr(sorted(event.params.items())))
            self._awaited[event.trial] = None
        elif isinstance(event, JobCompleted):
            loss = math.inf if event.loss is None else event.loss
            self._results.append((event.trial, event.resource, event.violation, loss))
        if isinstance(event, JobCompleted | TrialAbandoned):
            self._awaited.pop(event.trial, None)

    def propose(self, number: int, given: Params | None = None) -> Params:
        stream = Stream(self._seed, "params", number)
        rng = np.random.default_rng(derive_seed(self._seed, "ranked_gp", number))
        if given is not None or len(self._results + self._past) < self._enough or rng.random() < _RANDOM:
            return self._space.draw(stream, given)
        fresh = (one for one in self._candidates(rng) if repr(sorted(one.items())) not in self._tried)
        return next(fresh, None) or self._space.draw(stream)

    def _candidates(self, rng: np.random.Generator) -> Iterator[Params]:
        # Candidates that are not forbidden, the largest expected improvement first.
        from hpo_core.samplers.ranked_gp import Posterior, fit  # SciPy is optional

        count = len(self._results)
        prefix = int(_GROWTH ** int(math.log(max(count, 1), _GROWTH)))  # so a resumed study fits to the same
        if prefix not in self._fitted:
            self._fitted = {prefix: fit(*self._known(prefix, _FITTED), self._owner)}
        settings = self._fitted[prefix]
        known, scores = self._known(count, _MOST)
        awaited = np.array(list(self._awaited), dtype=np.float64)
        model = Posterior(known, scores, self._points(awaited, 0.0 * awaited), self._owner, settings)
        by_rung = np.bincount(known[1].astype(np.intp))
        top = np.flatnonzero(by_rung >= min(_ENOUGH, by_rung.max()))[-1:].astype(np.float64)
        trials, first = np.unique(known[2], return_index=True)
        places, new = np.array([self._places[trial] for trial in trials.tolist()]), np.array([math.inf])
        means, _ = model.at((self._features(places, new), top, new))
        liked = places[np.argsort(means, kind="stable")[:_CENTRES]]
        near = self._near(rng, liked, round(_NEAR * model.trust(first)), settings[: len(self._names)])
        drawn = np.concatenate([rng.random((_DRAWN, len(self._names))), near])
        if not self._is_plain:
            allowed = [params for params in map(self._params, drawn) if not self._space.forbidden_by(params)]
            drawn = np.array(list(map(self._place, allowed))).reshape(-1, len(self._names))
        gains = model.improvement((self._features(drawn, new), top, new), float(means.min()))
        return map(self._params, drawn[np.argsort(-gains, kind="stable")])

    def _near(self, rng: np.random.Generator, liked: Array, count: int, lengths: Array) -> Array:
        # Places near those that are liked, at all distances up to the lengths of the model.
        elsewhere, centres = rng.random((count, len(lengths))), liked[rng.integers(len(liked), size=count)]
        centres = np.where(np.isnan(centres), elsewhere, centres)
        reach = np.minimum(lengths, 1.0) * 10.0 ** rng.uniform(-2.0, 0.0, (count, 1)) / 2.0
        # folded in at both ends, else these are proposed again and again
        moved = np.abs((centres + reach * rng.standard_normal(centres.shape) + 1.0) % 2.0 - 1.0)
        moved = np.where(self._choices > 0, np.where(rng.random(centres.shape) < 0.5, elsewhere, centres), moved)
        changed = rng.random(centres.shape) < rng.choice([1.0 / len(lengths), 0.5, 1.0], size=(count, 1))
        return np.where(changed, moved, centres)

    def _known(self, count: int, most: int) -> tuple[tuple[Array, Array, Array], Array]:
        # At most so many of the first ``count`` results and of those of earlier studies, and their scores.
        from hpo_core.samplers.ranked_gp import scores_of

        groups = [group for group in (self._results[:count], self._past) if group]
        scores = np.concatenate([scores_of(np.array([result[2:] for result in group])) for group in groups])
        trials, resources = np.array([result[:2] for group in groups for result in group]).T
        rungs = np.unique(resources, return_inverse=True)[1].astype(np.float64)
        order = np.argsort(scores, kind="stable")
        later = np.where(trials < 0, 2, rungs == 0)[order]
        chosen = order[:0]
        for group in range(3):
            chosen = np.append(chosen, _some(order[later == group], most - len(chosen)))
        return self._points(trials[chosen], rungs[chosen]), scores[chosen]

    def _points(self, trials: NDArray[Any], rungs: Array) -> tuple[Array, Array, Array]:
        places = np.array([self._places[trial] for trial in trials.tolist()]).reshape(-1, len(self._names))
        return self._features(places, trials), rungs, trials

    def _features(self, places: Array, trials: Array) -> Array:
        at, count = places[:, self._owner[:-1]], self._choices[self._owner[:-1]]
        chosen = math.sqrt(0.5) * (np.floor(at * count) == self._choice)
        numbers = np.nan_to_num(at, nan=0.5)
        return np.column_stack([np.where(count > 0, chosen, numbers), np.broadcast_to(trials < 0, len(places))])

    def _place(self, params: Mapping[str, Any]) -> Array:
        # A number from 0 to 1 for each parameter; NaN: it takes no part.
        found = np.full(len(self._names), np.nan)
        for at, name in enumerate(self._names):
            if name in params:
                parameter = self._space.parameters[name]
                share = parameter.share(params[name])
                found[at] = (parameter.on_scale(params[name]) + 0.5) / self._choices[at] if share is None else share
        return found

    def _params(self, place: Array) -> Params:
        found: Params = {}
        for name, share in zip(self._names, np.nan_to_num(place, nan=0.5).tolist(), strict=True):
            if self._space.is_active(name, found):
                found[name] = self._space.parameters[name].at_share(share)
        return found


def _some(order: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    # The best half, and a spread of the others.
    spread = np.linspace(most // 2, len(order) - 1, most - most // 2).round().astype(np.intp)
    return order if len(order) <= most else np.append(order[: most // 2], order[spread])
