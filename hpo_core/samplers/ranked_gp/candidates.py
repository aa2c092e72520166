"""Points among which the next configuration is chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpo_core.samplers.ranked_gp.unit_cube import UnitCube

Array = NDArray[np.float64]

_SPREADS = (0.2, 0.04)
"""How far a number is moved: the standard deviation, as a share of its range."""
_CHANGED = 0.3
"""Share of the parameters that are changed."""


def near(cube: UnitCube, rng: np.random.Generator, best: Array, count: int) -> Array:
    """The best points, with some parameters changed: numbers moved, choices drawn anew."""
    found = best[rng.integers(0, len(best), count)].copy()
    drawn = cube.draw(rng, count)
    changed = rng.random(found.shape) < _CHANGED
    changed[np.arange(count), rng.integers(0, found.shape[1], count)] = True
    spread = rng.choice(_SPREADS, size=(count, 1))
    moved = np.clip(found + spread * rng.standard_normal(found.shape), 0.0, 1.0)
    moved = np.where((cube.choices > 0) | np.isnan(found), drawn, moved)
    found = np.where(changed | np.isnan(found), moved, found)
    return cube.rounded(found)


def as_active(points: Array, known: Array, cube: UnitCube) -> Array:
    """Without the values of parameters that are likely inactive: those that the nearest known point has not.

    Optuna's spaces are made as they are asked for, so conditions are seen only in what trials had. A different
    choice counts more than any distance in numbers, since conditions hang on choices.
    """
    missing = np.isnan(known)
    if not missing.any():
        return points
    always = ~missing.any(axis=0)
    apart = np.zeros((len(points), len(known)))
    for column in np.flatnonzero(always):
        a, b = points[:, column, None], known[None, :, column]
        apart += 10.0 * (a != b) if cube.choices[column] else (a - b) ** 2
    return np.where(missing[np.argmin(apart, axis=1)], np.nan, points)
