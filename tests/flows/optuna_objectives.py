"""Objectives as Optuna users write them; nothing in here knows of this package."""

import numpy as np
import optuna


def conditional(trial):
    """Reports every epoch, asks whether to go on; momentum is suggested for one optimizer only."""
    x = trial.suggest_float("x", -1.0, 1.0)
    momentum = 0.0
    if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
        momentum = trial.suggest_float("momentum", 0.0, 0.5)
    loss = x**2 + momentum
    for epoch in range(9):
        loss += float(np.random.random()) * 1e-3 + 1.0 / (epoch + 1)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss
