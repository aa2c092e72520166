"""Belief of ``ranked_gp``: what a configuration's result on the highest rung will be.

Results of all rungs are ranked together, so their scale does not matter, and the rung is one more input of the
Gaussian process. How far results of low rungs say something of the highest one is the length scale of that input,
learned as those of the parameters are. Whether a result is from an earlier study is an input as well: where earlier
studies contradict this one, its length is short, and they count little.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpo_core.samplers.gaussian_process import Data, Posterior, UnitCube, fit
from hpo_core.samplers.ranked_results import Results

Array = NDArray[np.float64]

_MOST = 100
"""Trials of this study in the model: half of them the best, the others spread evenly over the rest."""
_MOST_LOWER = 30
"""Results of their lower rungs, those of the best trials first."""
_MOST_PAST = 30
"""Results of earlier studies."""
_FITTED = 56
"""Results to which the settings are fitted, a quarter of them from earlier studies."""
_STEPS = 5
_SHORTLIST = 40
"""Candidates with the lowest means, of which expected improvement is computed."""
_WORST_MARGIN = 3.0
_CAUTION = 3
"""Power of the probability that constraints hold; with 1, most points near an active constraint barely violate it."""
_LEAST_LIKED = 5
_CENTRES = 5
_QUANTILE = NormalDist().inv_cdf


class Observations(NamedTuple):
    """Results that the model is made of. Trials of earlier studies come last."""

    points: Array
    """A row per trial, best first; those that violate constraints after those that do not."""
    own: int
    """Number of trials of this study."""
    trial: NDArray[np.intp]
    """The trial of each result; the first results are the last ones of each trial, in the order of ``points``."""
    inputs: Array
    """Besides the parameters: the place of the rung, 1 for an earlier study. Only those that differ."""
    scores: Array
    """Normal quantiles of places; low is good."""
    pending: Array
    """Points without a result yet."""
    margins: Array | None
    """By how much each trial violates its worst constraint, scaled; at most 0: none. None: there are no constraints."""


def observed(cube: UnitCube, known: Results) -> Observations:
    """The results of at most 100 trials of this study, and some of earlier ones."""
    margins = worst_margins(known.constraints)
    violating = np.zeros(len(known.past)) if margins is None else np.nan_to_num(margins) > 0
    there = ~np.isnan(known.results)
    highest = known.results.shape[1] - 1 - np.argmax(there[:, ::-1], axis=1)
    placed = np.full(known.results.shape, np.nan)
    last: list[NDArray[np.intp]] = []
    lower: list[NDArray[np.intp]] = []
    for group, most, most_lower in ((~known.past, _MOST, _MOST_LOWER), (known.past, _MOST_PAST, 0)):
        rows = np.flatnonzero(group)
        if not len(rows):
            continue
        ranked = there & group[:, None]
        placed[ranked] = places(known.results[ranked])
        reached = placed[rows, highest[rows]]
        chosen = rows[some(np.lexsort((reached, violating[rows])), most)]
        below = ranked[chosen]
        below[np.arange(len(chosen)), highest[chosen]] = False
        last.append(chosen)
        lower.append(np.argwhere(below)[:most_lower])
    trials, more = np.concatenate(last), np.concatenate(lower)
    trial = np.concatenate([np.arange(len(trials)), more[:, 0]])
    rung = np.concatenate([highest[trials], more[:, 1]])
    inputs = np.stack([known.places[rung], known.past[trials[trial]]], axis=1)
    points = cube.points([known.params[at] for at in trials.tolist()] + list(known.pending))
    return Observations(
        points[: len(trials)],
        int((~known.past[trials]).sum()),
        trial,
        inputs[:, [len(known.places) > 1, bool(known.past.any())]],
        np.array(list(map(_QUANTILE, placed[trials[trial], rung].tolist()))),
        points[len(trials) :],
        None if margins is None else margins[trials],
    )


def places(results: Array) -> Array:
    """Place of each in (0, 1); ties share the mean of theirs."""
    n = len(results)
    order = np.argsort(results)
    ordered = results[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    found = np.empty(n)
    if len(starts) == n:
        found[order] = (np.arange(n) + 0.5) / n
    else:
        counts = np.diff(np.append(starts, n))
        found[order] = np.repeat((starts + 0.5 * counts) / n, counts)
    return found


def worst_margins(constraints: Array | None) -> Array | None:
    """The largest of a trial's constraints, each in units of its median size; from -3 to 3."""
    if constraints is None:
        return None
    scaled = np.empty_like(constraints)
    for column, values in enumerate(constraints.T):
        sizes = np.abs(values[np.isfinite(values) & (values != 0.0)])
        scaled[:, column] = values / (np.median(sizes) if len(sizes) else 1.0)
        if not (values < 0.0).any():  # such as 0 and 1: whether, not by how much
            scaled[values == 0.0, column] = -1.0
    found: Array = np.clip(np.arcsinh(scaled.max(axis=1)), -_WORST_MARGIN, _WORST_MARGIN)
    return found


