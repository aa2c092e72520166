"""Belief of ``ranked_gp``: how good a configuration would be, and whether constraints hold.

A trial counts by the place of its latest loss among those of all trials, whatever they were trained to; so the scale of
losses does not matter. Whether a trial is of an earlier study is one more input of the Gaussian process: where earlier
studies contradict this one, the length scale of that input is short, and they count little.
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
_MOST_PAST = 30
"""Trials of earlier studies."""
_FITTED = 56
"""Trials to which the settings are fitted, a quarter of them from earlier studies."""
_STEPS = 5
_SHORTLIST = 40
"""Candidates with the lowest means, of which expected improvement is computed."""
_WORST_MARGIN = 3.0
_CAUTION = 3
"""Power of the probability that constraints hold; with 1, most points near an active constraint barely violate it."""
_LEAST_LIKED = 5
_CENTRES = 5
_QUANTILE = NormalDist().inv_cdf


class Scored(NamedTuple):
    """The points of the model, best first, those of earlier studies last; and those whose first result is awaited.

    Points that violate constraints come after those of the same study that do not.
    """

    points: Array
    scores: Array
    """Normal quantiles of places; low is good."""
    own: int
    """Number of points of this study."""
    pending: Array
    margins: Array | None
    """By how much each violates its worst constraint, scaled; at most 0: none. NaN: not known. None: no constraints."""


def scored_points(cube: UnitCube, known: Results) -> Scored:
    margins = worst_margins(known.constraints)
    violating = np.zeros(len(known.past)) if margins is None else np.nan_to_num(margins) > 0
    chosen, places = [], list[float]()
    for group, most in ((~known.past, _MOST), (known.past, _MOST_PAST)):
        found = places_of(known.losses[group])
        order = _some(np.lexsort((found, violating[group])), most)
        chosen.append(np.flatnonzero(group)[order])
        places += found[order].tolist()
    used = np.concatenate(chosen)
    points = cube.points([known.params[at] for at in used.tolist()] + list(known.pending))
    return Scored(
        points[: len(used)],
        np.array(list(map(_QUANTILE, places))),
        len(chosen[0]),
        points[len(used) :],
        None if margins is None else margins[used],
    )


def places_of(losses: Array) -> Array:
    _, group, counts = np.unique(losses, return_inverse=True, return_counts=True)
    places: Array = (np.cumsum(counts) - 0.5 * counts) / max(1, len(losses))
    return places[group]


def worst_margins(constraints: Array | None) -> Array | None:
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
    """Expected improvement by the scores, weighted by the probability that no constraint is violated."""

    def __init__(self, cube: UnitCube, known: Scored) -> None:
        self._cube, self._known = cube, known
        own, count = known.own, len(known.points)
        self._past = count > own
        features = cube.features(known.points)
        past = np.arange(count) >= own
        of_study = np.concatenate([features, past[:, None]], axis=1) if self._past else features
        owner = np.append(cube.owner, len(cube)) if self._past else cube.owner
        order = np.argsort(known.scores, kind="stable")
        self.scores = _fitted(Data(of_study, owner, known.scores), order[~past[order]], order[past[order]])
        self._awaited = self._here(cube.features(known.pending))
        self._means = self.scores.mean(self._here(features))[0]
        self.margins, feasible = None, np.ones(count, dtype=np.bool_)
        if known.margins is not None:
            rows = np.flatnonzero(~np.isnan(known.margins))
            every, first = np.arange(len(rows)), int((rows < own).sum())
            self.margins = _fitted(Data(features[rows], cube.owner, known.margins[rows]), every[:first], every[first:])
            feasible = ~(known.margins > 0.0)
        if own:
            feasible = feasible & ~past
        self._best = float(self._means[feasible].min()) if feasible.any() else math.inf

    def _here(self, features: Array) -> Array:
        return np.concatenate([features, np.zeros((len(features), 1))], axis=1) if self._past else features

    def trust(self) -> float:
        """Share of the variance that the model explains among the points that it likes best, each left out in turn."""
        own = self._known.own
        if own < _LEAST_LIKED:
            return 0.0
        scores = self._known.scores[:own]
        expected = scores - self.scores.left_out()[:own]
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
        shown = self._here(plain)
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


def _fitted(data: Data, own: NDArray[np.intp], past: NDArray[np.intp]) -> Posterior:
    used = _some(own, _FITTED - min(len(past), _FITTED // 4))
    used = np.concatenate([used, _some(past, _FITTED - len(used))])
    return Posterior(data, fit(Data(data.features[used], data.owner, data.scores[used]), _STEPS))


def _some(order: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    if len(order) <= most:
        return order
    best, rest = order[: most // 2], order[most // 2 :]
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.intp)
    return np.concatenate([best, rest[spread]])


def _below(deviations: Array) -> Array:
    return np.array([0.5 * math.erfc(-one / math.sqrt(2.0)) for one in deviations])


def _expected_improvement(means: Array, deviations: Array, best: float) -> Array:
    by = (best - means) / deviations
    found: Array = deviations * (by * _below(by) + np.exp(-0.5 * by * by) / math.sqrt(2.0 * math.pi))
    return found
