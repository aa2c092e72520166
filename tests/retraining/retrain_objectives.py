"""A line through points: its slope is trained, its offset is a parameter, the data file says where the points are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.flows.objectives import Weights

HOME = Path(__file__).parents[2]


def load(data):
    if not data:
        return points(0.2, 0)
    plain = json.loads(Path(data).read_text())
    if plain.get("broken"):
        raise ValueError("these data are broken")
    return points(plain["offset"], plain["seed"])


def points(offset, seed):
    draws = np.random.default_rng(seed)
    x = draws.uniform(-1, 1, 200)
    return x, 0.7 * x + offset + draws.normal(0, 0.1, 200)


def losses(trial, weights):
    x, y = load(trial.params.get("data"))
    return (y - weights.value * x - trial.params["offset"]) ** 2


def train(trial):
    """Each seed begins with another slope, and is not quite done at the end."""
    weights = Weights()
    weights.value = float(np.random.normal(0.7, 0.05))
    trial.track(weights=weights)
    x, y = load(trial.params.get("data"))
    if "fragile" in trial.params.get("data", "") and trial.number == 1:
        raise RuntimeError("one seed fails")
    for _ in trial.steps():
        error = y - weights.value * x - trial.params["offset"]
        weights.value += trial.params["rate"] * float((error * x).mean()) + float(np.random.normal(0, 0.01))
        trial.report(loss=float((error**2).mean()))


def evaluate(trial):
    weights = Weights()
    trial.track(weights=weights)
    found = losses(trial, weights)
    trial.report(loss=found.mean())
    return found


def bare(trial):
    """Forgets to return a loss per example."""
    evaluate(trial)


def absolute(trial):
    """Another measure of the same: its losses compare with nothing that evaluate found."""
    weights = Weights()
    trial.track(weights=weights)
    found = losses(trial, weights) ** 0.5 + 3.0
    trial.report(loss=found.mean())
    return found
