"""The next point, from scored ones: the one of many candidates with the largest expected improvement."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpo_core.samplers.ranked_gp.gaussian_process import Data, Posterior, fit
from hpo_core.samplers.ranked_gp.inactive import as_active
from hpo_core.samplers.ranked_gp.ranking import scored
from hpo_core.samplers.ranked_gp.trial_results import Results
from hpo_core.samplers.ranked_gp.unit_cube import UnitCube

Array = NDArray[np.float64]

_MOST = 150
"""Points of this study in the Gaussian process: half of them the best, the others spread evenly over the rest."""
_FITTED = 64
"""Points to which its settings are fitted."""
_STEPS = 5
_CANDIDATES = 200
_SHORTLIST = 40
"""Candidates with the lowest means, of which expected improvement is computed."""
_EXCESS = 0.5
"""Noise, beyond the common one, of a score that says nothing of the highest rung."""
_PAST, _PAST_GROWTH = 0.3, 0.05
"""Noise of a score of an earlier study; it grows with each result of this one, so that what is foreign fades."""
_PAST_MOST = 50
"""The best points of earlier studies that are used."""


class Scored(NamedTuple):
    """The points of the model, best first, those of earlier studies last; and those whose first result is awaited."""

    points: Array
    scores: Array
    """Low is good."""
    excess: Array
    """Noise of a score beyond that of all."""
    own: int
    """So many of them are of this study."""
    pending: Array


def scored_points(cube: UnitCube, known: Results) -> Scored:
    """At most 150 points with scores, and 50 of earlier studies, which are ranked among themselves."""
    own = int((~known.past).sum())
    chosen, scores, excess = [], [], []
    for group, most, noise in ((~known.past, _MOST, 0.0), (known.past, _PAST_MOST, _PAST + _PAST_GROWTH * own)):
        values, agreement = scored(known.results[group])
        order = _some(np.argsort(values, kind="stable"), most)
        chosen.append(np.flatnonzero(group)[order])
        scores.append(values[order])
        excess.append(_EXCESS * (1.0 - agreement[order] ** 2) + noise)
    used = np.concatenate(chosen)
    points = cube.points([known.params[at] for at in used.tolist()] + list(known.pending))
    shares = np.concatenate(scores), np.concatenate(excess), len(chosen[0])
    return Scored(points[: len(used)], *shares, points[len(used) :])


def best_expected(cube: UnitCube, rng: np.random.Generator, known: Scored) -> Array:
    """The candidate with the largest expected improvement."""
    features, awaited = cube.features(known.points), cube.features(known.pending)
    observed = Data(features, cube.owner, known.scores, known.excess)
    past = np.arange(known.own, len(features))[: max(0, _FITTED - known.own)]
    some = np.concatenate([_some(np.arange(known.own), _FITTED), past])
    fitted = Data(features[some], cube.owner, known.scores[some], known.excess[some])
    model = Posterior(observed, fit(fitted, len(cube), _STEPS))

    points = cube.draw(rng, _CANDIDATES)
    seen = np.concatenate([known.points, known.pending])
    shown = cube.features(as_active(points, seen, cube))
    means, cross = model.mean(shown)
    short = np.argsort(means, kind="stable")[:_SHORTLIST]
    gains = _expected_improvement(means[short], model.deviation(shown[short], cross[short], awaited), known.scores[0])
    ranked = short[np.argsort(-gains, kind="stable")]
    tried = np.concatenate([features[: known.own], awaited])
    fresh = (at for at in ranked if not (np.abs(tried - shown[at]).max(axis=1) < 1e-9).any())
    chosen: Array = points[next(fresh, ranked[0])]
    return chosen


def _some(order: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    if len(order) <= most:
        return order
    best, rest = order[: most // 2], order[most // 2 :]
    spread = np.linspace(0, len(rest) - 1, most - len(best)).round().astype(np.intp)
    return np.concatenate([best, rest[spread]])


def _expected_improvement(means: Array, deviations: Array, best: float) -> Array:
    by = (best - means) / deviations
    below = np.array([0.5 * math.erfc(-one / math.sqrt(2.0)) for one in by])
    found: Array = deviations * (by * below + np.exp(-0.5 * by * by) / math.sqrt(2.0 * math.pi))
    return found