class Belief:
    """Expected improvement on the highest rung, weighted by the probability that no constraint is violated."""

    def __init__(self, cube: UnitCube, known: Observations) -> None:
        self._cube, self._known = cube, known
        features = cube.features(known.points)
        more = known.inputs.shape[1]
        self._owner = np.concatenate([cube.owner, len(cube) + np.arange(more)])
        self._asked = known.inputs[: known.own].max(axis=0, initial=0.0)
        self._awaited = self._on_top(cube.features(known.pending))
        of_results = np.concatenate([features[known.trial], known.inputs], axis=1)
        past = known.trial >= known.own
        order = np.argsort(known.scores, kind="stable")
        self.scores = _fitted(of_results, self._owner, known.scores, order[~past[order]], order[past[order]])
        self._means = self.scores.mean(self._on_top(features))[0]
        self.margins, feasible = None, np.ones(len(features), dtype=np.bool_)
        if known.margins is not None:
            rows = np.flatnonzero(~np.isnan(known.margins))
            own = int((rows < known.own).sum())
            every = np.arange(len(rows))
            self.margins = _fitted(features[rows], cube.owner, known.margins[rows], every[:own], every[own:])
            feasible = ~(known.margins > 0.0)
        here = feasible[: known.own] if known.own else feasible
        self._best = float(self._means[: len(here)][here].min()) if here.any() else math.inf

    def _on_top(self, features: Array) -> Array:
        """Features of points as results of this study on the highest rung."""
        return np.concatenate([features, np.broadcast_to(self._asked, (len(features), len(self._asked)))], axis=1)

    def trust(self) -> float:
        """Share of the variance that the model explains among the points that it likes best, each left out in turn."""
        own = self._known.own
        if own < _LEAST_LIKED:
            return 0.0
        scores = self._known.scores[:own]
        expected = scores - self.scores.left_out(self._known.trial)[:own]
        liked = np.argsort(expected, kind="stable")[: max(_LEAST_LIKED, own // 4)]
        scores, expected = scores[liked], expected[liked]
        spread = float(scores.std() * expected.std())
        if spread == 0.0:
            return 0.0
        correlation = float(((scores - scores.mean()) * (expected - expected.mean())).mean()) / spread
        return max(0.0, correlation) ** 2

    def near(self, rng: np.random.Generator, count: int) -> Array:
        """Points near the known ones with the lowest means, at all distances up to the lengths of the model."""
        cube = self._cube
        best = self._known.points[np.argsort(self._means, kind="stable")[:_CENTRES]]
        points, elsewhere = best[rng.integers(len(best), size=count)], cube.draw(rng, count)
        points = np.where(np.isnan(points), elsewhere, points)
        lengths = np.minimum(self.scores.lengths[: len(cube)], 1.0)
        reach = lengths * 10.0 ** rng.uniform(-2.0, 0.0, (count, 1)) / 2
        moved = np.abs(points + reach * rng.standard_normal(points.shape))  # folded in, else ends are proposed again
        moved = np.clip(1.0 - np.abs(1.0 - moved), 0.0, 1.0)
        listed = cube.choices > 0
        moved[:, listed] = np.where(rng.random((count, listed.sum())) < 0.5, elsewhere[:, listed], points[:, listed])
        changed = rng.random(points.shape) < rng.choice([1.0 / len(cube), 0.5, 1.0], size=(count, 1))
        return cube.rounded(np.where(changed, moved, points))

    def best(self, points: Array) -> tuple[int, float]:
        """The most promising point, and how promising it is."""
        plain = self._cube.features(points)
        shown = self._on_top(plain)
        means, cross = self.scores.mean(shown)
        wanted = means
        if self.margins is not None:
            margins, margin_cross = self.margins.mean(plain)
            wanted = np.where(np.isinf(self._best), 0.0, means) + np.maximum(margins, 0.0)
        short = np.argsort(wanted, kind="stable")[:_SHORTLIST]
        gains = np.ones(len(short))
        if self._best < math.inf:
            deviations = self.scores.deviation(shown[short], cross[short], self._awaited)
            gains = _expected_improvement(means[short], deviations, self._best)
        if self.margins is not None:
            deviations = self.margins.deviation(plain[short], margin_cross[short], plain[:0])
            gains = gains * _below(-margins[short] / deviations) ** _CAUTION
        at = int(np.argmax(gains))
        return int(short[at]), float(gains[at])


def _fitted(
    features: Array, owner: NDArray[np.intp], values: Array, own: NDArray[np.intp], past: NDArray[np.intp]
) -> Posterior:
    used = some(own, _FITTED - min(len(past), _FITTED // 4))
    used = np.concatenate([used, some(past, _FITTED - len(used))])
    settings = fit(Data(features[used], owner, values[used]), int(owner.max()) + 1, _STEPS)
    return Posterior(Data(features, owner, values), settings)


def some(order: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """The first half of so many, and the others spread evenly over the rest."""
    if len(order) <= most:
        return order
    best, rest = order[: most // 2], order[most // 2 :]
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.intp)
    return np.concatenate([best, rest[spread]])


def _below(deviations: Array) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-one / math.sqrt(2.0)) for one in deviations])


def _expected_improvement(means: Array, deviations: Array, best: float) -> Array:
    by = (best - means) / deviations
    found: Array = deviations * (by * _below(by) + np.exp(-0.5 * by * by) / math.sqrt(2.0 * math.pi))
    return found
