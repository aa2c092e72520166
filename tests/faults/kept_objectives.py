"""A training function whose processes stay, for every mode; no tests in here."""

from __future__ import annotations

import time

import numpy as np
import torch  # noqa: F401  (a gang imports it, and what the module imports itself stays)

from hpo_core import State


def load(path):
    return float(path.read_text())


def train_on_partition(trial):
    """What hops."""
    train(trial, lambda: trial.partition)


def train(trial, data=float):
    """A number that follows from the seed, the parameters and the steps, whoever made them."""
    state = State(total=0.0)
    trial.track(state=state)
    for _ in trial.steps():
        time.sleep(0.1)
        state.total = state.total * trial.params["lr"] + float(np.random.random()) + data()
        trial.report(loss=state.total)
