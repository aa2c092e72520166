"""The chance of a place among the best in the end, against enumeration, simulation and exact fractions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import pytest

from hpo_core.search.halving import promotion_chance as chance
from hpo_core.search.halving.promotion_chance import Contest, binomial_tail, hypergeometric_tail
from hpo_core.search.halving.rungs import Rung


def contest(results: int, expected: int | None, promotions: int, sure: int = 0) -> Contest:
    rung = Rung(1, 3)
    for trial in range(results):
        rung.add(trial, float(trial))
    return Contest(rung, expected, promotions, 3, sure, at_barrier=True)


@pytest.mark.parametrize(("results", "expected"), [(1, 5), (3, 6), (2, 7), (5, 7), (4, 4)])
def test_every_order_of_arrival_counted(results: int, expected: int) -> None:
    for promotions in range(expected + 1):
        ended: dict[int, list[bool]] = {}
        for arrivals in permutations(range(1, expected + 1)):  # final places in the order in which results come
            present = sorted(arrivals[:results])
            for i, final in enumerate(present, 1):
                ended.setdefault(i, []).append(final <= promotions)
        for i, outcomes in ended.items():
            exact = sum(outcomes) / len(outcomes)
            assert contest(results, expected, promotions).chance(i) == pytest.approx(exact, abs=1e-12)


def test_it_is_the_beta_binomial_of_the_docstring() -> None:
    n, expected, promotions = 12, 40, 13
    for i in range(1, n + 1):
        later = [
            Fraction(math.comb(k + i - 1, k) * math.comb(28 - k + n - i, 28 - k), math.comb(expected, 28))
            for k in range(29)
        ]
        assert sum(later) == 1
        exact = float(sum(later[: max(0, promotions - i + 1)]))
        assert contest(n, expected, promotions).chance(i) == pytest.approx(exact, abs=1e-13)


def test_random_ranks_of_a_large_rung_agree() -> None:
    dice = random.Random(1)
    n, expected, promotions, rounds = 90, 300, 100, 4000
    places = (10, 25, 30, 35, 45)
    seen = dict.fromkeys(places, 0)
    for _ in range(rounds):
        present = sorted(dice.sample(range(1, expected + 1), n))
        for i in places:
            seen[i] += present[i - 1] <= promotions
    for i in places:
        assert contest(n, expected, promotions).chance(i) == pytest.approx(seen[i] / rounds, abs=0.03)


def test_the_approximation_is_near_the_sum_and_falls_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(i, 12_000, 4_000, 5_000) for i in range(1560, 1800, 8)]
    near = [hypergeometric_tail(*case) for case in cases]
    monkeypatch.setattr(chance, "EXACT_UP_TO", 1e9)
    exact = [hypergeometric_tail(*case) for case in cases]
    assert near != exact, "the approximation was not used"
    assert max(abs(a - b) for a, b in zip(near, exact, strict=True)) < 2e-3
    assert near == sorted(near, reverse=True) and 0 < near[-1] < near[0] < 1


def test_without_an_end_it_is_binomial() -> None:
    for n in (1, 4, 30):
        for i in range(1, n + 1):
            third = Fraction(1, 3)
            exact = sum(math.comb(n, k) * third**k * (1 - third) ** (n - k) for k in range(i, n + 1))
            assert contest(n, None, 0).chance(i) == pytest.approx(float(exact), abs=1e-12)
    assert binomial_tail(40_550, 120_000, 1 / 3) < 1e-3 < binomial_tail(40_400, 120_000, 1 / 3)


def test_edges() -> None:
    assert contest(6, 30, 10, sure=2).chance(2) == 1.0
    assert contest(6, 6, 2).chance(2) == 1.0 and contest(6, 6, 2).chance(3) == 0.0
    assert contest(6, 30, 0).chance(1) == 0.0
    assert contest(7, 5, 1).chance(2) == 0.0, "more results than expected: mispromotions below"
    assert hypergeometric_tail(90_000, 200_000, 50_000, 100_000) == 0.0
    assert hypergeometric_tail(1, 1, 1, 1) == 1.0 and hypergeometric_tail(1, 1, 0, 1) == 0.0


@pytest.mark.parametrize("counts", [(200, 1000, 333, 500), (33_000, 100_000, 33_333, 99_000), (5, 10**6, 3, 10**6 - 5)])
def test_the_work_is_bounded(counts: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    tail = chance._tail

    def counting(*arguments: int, high: int, ratio: Callable[[int], float]) -> float:
        nonlocal asked

        def counted(h: int) -> float:
            nonlocal asked
            asked += 1
            return ratio(h)

        return tail(*arguments, high=high, ratio=counted)

    monkeypatch.setattr(chance, "_tail", counting)
    hypergeometric_tail(*counts)
    assert asked < 500
