"""Training functions of hopping_overhead.py: units of 10 ms, and a pass over a large partition."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 0.010


class Weights:
    """A model of which only the size counts."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size // 4, dtype=np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


def load(path: Path) -> Any:
    """The array of a partition."""
    return np.load(path)


def train(trial: Any) -> None:
    """Sleep for 10 ms in each unit, whatever the partition."""
    model = Weights(trial.params["bytes"])
    trial.track(model=model)
    for _ in trial.steps():
        assert len(trial.partition)
        time.sleep(SECONDS)
        trial.report(loss=trial.params["x"])


def read_all(trial: Any) -> None:
    """Read each value of the partition; the model is small."""
    model = Weights(4_000)
    trial.track(model=model)
    for _ in trial.steps():
        rows = trial.partition
        total = 0.0
        for first in range(0, len(rows), 4096):
            total += float(rows[first : first + 4096].sum())
        model.values[0] = total
        time.sleep(0.3)
        trial.report(loss=trial.params["x"])


def compute(trial: Any) -> None:
    """Keep a core busy for a fixed amount of work: about a quarter of a second on a free core."""
    model = Weights(4_000)
    trial.track(model=model)
    for _ in trial.steps():
        assert len(trial.partition)
        total = 0
        for number in range(4_000_000):
            total += number
        trial.report(loss=trial.params["x"])
