"""Training functions of test_state_from_memory.py that need no torch: whole studies run them on several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class Weights:
    """An object whose state is an array that it goes on using after it was loaded, as many do."""

    def __init__(self, size: int = 50) -> None:
        self.values = np.zeros(size)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


def load(path: Path) -> Any:
    """The array of a partition."""
    return np.load(path)


def train(trial: Any) -> None:
    """Steps whose result depends on all before: on the weights, the order of the data, and the generator."""
    model = Weights()
    trial.track(model=model)
    for _ in trial.steps():
        model.values *= 1.0 - trial.params["lr"]
        model.values += np.random.normal(size=50)
        if trial.params.get("hops"):
            model.values += trial.partition.mean()
        trial.report(loss=float(np.abs(model.values).mean()) + trial.params["lr"])
