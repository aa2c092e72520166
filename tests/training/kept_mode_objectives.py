"""Training functions that use the stand-in for CUDA, one for each way to train; no tests in here."""

from __future__ import annotations

import numpy as np
import torch
from stub_gpu_objectives import use_gpu

INPUTS = torch.linspace(-1.0, 1.0, 48).reshape(12, 4)
TARGETS = INPUTS.sum(1, keepdim=True).sin()


def train(trial):
    """A small network with dropout, on the "GPU"."""
    use_gpu()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    model = trial.data_parallel(model)
    for _ in trial.steps():
        order = torch.randperm(len(INPUTS))
        for batch in order.split(4):
            x, y = trial.shard(INPUTS[batch], TARGETS[batch])
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(INPUTS), TARGETS)
        trial.report(loss=float(loss), size=float(np.random.random()))


def load(path):
    return torch.full((8, 4), float(path.read_text()))


def train_on_partition(trial):
    use_gpu()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    for _ in trial.steps():
        optimizer.zero_grad()
        loss = (model(trial.partition + torch.rand(8, 4)) ** 2).mean()
        loss.backward()
        optimizer.step()
        trial.report(loss=float(loss))


def dispatch(trial):
    globals()[trial.params["do"]](trial)
