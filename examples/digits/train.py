"""Recognize handwritten digits: 1,797 real 8 x 8 images, a small network, one report per epoch.

Run the study with ``python -m examples.digits.tune`` or ``hpo tune examples/digits/study.yaml``.
"""

from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpo_core import Trial

# Loaded once per worker: every training process inherits what this module holds.
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
valid, fit = order[:360], order[360:]  # the same split for every trial
training_data = TensorDataset(images[fit], labels[fit])


def build_model(params: dict[str, Any]) -> nn.Module:
    """A network with one hidden layer."""
    width = params["width"]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(params["dropout"]), nn.Linear(width, 10))


def build_optimizer(params: dict[str, Any], weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam; ``momentum`` is only there when SGD was chosen."""
    shared = {"lr": params["learning_rate"], "weight_decay": params["weight_decay"]}
    if params["optimizer"] == "sgd":
        return torch.optim.SGD(weights, momentum=params["momentum"], **shared)
    return torch.optim.Adam(weights, **shared)


def train(trial: Trial) -> None:
    """Train one trial to its target; the number of steps is the number of epochs."""
    model = build_model(trial.params)
    optimizer = build_optimizer(trial.params, model.parameters())
    trial.track(model=model, optimizer=optimizer)  # saved at the end, loaded when the trial goes on
    batches = DataLoader(training_data, batch_size=trial.params["batch_size"], shuffle=True)

    for _epoch in trial.steps():
        model.train()
        for batch, target in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            logits = model(images[valid])
        trial.report(
            val_loss=nn.functional.cross_entropy(logits, labels[valid]),
            val_accuracy=(logits.argmax(dim=1) == labels[valid]).float().mean(),
        )
