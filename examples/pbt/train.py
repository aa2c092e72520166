"""Recognize digits that never stand in the same place twice: 8 x 8 pixels, small batches, plain SGD.

Small batches make every step noisy. A large learning rate learns quickly and then stays noisy, a small one ends well
but far too late: what is good changes while the network trains, which population based training finds out by itself.

Run the study with ``hpo tune examples/pbt/study.yaml``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

# Loaded once per worker: every training process inherits what this module holds.
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
valid, test, fit = order[:360], order[360:720], order[720:]  # the same for every trial
BATCH = 4


def shifted(batch):
    """A batch moved by up to one pixel in each direction."""
    down, right = torch.randint(0, 3, (2,)).tolist()
    return nn.functional.pad(batch, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]


def build_model():
    """A network with one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train_one_epoch(model, optimizer):
    """Each image of the training set once, in random order."""
    model.train()
    for batch in fit[torch.randperm(len(fit))].split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(shifted(images[batch])), labels[batch]).backward()
        optimizer.step()


def evaluate(model, part):
    """(cross entropy, accuracy) on ``valid`` or ``test``, unshifted."""
    model.eval()
    with torch.no_grad():
        logits = model(images[part])
    accuracy = (logits.argmax(dim=1) == labels[part]).float().mean()
    return nn.functional.cross_entropy(logits, labels[part]), accuracy


def train(trial):
    """One session of a member of the population: a few epochs from where its parent stood."""
    model = build_model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=trial.params["learning_rate"], momentum=trial.params["momentum"]
    )
    trial.track(model=model, optimizer=optimizer)  # weights and velocity are the parent's, the settings are our own

    for _epoch in trial.steps():
        train_one_epoch(model, optimizer)
        val_loss, val_accuracy = evaluate(model, valid)
        trial.report(val_loss=val_loss, val_accuracy=val_accuracy, test_loss=evaluate(model, test)[0])
