"""The network of hopping_convergence.py: the same build and the same pass over examples, whoever trains it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

MOMENTUM, BATCH = 0.9, 16


def load(path: Path) -> dict[str, torch.Tensor]:
    """A partition, or the whole of the data."""
    with np.load(path) as file:
        return {"x": torch.from_numpy(file["x"]), "y": torch.from_numpy(file["y"])}


def rate_of(first: float, epoch: int, epochs: int) -> float:
    """Learning rate in an epoch, from 0: half of a cosine, so that the end is not noise."""
    return first * 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two hidden layers: the loss is far from convex in their weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=MOMENTUM)


def one_pass(model: nn.Module, optimizer: torch.optim.Optimizer, data: dict[str, torch.Tensor], rate: float) -> None:
    """Mini-batch SGD over all of the examples once, in a random order."""
    x, y = data["x"], data["y"]
    for group in optimizer.param_groups:
        group["lr"] = rate
    model.train()
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def loss(model: nn.Module, data: dict[str, torch.Tensor]) -> float:
    """Cross entropy on all of the examples; of a network that diverged, a thousand at most."""
    model.eval()
    with torch.no_grad():
        found = float(nn.functional.cross_entropy(model(data["x"]), data["y"]))
    return min(found, 1e3) if math.isfinite(found) else 1e3


def train(trial: Any) -> None:
    """As models hop: one pass for each partition."""
    params = trial.params
    model, optimizer = build(params["seed"])
    torch.manual_seed(trial.seed)
    trial.track(model=model, optimizer=optimizer)
    trial.evaluate_with(lambda data: {"val_loss": loss(model, data)})
    for epoch in trial.steps():
        one_pass(model, optimizer, trial.partition, rate_of(params["rate"], epoch, params["epochs"]))
