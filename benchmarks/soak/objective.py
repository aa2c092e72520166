"""What the soak trains: nothing but waiting, with a state from which every lost or doubled step can be seen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

SECONDS = float(os.environ.get("HPO_SOAK_UNIT_SECONDS", "1.0"))
"""One unit of training; of models that hop, one epoch."""
PARTITIONS = 4


class Chain:
    """A number that depends on every step before it, in their order, and on the parameters each was made with."""

    def __init__(self, x: float) -> None:
        self.x = x
        self.link = 0.0

    def advance(self, step: int, partition: int = 0) -> None:
        self.link = (self.link * 1.618033988749895 + self.x * 0.37 + (step + 1) * 0.0113 + partition * 0.0071) % 1.0

    def loss(self, done: int) -> float:
        return (self.x - 0.3) ** 2 + 1.0 / done + 1e-3 * self.link

    def state_dict(self) -> dict[str, Any]:
        return {"link": self.link}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.link = state["link"]


def train(trial: Any) -> None:
    """One job: from its checkpoint to its target, a second for each unit."""
    chain = Chain(trial.params["x"])
    trial.track(chain=chain)
    for step in trial.steps():
        time.sleep(SECONDS)
        chain.advance(step)
        trial.report(loss=chain.loss(step + 1))


def content(number: int) -> bytes:
    """Of a partition: its number again and again, so that every place tells which one was read."""
    return f"{number:04d}\n".encode() * 20_000


def read(path: Path) -> int:
    """The number of a partition, from all of its file."""
    found = path.read_bytes()
    number = int(found[:4])
    if found != content(number):
        raise ValueError(f"{path.name} is no whole partition: {len(found)} bytes that begin with {found[:5]!r}")
    return number


def hop(trial: Any) -> None:
    """One unit: a pass over a partition, which ``data.load`` has read or this function reads itself."""
    chain = Chain(trial.params["x"])
    trial.track(chain=chain)
    for step in trial.steps():
        time.sleep(SECONDS / PARTITIONS / 2)
        number = trial.partition if isinstance(trial.partition, int) else read(trial.partition)
        time.sleep(SECONDS / PARTITIONS / 2)
        chain.advance(step, number)
        trial.report(loss=chain.loss(step + 1))
