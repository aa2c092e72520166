"""What the three searches have in common: data, network, an epoch of training, and a note of each result's time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

TRIALS, EPOCHS, ETA, WORKERS, SEED = 18, 9, 3, 2, 1

_digits = load_digits()
_images = torch.tensor(_digits.data, dtype=torch.float32) / 16
_labels = torch.tensor(_digits.target)
_order = torch.randperm(len(_images), generator=torch.Generator().manual_seed(0))
_valid, _fit = _order[:360], _order[360:]


def build(learning_rate: float, width: int, momentum: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with one hidden layer, and its optimizer."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)


def train_one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train, and return the loss on the validation images."""
    for batch in _fit[torch.randperm(len(_fit))].split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(_images[batch]), _labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(_images[_valid]), _labels[_valid]).item()
    with Path(os.environ["SEARCH_LOG"]).open("a") as file:
        file.write(f"{time.time()}\n")
    return loss


def loss_of(state: dict[str, Any], learning_rate: float, width: int, momentum: float) -> float:
    """Loss of saved weights: that a checkpoint is one."""
    model, _ = build(learning_rate, width, momentum)
    model.load_state_dict(state)
    with torch.no_grad():
        return nn.functional.cross_entropy(model(_images[_valid]), _labels[_valid]).item()


def say(**held: Any) -> None:
    """Print what a program holds at its end; the driver reads the last line."""
    print(json.dumps(held))
