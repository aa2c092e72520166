"""Training functions of test_checkpoint_writer.py: a state of some megabytes, without torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


class Weights:
    """An array of 4-byte numbers."""

    def __init__(self, megabytes: float) -> None:
        self.values = np.zeros(int(megabytes * (1 << 18)), np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


def train(trial: Any) -> None:
    """Random steps; says in which process it was."""
    print(os.getpid())
    weights = Weights(trial.params["megabytes"])
    trial.track(weights=weights)
    for _ in trial.steps():
        weights.values += np.random.rand()
        trial.report(loss=float(weights.values[-1]))
    weights.values[:] = -1.0  # whatever it does after the loop is not saved
