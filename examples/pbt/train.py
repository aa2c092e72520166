"""Recognize digits of which half the pixels are missing: 8 x 8 real images, two at a time, plain SGD.

So small batches of so incomplete images make every step noisy. A large learning rate learns quickly and then stays
noisy, a small one would end well but arrives far too late: what is good changes while the network trains, and
population based training finds out by itself.

Run the study with ``hpo tune examples/pbt/study.yaml``.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from hpo_core import Trial

# Loaded once per worker: every training process inherits what this module holds.
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
valid, test, fit = order[:360], order[360:720], order[720:]  # the same for every trial

STEPS = 100
"""Steps of the optimizer in one unit of training."""


def build_model() -> nn.Module:
    """A network with one hidden layer; the first thing it does in training is to lose half of its input."""
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train_one_unit(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """So many steps, each on two images drawn at random."""
    model.train()
    for batch in fit[torch.randint(0, len(fit), (STEPS, 2))]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def evaluate(model: nn.Module, part: Tensor) -> tuple[Tensor, Tensor]:
    """(cross entropy, accuracy) on ``valid`` or ``test``, with all pixels."""
    model.eval()
    with torch.no_grad():
        logits = model(images[part])
    accuracy = (logits.argmax(dim=1) == labels[part]).float().mean()
    return nn.functional.cross_entropy(logits, labels[part]), accuracy


def train(trial: Trial) -> None:
    """One session of a member of the population: from where its parent stood to the target."""
    model = build_model()
    settings = {"lr": trial.params["learning_rate"], "momentum": trial.params["momentum"]}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    trial.track(model=model, optimizer=optimizer)  # weights and velocities are the parent's, the settings are our own

    for _unit in trial.steps():
        train_one_unit(model, optimizer)
        val_loss, val_accuracy = evaluate(model, valid)
        test_loss, test_accuracy = evaluate(model, test)  # for the report; nothing is chosen by it
        trial.report(val_loss=val_loss, val_accuracy=val_accuracy, test_loss=test_loss, test_accuracy=test_accuracy)
