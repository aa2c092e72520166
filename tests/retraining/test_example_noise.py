"""The test of a challenger counts the draw of the data as noise: equals win at the rate of its level."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from hpo_core.retraining.promotion_policy import ExampleLosses, example_noise, is_good_enough, promotion_test
from hpo_core.training import evaluation

SEEDS, FEATURES, VALIDATION = 5, 8, 200


class Days:
    """Data of one distribution, day for day, and linear models fitted to them; each seed ends a little elsewhere."""

    def __init__(self, seed: int) -> None:
        self.draws = np.random.default_rng(seed)
        self.truth = self.draws.normal(size=FEATURES)

    def data(self, examples: int, spread: float = 1.0) -> tuple[Any, Any]:
        x = self.draws.normal(size=(examples, FEATURES))
        return x, x @ self.truth + spread * self.draws.normal(size=examples)

    def models(self, training: int, spread: float = 1.0) -> Any:
        """One fit of a new training set, as each seed ends it."""
        found = np.linalg.lstsq(*self.data(training, spread), rcond=None)[0]
        return found + self.draws.normal(0, 0.02, (SEEDS, FEATURES))


def scores(models: Any, x: Any, y: Any) -> list[ExampleLosses]:
    losses = (y - models @ x.T) ** 2
    return [
        ExampleLosses(float(one.mean()), float(one.mean()), examples=len(y), losses=tuple(one.tolist()))
        for one in losses
    ]


def of(side: list[ExampleLosses]) -> list[float]:
    return [one.loss for one in side]


@pytest.fixture(scope="module")
def nights() -> list[tuple[list[ExampleLosses], list[ExampleLosses]]]:
    """Champion and retrained model on the same validation data; both were trained on as many data of its kind."""
    found = []
    for night in range(500):
        days = Days(night)
        old, new, (x, y) = days.models(400), days.models(400), days.data(VALIDATION)
        found.append((scores(old, x, y), scores(new, x, y)))
    return found


def test_a_search_begins_on_data_like_the_old_at_the_rate_of_the_level(nights: list[Any]) -> None:
    searched = [not is_good_enough(of(old), of(new), noise=example_noise(old, new), level=0.05) for old, new in nights]
    share = sum(searched) / len(nights)
    assert 0.02 < share < 0.08, "5 % of 500 and three deviations"
    by_seeds = sum(not is_good_enough(of(old), of(new), level=0.05) for old, new in nights)
    assert by_seeds / len(nights) > 0.2, "the spread of seeds alone"


def test_an_equal_challenger_wins_on_data_like_the_old_at_the_rate_of_the_level(nights: list[Any]) -> None:
    wins = [promotion_test(of(old), of(new), noise=example_noise(old, new), level=0.05).wins for old, new in nights]
    assert 0.02 < sum(wins) / len(wins) < 0.08


def test_a_model_that_is_really_worse_is_found() -> None:
    found = 0
    for night in range(60):
        days = Days(night)
        old, new, (x, y) = days.models(400), days.models(25), days.data(VALIDATION)
        sides = scores(old, x, y), scores(new, x, y)
        found += not is_good_enough(of(sides[0]), of(sides[1]), noise=example_noise(*sides), level=0.05)
    assert found > 54, "trained on 25 examples instead of 400"


def replaced(side: list[ExampleLosses], **changes: Any) -> list[ExampleLosses]:
    return [msgspec.structs.replace(one, **changes) for one in side]


def test_where_the_metric_is_no_mean_of_the_losses_seeds_alone_count() -> None:
    days = Days(2)
    x, y = days.data(VALIDATION)
    old, new = scores(days.models(400), x, y), scores(days.models(400), x, y)
    shifted = [msgspec.structs.replace(one, loss=one.loss - 1.0) for one in old + new]
    assert example_noise(shifted[:SEEDS], shifted[SEEDS:]) == example_noise(old, new), "an accuracy and its errors"
    roots = [msgspec.structs.replace(one, loss=one.loss**0.5) for one in old + new]
    assert example_noise(roots[:SEEDS], roots[SEEDS:]) is None
    fewer = replaced(new, examples=VALIDATION - 1, losses=new[0].losses[1:])
    assert example_noise(old, fewer) is None, "each model was evaluated on examples of its own"
    verdict = promotion_test(of(old), of(new), noise=None)
    assert "test over seeds, p = " in verdict.words("loss", 1.0)
    verdict = promotion_test(of(old), of(new), noise=example_noise(old, new))
    assert f"test over seeds and {VALIDATION} examples, p = " in verdict.words("loss", 1.0)


def test_an_evaluation_keeps_the_order_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluation._evaluation({"loss": 2.0}, [3.0, 1.0, 2.0])
    assert (found.losses, found.in_order) == ((1.0, 2.0, 3.0), (3.0, 1.0, 2.0))
    assert (found.examples, found.mean) == (3, 2.0)
    monkeypatch.setattr(evaluation, "MAX_LOSSES", 3)
    found = evaluation._evaluation({"loss": 2.0}, [9.0, 0.0, 5.0, 0.0, 1.0])
    assert (found.losses, found.in_order) == ((0.0, 1.0, 9.0), (9.0, 5.0, 1.0)), "evenly spaced"
    assert (found.examples, found.mean) == (5, 3.0)
    assert evaluation._evaluation({"loss": 2.0}, None).examples == 0
