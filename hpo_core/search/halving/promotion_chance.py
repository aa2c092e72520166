"""The chance that a trial waiting at a rung is still promoted.

Under the assumption that results come in an order that says nothing of their quality, the next result ranks before the
trial at place ``p`` of ``n`` with probability ``p / (n + 1)``, whatever came before (a Polya urn). Two rules decide on
promotion:

- **First passage** (ASHA, asynchronous): the trial is promoted as soon as its place is at most ``floor(m / eta)`` of
  the ``m`` results so far, at any ``m`` up to the ``N`` that the rung will hold in the end. For a whole eta the
  probability has a closed form. The place grows by at most one per result and the boundary by one per eta results, so
  that a first passage hits the boundary exactly, at ``m = k * eta`` with place ``k``. All orders of the ``b = k - p``
  better ones among the ``L = m - n`` arrivals are equally likely, and by Takacs' ballot theorem the share
  ``1 - b * eta / L`` of them did not touch the boundary before. The sum of (beta-binomial probability of ``b``) times
  (that share) over ``k`` is the chance. For other eta the same is summed over all states. After some hundred
  arrivals, the rest of the way is approximated by a Brownian motion: ``place / (m + 1)`` is a martingale, which in the
  clock ``1 / (n + 1) - 1 / (m + 1)`` runs against a straight line.
- **Final place** (synchronous halving, at its barrier): the trial is promoted if it is among the best ``Q`` of ``N``
  in the end, with the probability that at least ``p`` of those ``Q`` are among the ``n`` drawn: the upper tail of a
  hypergeometric distribution. Where the rung has no end in sight, it is the tail of the binomial distribution with
  ``n`` draws of probability ``1 / eta``. Studies recorded before first passage was computed used it for ASHA too.

Only ``+ - * /`` and square roots are used: these give the same last bit on every machine, the C library's ``exp``
and ``lgamma`` do not, and the chance is part of the record that an audit computes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import msgspec

from hpo_core.model.arithmetic import Number
from hpo_core.search.halving.rungs import AnyRung

EXACT_UP_TO = 20.0
"""Standard deviations (in results) up to which tails are summed; beyond, the normal approximation is used."""

NEGLIGIBLE = 1e-18
"""Terms this small against the largest one end a sum; the least chance of a trial that may still be promoted."""

EXACT_PROMOTIONS = 64
"""A first passage is exact for so many times eta results to come, at most ``EXACT_ARRIVALS``; for eta that are no whole
numbers, which take longer, a quarter of that."""

EXACT_ARRIVALS = 1024


class Contest(msgspec.Struct, frozen=True):
    """A rung whose trials may be promoted, as the chance of promotion sees it."""

    rung: AnyRung
    """Its results so far."""
    expected: int | None
    """Results it will hold in the end, if nothing fails; None where the study has no end in sight."""
    promotions: int
    """How many of the expected ones are promoted; of no use without an end."""
    reduction_factor: Number
    sure: int = 0
    """The best so many of the present results are promoted, whatever still comes."""
    arrivals: int | None = None
    """Results it will hold in the end with the mispromotions that are likely below it; None: no end in sight."""
    certain: bool = True
    """Whether ``arrivals`` is a count (of new configurations), and not an estimate."""
    at_barrier: bool = False
    """Whether promotion is decided when the rung holds all expected results, and not before."""

    def chance(self, place: int) -> float:
        """Probability that the trial at ``place`` (from 1) of the present results is promoted."""
        if self.at_barrier:
            return self.final_place(place)
        if place <= self.sure:
            return 1.0
        results = self.rung.size
        total = None if self.arrivals is None else max(self.arrivals, results)
        found = first_passage(place, results, total, self.reduction_factor)
        may_come = total is None or total > results
        return max(found, NEGLIGIBLE) if may_come and not self.certain else found

    def final_place(self, place: int) -> float:
        """Probability that the trial at ``place`` is among the best of all expected results in the end."""
        if place <= self.sure:
            return 1.0
        results = self.rung.size
        if self.expected is None:
            return binomial_tail(place, results, 1 / float(self.reduction_factor))
        return hypergeometric_tail(place, max(self.expected, results), self.promotions, results)


@lru_cache(maxsize=4096)
def first_passage(place: int, results: int, total: int | None, reduction_factor: Number) -> float:
    """Probability that the trial at ``place`` of ``results`` is among the best 1/eta at some moment up to ``total``.

    Never 0 where that is possible. Beyond ``EXACT_PROMOTIONS`` within 0.01 of the exact value, 0.05 where eta is no
    whole number.

    Args:
        total: results in the end; None: no end in sight.

    >>> round(first_passage(8, 30, 60, 4), 3), first_passage(8, 30, 31, 4), first_passage(7, 30, 30, 4)
    (0.796, 0.0, 1.0)
    """
    eta = reduction_factor
    if place <= int(results // eta):
        return 1.0
    if total is not None and place > int(total // eta):
        return 0.0
    whole = eta == int(eta)
    arrivals = min(EXACT_ARRIVALS, int(EXACT_PROMOTIONS * eta))
    exact_to = results + (arrivals if whole else arrivals // 4)
    if total is not None:
        exact_to = min(exact_to, total)
    found = _ballot_sum(place, results, exact_to, int(eta)) if whole else _walk(place, results, exact_to, eta)
    if total is None or exact_to < total:
        ratio = float(eta)
        found += max(0.0, _brownian(place, results, total, ratio) - _brownian(place, results, exact_to, ratio))
    return min(1.0, max(NEGLIGIBLE, found))


def _ballot_sum(place: int, results: int, total: int, eta: int) -> float:
    """First passage for a whole eta; see the module."""
    last = total // eta
    if place > last:
        return 0.0
    beyond = results + 1 - place  # an arrival is worse with probability beyond / (results + 1) at first
    likely = 1.0  # probability of `better` better ones among `arrivals`
    arrivals = place * eta - results
    for i in range(arrivals):
        likely *= (beyond + i) / (results + 1 + i)
    found, worse = likely, arrivals
    for better in range(1, last - place + 1):
        ways = (place + better - 1) / better
        for i in range(eta - 1):
            ways *= (beyond + worse + i) / (worse + i + 1)
        for i in range(eta):
            ways *= (arrivals + i + 1) / (results + 1 + arrivals + i)
        likely *= ways
        arrivals += eta
        worse += eta - 1
        found += likely * (1 - better * eta / arrivals)
    return found


def _walk(place: int, results: int, total: int, eta: Number) -> float:
    """First passage for any eta: all states, one arrival after the other."""
    found, last = 0.0, int(total // eta)
    if place > last:
        return 0.0
    states = [1.0]  # by the number of better ones among the arrivals: probability of not being promoted so far
    for size in range(results, total):
        after = [0.0] * min(len(states) + 1, last - place + 1)  # beyond it nothing leads back up to `total`
        for better, likely in enumerate(states):
            up = (place + better) / (size + 1)
            after[better] += likely * (1 - up)
            if better + 1 < len(after):
                after[better + 1] += likely * up
        for better in range(min(len(after), int((size + 1) // eta) - place + 1)):
            found += after[better]
            after[better] = 0.0
        states = after
    return found


def _brownian(place: int, results: int, total: int | None, eta: float) -> float:
    """First passage as that of a Brownian motion to a straight line."""
    now, target = place / (results + 1), 1 / eta
    middle = (now + target) / 2
    variance = middle * (1 - middle)
    clock = variance * (1 / (results + 1) - (0.0 if total is None else 1 / (total + 1)))
    if clock <= 0:
        return 0.0
    distance, slope, width = (place - results / eta) / (results + 1), 1 / (eta * variance), math.sqrt(clock)
    straight = _normal_tail((distance - slope * clock) / width)
    return straight + _exp(2 * slope * distance) * _normal_tail((distance + slope * clock) / width)


def _exp(x: float) -> float:
    """The exponential function for x from 0 to some 30, to 1e-13."""
    y = x / 64
    found = term = 1.0
    for k in range(1, 12):
        term *= y / k
        found += term
    for _ in range(6):
        found *= found
    return found


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
    return _tail(least, mode, low, high=high, ratio=lambda h: (marked - h) * (drawn - h) / ((h + 1) * (rest + h + 1)))


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
    return _tail(
        least, min(draws, int((draws + 1) * share)), 0, high=draws, ratio=lambda h: (draws - h) / (h + 1) * odds
    )


def _out_of_reach(least: int, mean: float, variance: float) -> bool:
    """Whether the tail is below ``NEGLIGIBLE`` anyway: most trials of a large rung, at no cost."""
    return least > mean + 10 * math.sqrt(variance) + 10


def _tail(least: int, mode: int, low: int, *, high: int, ratio: Callable[[int], float]) -> float:
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
