"""Training functions of gangs whose ranks have a partition of the data each, and a judge in one process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hpo_core.training.saved_state import seed_all
from tests.gangs.lab import plain_net

BATCH = 16
WIDTH = 12
SECONDS = 0.06
"""Of an example in :func:`train_as_on_devices`."""


def write_partitions(folder: Path, sizes: Sequence[int]) -> list[str]:
    """Files of so many examples each; returns their names."""
    draws = np.random.default_rng(3)
    names = []
    for place, size in enumerate(sizes):
        x = draws.normal(size=(size, WIDTH)).astype(np.float32)
        np.savez(folder / f"part-{place}.npz", x=x, y=(x[:, :3].sum(1) > 0).astype(np.int64) + 2 * (x[:, 3] > 0.5))
        names.append(f"part-{place}.npz")
    return names


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def train(trial: Any, seconds: float = 0.0) -> None:
    """A pass over the partition of this rank; alone over that of the process.

    Args:
        seconds: of an example, where each rank has a device of its own.
    """
    model: nn.Module = plain_net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    trial.track(model=model, optimizer=optimizer)
    trial.evaluate_with(lambda part: {"loss": _loss(model, *load(part))})
    wrapped = trial.data_parallel(model)
    for _ in trial.steps():
        x, y = load(trial.partition)
        for batch in trial.batches(torch.randperm(len(x)), BATCH):
            time.sleep(seconds * len(batch))
            optimizer.zero_grad()
            _loss(wrapped, x[batch], y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(seen=float(_loss(model, x, y)))


def train_as_on_devices(trial: Any) -> None:
    """As :func:`train`, and g ranks see g partitions in the time of one: two cores cannot compute for four at once."""
    train(trial, SECONDS)


def train_wrongly(trial: Any) -> None:
    """As functions do that know nothing of such gangs."""
    how = trial.params["how"]
    model: nn.Module = plain_net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.track(model=model, optimizer=optimizer)
    if how != "alone":
        model = trial.data_parallel(model)
    for _ in trial.steps():
        x, y = load(trial.partition)
        size = BATCH + trial.rank if how == "sizes" else BATCH
        order = torch.randperm(len(x))
        for batch in order.split(size) if how in ("alone", "plain", "shard") else trial.batches(order, size):
            if how == "shard":
                batch = trial.shard(batch)
            optimizer.zero_grad()
            _loss(model, x[batch], y[batch]).backward()
            optimizer.step()
        trial.report(seen=0.0)


def train_in_a_plain_gang(trial: Any) -> None:
    """All ranks read all of the data; ``loop`` says by which words each takes its part."""
    torch.manual_seed(7)
    x, y = torch.randn(70, WIDTH), torch.randint(0, 4, (70,))
    torch.manual_seed(trial.seed)
    model = plain_net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.track(model=model, optimizer=optimizer)
    wrapped = trial.data_parallel(model)
    for _ in trial.steps():
        order = torch.randperm(len(x))
        by_hand = trial.params["loop"] == "by hand"
        for batch in map(trial.shard, order.split(BATCH)) if by_hand else trial.batches(order, BATCH):
            optimizer.zero_grad()
            _loss(wrapped, x[batch], y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(loss=float(_loss(model, x, y)))


def merged(orders: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(rank, index) of all examples: example i of n stands at (2 i + 1) / (2 n), of equals the lower rank first."""
    places = [
        (Fraction(2 * place + 1, 2 * len(order)), rank, index)
        for rank, order in enumerate(orders)
        for place, index in enumerate(order)
    ]
    return [(rank, int(index)) for _, rank, index in sorted(places)]


def trained_by_one(folder: Path, groups: Sequence[Sequence[str]], *, seed: int, lr: float) -> Iterator[Any]:
    """States of the model after each unit, in one process that trains on the same batches; shares no code with gangs.

    Args:
        groups: names of the partitions that are seen together.
    """
    seed_all(seed)
    model = plain_net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for names in groups:
        parts = [load(folder / name) for name in names]
        state = torch.random.get_rng_state()
        orders = []
        for x, _ in parts:  # each rank draws from the same state; the first one's goes on
            torch.random.set_rng_state(state)
            orders.append(torch.randperm(len(x)).tolist())
        torch.random.set_rng_state(state)
        torch.randperm(len(parts[0][0]))
        examples = merged(orders)
        for first in range(0, len(examples), BATCH):
            x = torch.stack([parts[rank][0][index] for rank, index in examples[first : first + BATCH]])
            y = torch.stack([parts[rank][1][index] for rank, index in examples[first : first + BATCH]])
            optimizer.zero_grad()
            _loss(model, x, y).backward()
            optimizer.step()
        yield {name: value.clone() for name, value in model.state_dict().items()}


def train_slowly(trial: Any) -> None:
    """As ``train``, half a second a unit; ranks of gangs write down who they are."""
    if trial.world_size > 1:
        Path(trial.folder, f"rank-{trial.rank}.pid").write_text(str(os.getpid()))
    time.sleep(0.5)
    train(trial)
