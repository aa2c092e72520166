"""Results of several rungs as one score per trial.

On each rung results are ranked, so their scale does not matter. On the base rung a trial's score is the normal
quantile of its place. Those that went on to the next rung are ranked anew among themselves. They share out the scores
that they had, in the new order: where rungs agree, they are the best of the rung below, and so the scores of all
trials compare. These scores are blended with the normal quantiles of their places there, by how far the rungs agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BELIEVED = 1.0
"""Correlation of neighbouring rungs before any trial was on both, and how many trials that belief counts as."""
_BELIEVED_TRIALS = 20.0


class Scores(NamedTuple):
    """A score per trial, low is good, and how closely it follows the score on the highest rung."""

    values: Array
    """NaN: no result yet."""
    agreement: Array
    """Correlation of the rung that a score is from with the highest rung, from 0 to 1."""


def scored(results: Array) -> Scores:
    """Scores from results.

    Args:
        results: a row per trial, a column per rung from the lowest on; NaN: not there; inf: diverged.
    """
    trials, rungs = results.shape
    known = ~np.isnan(results.T)
    values = np.full(trials, np.nan)
    at = np.full(trials, -1)
    agreement = np.ones(rungs)
    for rung in range(rungs):
        here = np.flatnonzero(known[rung])
        if not len(here):
            continue
        places = _places(results[here, rung])
        fresh = normal_quantile(places)
        before = values[here]
        old = ~np.isnan(before)
        if old.any():
            link = _agreement(values[at == at[here[old]].max()], before[old], fresh[old])
            agreement[rung] = link
            before = np.where(old, before, fresh)
            shared = np.interp(places, (np.arange(len(here)) + 0.5) / len(here), np.sort(before))
            fresh = _blended(shared, fresh, link)
        values[here] = fresh
        at[here] = rung
    below = np.append(np.cumprod(agreement[::-1])[::-1][1:], 1.0)
    return Scores(values, np.where(at >= 0, below[at], 1.0))


def _blended(shared: Array, fresh: Array, link: float) -> Array:
    """Of the selected ones of correlated normal variables, the second: its mean and variance, in the new order."""
    own = math.sqrt(1.0 - link * link)
    middle, spread = _mean_and_spread(shared)
    together = link * (shared - middle) + own * fresh
    wanted, has = math.sqrt((link * spread) ** 2 + own**2), link * spread + own
    found: Array = link * middle + together * (wanted / has if has > 0 else 1.0)
    return found


def _places(results: Array) -> Array:
    """Place of each in (0, 1); ties share the mean of theirs."""
    n = len(results)
    order = np.argsort(results)
    ordered = results[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    places = np.empty(n)
    if len(starts) == n:
        places[order] = (np.arange(n) + 0.5) / n
    else:
        counts = np.diff(np.append(starts, n))
        places[order] = np.repeat((starts + 0.5 * counts) / n, counts)
    return places


def _agreement(all_below: Array, below: Array, here: Array) -> float:
    """Correlation of two rungs, from those on both.

    They are the best of the lower rung, so correlation among them is lower than among all: Thorndike's second case.
    """
    n = len(below)
    (middle, spread), (middle_here, spread_here) = _mean_and_spread(below), _mean_and_spread(here)
    if n < 3 or spread == 0.0 or spread_here == 0.0:
        return _BELIEVED
    r = float(np.add.reduce((below - middle) * (here - middle_here))) / n / (spread * spread_here)
    wider = max(1.0, _mean_and_spread(np.concatenate([all_below, below]))[1] / spread)
    found = r * wider / math.sqrt(1.0 - r * r + (r * wider) ** 2)
    weight = n / wider**2
    return min(1.0, max(0.0, (weight * found + _BELIEVED_TRIALS * _BELIEVED) / (weight + _BELIEVED_TRIALS)))


def _mean_and_spread(values: Array) -> tuple[float, float]:
    """Mean and standard deviation: ``numpy.std`` alone takes ten times as long for the few values of a rung."""
    middle = float(np.add.reduce(values)) / len(values)
    apart = values - middle
    return middle, math.sqrt(float(np.add.reduce(apart * apart)) / len(values))


def normal_quantile(p: Array) -> Array:
    """Inverse of the normal distribution function (Acklam's rational approximation, error below 1.2e-9 relative)."""
    p = np.clip(np.asarray(p, dtype=np.float64), 1e-12, 1.0 - 1e-12)
    tail = np.minimum(p, 1.0 - p)
    q = np.sqrt(-2.0 * np.log(tail))
    outer = _polynomial(_C, q) / _polynomial(_D, q)
    r = (p - 0.5) ** 2
    inner = (p - 0.5) * _polynomial(_A, r) / _polynomial(_B, r)
    found: Array = np.where(tail < 0.02425, np.where(p < 0.5, outer, -outer), inner)
    return found


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    found = np.full_like(x, coefficients[0])
    for one in coefficients[1:]:
        found *= x
        found += one
    return found


_A = (-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02, 1.383577518672690e02, -3.066479806614716e01,
      2.506628277459239e00)  # fmt: skip
_B = (-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02, 6.680131188771972e01, -1.328068155288572e01,
      1.0)  # fmt: skip
_C = (-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00, -2.549732539343734e00,
      4.374664141464968e00, 2.938163982698783e00)  # fmt: skip
_D = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)
