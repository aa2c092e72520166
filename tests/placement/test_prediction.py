"""Amounts predicted from a history: what they cover, and where nothing is said."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from hpo_core.placement import known_need as prediction
from hpo_core.placement.known_need import Prediction, Predictor


def predict(past: list[tuple[dict[str, Any], float]], parameters: dict[str, Any]) -> Prediction | None:
    return Predictor(past).predict(parameters)


def drawn(rng: random.Random, noise: float) -> tuple[dict[str, Any], float]:
    parameters: dict[str, Any] = {
        "width": rng.choice([64, 128, 256, 512, 1024]),
        "batch_size": rng.choice([16, 32, 64, 128]),
        "optimizer": rng.choice(["sgd", "adam"]),
    }
    weights = parameters["width"] ** 1.5 * (3 if parameters["optimizer"] == "adam" else 2)
    return parameters, weights * parameters["batch_size"] ** 0.5 * rng.lognormvariate(0.0, noise)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
def test_the_safe_amount_covers_the_share_it_promises(noise: float) -> None:
    covered, excess = [], []
    for seed in range(40):
        rng = random.Random(seed)
        past = [drawn(rng, noise) for _ in range(40)]
        for _ in range(10):
            parameters, amount = drawn(rng, noise)
            found = predict(past, parameters)
            if found is not None:
                covered.append(amount <= found.safe * (1 + 1e-9))
                excess.append(found.safe / amount)
    assert len(covered) > 300
    assert sum(covered) / len(covered) >= 0.90
    assert sorted(excess)[len(excess) // 2] < 1.3 * math.exp(1.65 * noise), "and no more than that needs"


def test_parameters_that_explain_nothing_cost_nothing() -> None:
    rng = random.Random(0)
    past = [({"width": rng.choice([64, 128, 256])}, rng.lognormvariate(0.0, 0.3)) for _ in range(200)]
    found = [predict(past, {"width": width}) for width in (64, 128, 256)]
    assert len({prediction.expected for prediction in found if prediction}) == 1


def test_each_residual_is_that_of_a_fit_without_it() -> None:
    rng = random.Random(1)
    generator = np.random.default_rng(1)
    logs = np.array([rng.gauss(0.0, 1.0) for _ in range(15)])
    design = np.hstack([np.ones((15, 1)), generator.standard_normal((15, 3))])
    _, residuals = prediction._from_others(design, logs)
    for left_out in range(15):
        others = [row for row in range(15) if row != left_out]
        weights, _ = prediction._from_others(design[others], logs[others])
        assert residuals[left_out] == pytest.approx(logs[left_out] - design[left_out] @ weights, abs=1e-9)


@pytest.mark.parametrize(
    "parameters",
    [
        {"width": 2048, "optimizer": "sgd"},
        {"width": 64, "optimizer": "lion"},
        {"width": 64, "optimizer": "sgd", "depth": 3},
        {"optimizer": "sgd"},
    ],
    ids=["beyond the range", "a choice never seen", "a parameter never seen", "a parameter is missing"],
)
def test_nothing_is_said_outside_of_what_was_measured(parameters: dict[str, Any]) -> None:
    past = [({"width": width, "optimizer": "sgd"}, float(width)) for width in (64, 128, 256, 512) * 3]
    assert predict(past, {"width": 100, "optimizer": "sgd"}) is not None
    assert predict(past, parameters) is None
    assert predict(past[:7], {"width": 100, "optimizer": "sgd"}) is None, "too few"


@pytest.mark.parametrize("seconds", [7.5, 60.0, 1e-3])
def test_equal_amounts_are_predicted_as_they_are(seconds: float) -> None:
    """To the last digit, whatever the linear algebra of the processor: jobs that are alike must not be told apart."""
    past = [({"lr": 10.0**-k, "width": 2 + 3 * k, "kind": "ab"[k % 2]}, seconds) for k in range(12)]
    predictor = Predictor(past)
    for k in range(12):
        found = predictor.predict({"lr": 10.0**-k, "width": 2 + 3 * k, "kind": "ab"[k % 2]})
        assert found is not None and (found.expected, found.safe) == (seconds, seconds)
