from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np


def load(path: Path) -> dict[str, Any]:
    """A partition, and whose environment it was loaded in."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files} | {"from": str(path.parent)}


class Linear:
    """A linear model that remembers which partitions it saw, and where."""

    def __init__(self) -> None:
        self.weights = np.zeros(4)
        self.seen: list[int] = []
        self.folders: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.copy(), "seen": list(self.seen), "folders": list(self.folders)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = np.array(state["weights"])
        self.seen, self.folders = list(state["seen"]), list(state["folders"])

    def loss(self, data: dict[str, Any]) -> float:
        return float(np.mean((data["x"] @ self.weights - data["y"]) ** 2))


def train(trial: Any) -> None:
    model = Linear()
    trial.track(model=model)
    trial.evaluate_with(lambda data: {"val_loss": model.loss(data)})
    for _ in trial.steps():
        data = trial.partition
        rows = np.random.permutation(len(data["x"]))
        for at in range(0, len(rows), 8):
            x, y = data["x"][rows[at : at + 8]], data["y"][rows[at : at + 8]]
            model.weights -= trial.params["lr"] * 2 * x.T @ (x @ model.weights - y) / len(x)
        model.seen.append(int(data["number"]))
        model.folders.append(data["from"])
        time.sleep(float(os.environ.get("HOP_TEST_SECONDS", "0")))
        trial.report(train_loss=model.loss(data))


def never_looks(trial: Any) -> None:
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        trial.report(val_loss=1.0)


def tracks_nothing(trial: Any) -> None:
    for _ in trial.steps():
        trial.report(val_loss=float(trial.partition["number"]))


def says_nothing_of_evaluation(trial: Any) -> None:
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        trial.report(val_loss=model.loss(trial.partition))


def fails_on_the_second(trial: Any) -> None:
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        if trial.partition["number"] == 1:
            raise RuntimeError("this shard is odd")
        trial.report(val_loss=1.0)


def reports_nothing(trial: Any) -> None:
    model = Linear()
    trial.track(model=model)
    for _ in trial.steps():
        model.seen.append(int(trial.partition["number"]))


def write_partitions(folder: Path, numbers: list[int], *, validation: int = 0, rows: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    truth = np.array([1.0, -2.0, 3.0, 0.5])
    for kind, number in [*(("part", n) for n in numbers), *(("val", n) for n in range(validation))]:
        draw = np.random.default_rng([number, len(kind)])
        x = draw.normal(size=(rows, 4))
        np.savez(folder / f"{kind}-{number}.npz", x=x, y=x @ truth + 0.1 * draw.normal(size=rows), number=number)
