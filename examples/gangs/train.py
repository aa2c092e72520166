"""The digits of the first example, each trial trained by a gang of two ranks: two lines are new.

Run the study with ``hpo tune examples/gangs/study.yaml``. With ``--set training.gang=1`` each trial trains alone.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

from examples.digits.train import build_model, build_optimizer, images, labels, training_data, valid
from hpo_core import Trial


def train(trial: Trial) -> None:
    """Train one trial to its target; the number of steps is the number of epochs."""
    model = build_model(trial.params)
    optimizer = build_optimizer(trial.params, model.parameters())
    trial.track(model=model, optimizer=optimizer)  # saved at the end, loaded when the trial goes on
    model = trial.data_parallel(model)  # changed: gradients are averaged over the ranks
    batches = DataLoader(training_data, batch_size=trial.params["batch_size"], shuffle=True)

    for _epoch in trial.steps():
        model.train()
        for batch, target in batches:
            batch, target = trial.shard(batch, target)  # changed: this rank's part
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
