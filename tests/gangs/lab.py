from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

torch.manual_seed(7)
X = torch.randn(210, 12)
Y = (X[:, :3].sum(1) > 0).long() + 2 * (X[:, 3] > 0.5).long()
BATCH = 32


def net(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 4)
    )


def plain_net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def train(trial: Any) -> None:
    """As for one process, but for two lines."""
    model = plain_net(int(trial.params.get("width", 24)))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    model = trial.data_parallel(model)
    for _ in trial.steps():
        for batch in torch.randperm(len(X)).split(BATCH):
            x, y = trial.shard(X[batch], Y[batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(loss=float(nn.functional.cross_entropy(model(X), Y)))


SECONDS = 0.01
"""Of an example, where each rank has a device of its own: two cores cannot compute for four ranks at once."""


def train_as_on_devices(trial: Any) -> None:
    """As :func:`train`, and an example takes its time wherever it is computed: two ranks need half of one's."""
    model = plain_net(24)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    model = trial.data_parallel(model)
    for _ in trial.steps():
        for batch in torch.randperm(len(X)).split(2 * BATCH):
            x, y = trial.shard(X[batch], Y[batch])
            time.sleep(SECONDS * len(x))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(loss=float(nn.functional.cross_entropy(model(X), Y)))


def train_plainly(trial: Any) -> None:
    """The README's function with three changed lines: its loss is that of the rank's part."""
    model = plain_net(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    model = trial.data_parallel(model)
    for _ in trial.steps():
        x, y = trial.shard(X, Y)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss=loss)


def train_noisy(trial: Any) -> None:
    """Dropout and normalization: each rank draws, and keeps statistics, of its own."""
    torch.manual_seed(trial.seed + trial.rank)
    order = torch.Generator().manual_seed(trial.seed)
    torch.manual_seed(trial.seed)
    model = nn.Sequential(net(24), nn.Dropout(0.3), nn.Linear(4, 4))
    torch.manual_seed(trial.seed + trial.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    trial.track(model=model, optimizer=optimizer, order=order)
    model = trial.data_parallel(model)
    for _ in trial.steps():
        model.train()
        for batch in torch.randperm(len(X), generator=order).split(BATCH):
            x, y = trial.shard(X[batch], Y[batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            trial.report(loss=float(nn.functional.cross_entropy(model(X), Y)))


def _first_time(trial: Any) -> bool:
    """Whether no attempt before did so, where it is to happen once."""
    marker = Path(trial.folder, "happened")
    if trial.params.get("once") and marker.exists():
        return False
    marker.write_text("")
    return True


def misbehaves(trial: Any) -> None:
    """One rank does what ``how`` says, in its second step; the others train on."""
    how, culprit = trial.params["how"], trial.params["culprit"]
    model = plain_net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.track(model=model, optimizer=optimizer)
    if how != "apart":
        model = trial.data_parallel(model)
    Path(trial.folder, f"rank-{trial.rank}.pid").write_text(str(os.getpid()))
    for step in trial.steps():
        if step == 1 and trial.rank == culprit and _first_time(trial):
            if how == "raise":
                raise KeyError("no such layer")
            if how == "memory":
                raise MemoryError("all of it")
            if how == "exit":
                os._exit(3)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if how == "spin":
                while True:
                    pass
            if how == "leave":
                break
        batch = torch.randperm(len(X))[:BATCH]
        x, y = (X[batch], Y[batch]) if how == "apart" else trial.shard(X[batch], Y[batch])
        if how == "apart":
            x, y = x[trial.rank :: trial.world_size], y[trial.rank :: trial.world_size]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if how == "slow":
            time.sleep(0.5)
        odd = trial.rank == culprit
        trial.report(loss=0.5 + (0.25 if how == "value" and odd else 0.0))
        if how == "metric" and odd:
            trial.report(other=1.0)
