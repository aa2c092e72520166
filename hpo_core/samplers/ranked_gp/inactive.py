"""Which parameters of a new point are likely inactive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpo_core.samplers.ranked_gp.unit_cube import UnitCube

Array = NDArray[np.float64]


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
