"""Recognize digits with a network that hops: each worker has some of the images, the weights travel.

Run ``hpo partition examples.hopping.digits:arrays --parts 8 --to examples/hopping/shards --stratify labels
--validation 0.2 --validation-parts 2`` once, then the study with ``hpo tune examples/hopping/network.yaml``.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hpo_core import Trial


def build_model(params: dict[str, Any]) -> nn.Module:
    """A network with one hidden layer."""
    width = params["width"]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def tensors(partition: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Images and labels of a partition."""
    return torch.from_numpy(partition["images"]), torch.from_numpy(partition["labels"])


def evaluate(model: nn.Module, partition: dict[str, Any]) -> dict[str, Tensor]:
    """Metrics on one partition; the study gets their means over all of them."""
    images, labels = tensors(partition)
    model.eval()
    with torch.no_grad():
        logits = model(images)
    return {
        "val_loss": nn.functional.cross_entropy(logits, labels),
        "val_accuracy": (logits.argmax(dim=1) == labels).float().mean(),
    }


def train(trial: Trial) -> None:
    """Train on one partition after the other; the resource of the study counts epochs, which are all of them."""
    model = build_model(trial.params)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["learning_rate"], momentum=trial.params["momentum"])
    trial.track(model=model, optimizer=optimizer)  # what travels to the worker that holds the next partition
    trial.evaluate_with(lambda partition: evaluate(model, partition))

    for _ in trial.steps():
        images, labels = tensors(trial.partition)
        model.train()
        for batch in torch.randperm(len(images)).split(trial.params["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
