"""Train and evaluate on the data that ``trial.params["data"]`` names; without it, on period 0."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from examples.retrain.periods import digits_of
from hpo_core import Trial


def load(data: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to fit, images and labels to validate with."""
    if data:
        with np.load(data) as file:
            images, labels = file["images"], file["labels"]
    else:
        images, labels = digits_of(0)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels).long()
    return inputs[250:], targets[250:], inputs[:250], targets[:250]


def build(params: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with one hidden layer, and its optimizer."""
    model = nn.Sequential(nn.Linear(64, params["width"]), nn.ReLU(), nn.Linear(params["width"], 10))
    return model, torch.optim.Adam(model.parameters(), lr=params["learning_rate"])


def train(trial: Trial) -> None:
    """Train one trial to its target; the number of steps is the number of epochs."""
    images, labels, valid, targets = load(trial.params.get("data"))
    model, optimizer = build(trial.params)
    trial.track(model=model, optimizer=optimizer)
    for _epoch in trial.steps():
        for batch in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(val_loss=nn.functional.cross_entropy(model(valid), targets))


def evaluate(trial: Trial) -> Tensor:
    """A trained model on the data named: the metric, and the loss of each example for the drift check."""
    _, _, valid, targets = load(trial.params.get("data"))
    model, _ = build(trial.params)
    trial.track(model=model)  # its weights are loaded
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model(valid), targets, reduction="none")
    trial.report(val_loss=losses.mean())
    return losses
