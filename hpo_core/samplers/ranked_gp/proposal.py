"""The next point, from scored ones: the one of many candidates with the largest expected improvement."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpo_core.samplers.ranked_gp.candidates import as_active, near
from hpo_core.samplers.ranked_gp.gaussian_process import Data, Posterior, fit
from hpo_core.samplers.ranked_gp.ranking import scored
from hpo_core.samplers.ranked_gp.trial_results import Results
from hpo_core.samplers.ranked_gp.unit_cube import UnitCube

Array = NDArray[np.float64]

_MOST = 150
"""Points of the Gaussian process: half of them the best, the others spread evenly over the rest."""
_FITTED = 64
"""Points to which its settings are fitted."""
_STEPS = 5
_EVENLY, _NEAR = 150, 50
"""Candidates drawn from the whole space, and near the best points."""
_PARENTS = 5
_SHORTLIST = 40
"""Candidates with the lowest means, of which expected improvement is computed."""
_EXCESS = 0.5
"""Noise, beyond the common one, of a score that says nothing of the highest rung."""
_PAST, _PAST_GROWTH = 0.3, 0.05
"""Noise of a score of an earlier study; it grows with each result of this one, so that what is foreign fades."""
_PAST_MOST = 50
"""The best points of earlier studies that are used."""


class Scored(NamedTuple):
    """What is known: points with scores (low is good), and points whose first result is awaited."""

    points: Array
    scores: Array
    excess: Array
    """Noise of a score beyond that of all."""
    past: NDArray[np.bool_]
    """Those of earlier studies."""
    pending: Array


def scored_points(cube: UnitCube, known: Results) -> Scored:
    """Points with scores; those of earlier studies are ranked among themselves."""
    scores, excess = np.zeros(len(known.params)), np.zeros(len(known.params))
    own = ~known.past
    for group, noise in ((own, 0.0), (known.past, _PAST + _PAST_GROWTH * int(own.sum()))):
        if group.any():
            values, agreement = scored(known.results[group])
            scores[group], excess[group] = values, _EXCESS * (1.0 - agreement**2) + noise
    return Scored(cube.points(known.params), scores, excess, known.past, cube.points(known.pending))


def best_expected(cube: UnitCube, rng: np.random.Generator, known: Scored) -> Array:
    """The candidate with the largest expected improvement."""
    order = np.argsort(known.scores, kind="stable")
    own, past = order[~known.past[order]], order[known.past[order]][:_PAST_MOST]
    features = cube.features(known.points)

    def data(chosen: NDArray[np.intp]) -> Data:
        return Data(features[chosen], cube.owner, known.scores[chosen], known.excess[chosen])

    settings = fit(data(np.concatenate([_some(own, _FITTED), past[: max(0, _FITTED - len(own))]])), len(cube), _STEPS)
    observed = data(np.concatenate([_some(own, _MOST), past]))
    model = Posterior(observed, settings)
    if len(known.pending):
        awaited = cube.features(known.pending)
        lies = np.maximum(model.mean(awaited)[0], 0.0)  # no better than the middle, so that others go elsewhere
        observed = Data(
            np.concatenate([observed.features, awaited]),
            cube.owner,
            np.concatenate([observed.scores, lies]),
            np.concatenate([observed.excess, np.zeros(len(lies))]),
        )
        model = Posterior(observed, settings)

    leading = own if len(own) else past
    parents = known.points[leading[: max(1, min(_PARENTS, len(leading) // 4))]]
    points = np.concatenate([cube.draw(rng, _EVENLY), near(cube, rng, parents, _NEAR)])
    seen = np.concatenate([known.points, known.pending])
    shown = cube.features(as_active(points, seen, cube))
    means, cross = model.mean(shown)
    short = np.argsort(means, kind="stable")[:_SHORTLIST]
    gains = _expected_improvement(means[short], model.deviation(cross[short]), float(known.scores[leading[0]]))
    ranked = short[np.argsort(-gains, kind="stable")]
    tried = np.concatenate([features[own], cube.features(known.pending)])
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
