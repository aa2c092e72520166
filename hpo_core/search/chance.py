"""The chance that a trial which waits at a rung is promoted after all, from its place and the rung's counts.

Under the assumption that results come in an order that says nothing of their quality, the ``n`` results of a rung
are a random draw out of the ``N`` it will hold in the end. The number of the ``N - n`` results still to come that
rank before the one at place ``i`` now is then beta-binomial with parameters ``(i, n + 1 - i)``, and the trial ends
among the best ``Q`` of ``N`` with the probability that at least ``i`` of those ``Q`` are among the ``n`` drawn: the
upper tail of a hypergeometric distribution, which is the sum computed here. Where the rung has no end in sight,
it is the tail of the binomial distribution with ``n`` draws of probability ``1 / eta``.

Only ``+ - * /`` and square roots are used: these give the same last bit on every machine, the C library's ``exp``
and ``lgamma`` do not, and the chance is part of the record that an audit computes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from hpo_core.search.rungs import AnyRung

EXACT_UP_TO = 20.0
"""Standard deviations (in results) up to which tails are summed; beyond, the normal approximation is used."""

NEGLIGIBLE = 1e-18
"""Terms this small against the largest one end a sum."""


class Contest(msgspec.Struct, frozen=True):
    """A rung whose trials may be promoted, as the chance of promotion sees it."""

    rung: AnyRung
    """Its results so far."""
    expected: int | None
    """Results it will hold in the end, if nothing fails; None where the study has no end in sight."""
    promotions: int
    """How many of the expected ones are promoted; of no use without an end."""
    reduction_factor: float
    sure: int = 0
    """The best so many of the present results are promoted, whatever still comes."""

    def chance(self, place: int) -> float:
        """Probability that the trial at ``place`` (from 1) of the present results is promoted."""
        if place <= self.sure:
            return 1.0
        results = self.rung.size
        if self.expected is None:
            return binomial_tail(place, results, 1 / self.reduction_factor)
        return hypergeometric_tail(place, max(self.expected, results), self.promotions, results)


def hypergeometric_tail(least: int, population: int, marked: int, drawn: int) -> float:
    """Probability of ``least`` or more marked ones among ``drawn`` of ``population``, of which ``marked`` are marked.

    >>> hypergeometric_tail(1, 4, 1, 3), hypergeometric_tail(2, 4, 2, 2)
    (0.75, 0.16666666666666666)
    """
    low, high = max(0, drawn + marked - population), min(drawn, marked)
    if least <= low:
        return 1.0
    if least > high:
        return 0.0
    share = marked / population
    mean = drawn * share
    variance = mean * (1 - share) * (population - drawn) / (population - 1)
    if _out_of_reach(least, mean, variance):
        return 0.0
    if variance > EXACT_UP_TO**2:
        return _normal_tail((least - 0.5 - mean) / math.sqrt(variance))
    mode = (drawn + 1) * (marked + 1) // (population + 2)
    rest = population - marked - drawn
    return _tail(least, mode, low, high, lambda h: (marked - h) * (drawn - h) / ((h + 1) * (rest + h + 1)))


def binomial_tail(least: int, draws: int, share: float) -> float:
    """Probability of ``least`` or more hits among ``draws`` of probability ``share``.

    >>> binomial_tail(1, 2, 0.5), binomial_tail(0, 3, 0.25), binomial_tail(4, 3, 0.25)
    (0.75, 1.0, 0.0)
    """
    if least <= 0:
        return 1.0
    if least > draws:
        return 0.0
    mean = draws * share
    variance = mean * (1 - share)
    if _out_of_reach(least, mean, variance):
        return 0.0
    if variance > EXACT_UP_TO**2:
        return _normal_tail((least - 0.5 - mean) / math.sqrt(variance))
    odds = share / (1 - share)
    return _tail(least, min(draws, int((draws + 1) * share)), 0, draws, lambda h: (draws - h) / (h + 1) * odds)


def _out_of_reach(least: int, mean: float, variance: float) -> bool:
    """Whether the tail is below ``NEGLIGIBLE`` anyway: most trials of a large rung, at no cost."""
    return least > mean + 10 * math.sqrt(variance) + 10


def _tail(least: int, mode: int, low: int, high: int, ratio: Callable[[int], float]) -> float:
    """Sum from ``least`` up over the sum of all; ``ratio(h)`` is the term of ``h + 1`` over that of ``h``.

    Terms are taken from the mode outwards as long as they count, so their number is some ten standard deviations
    either way, whatever the counts are.
    """
    below = 0.0
    above = 1.0 if mode >= least else 0.0
    if mode < least:
        below = 1.0
    term, h = 1.0, mode
    while h < high and term > NEGLIGIBLE:
        term *= ratio(h)
        h += 1
        if h >= least:
            above += term
        else:
            below += term
    term, h = 1.0, mode
    while h > low and term > NEGLIGIBLE:
        h -= 1
        term /= ratio(h)
        if h >= least:
            above += term
        else:
            below += term
    return above / (above + below)


def _normal_tail(z: float) -> float:
    """Probability of more than ``z`` standard deviations above the mean, to 1.5e-7.

    Abramowitz & Stegun 26.2.19, a polynomial to the power -16.
    """
    x = abs(z)
    y = 0.0000488906 + x * 0.0000053830
    y = 0.0211410061 + x * (0.0032776263 + x * (0.0000380036 + x * y))
    y = 1 + x * (0.0498673470 + x * y)
    for _ in range(4):
        y *= y
    return 0.5 / y if z > 0 else 1 - 0.5 / y
