"""Training functions of test_state_from_memory.py: small models with every kind of value that a checkpoint holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from memory_units import Weights

import hpo_core


def train(trial: Any) -> None:
    """Some steps of Adam, on a partition if there is one; afterwards it does as it is told."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4), torch.nn.Tanh())
    model.append(model[0])  # tied
    if "megabytes" in trial.params:
        model.register_buffer("large", torch.zeros(int(trial.params["megabytes"] * 250_000)))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    averages, state = Weights(3), hpo_core.State(best=1e9)
    trial.track(model=model, optimizer=optimizer, averages=averages, state=state)
    for _ in trial.steps():
        x = torch.randn(16, 4)
        if trial.params.get("hops"):
            x = x + torch.from_numpy(trial.partition).float()
        optimizer.zero_grad()
        loss = (model(x) - 1.0).square().mean()
        loss.backward()
        optimizer.step()
        averages.values *= 0.5
        averages.values += [loss.item(), np.random.rand(), 1.0]
        state.best = min(state.best, loss.item())
        trial.report(loss=loss.item(), average=float(averages.values.sum()))
    match trial.params.get("after"):
        case "change the model":
            with torch.no_grad():
                model[0].weight.add_(1.0)
        case "change the array":
            averages.values[0] = -1.0
        case "end badly":
            raise ValueError("as it was told")
