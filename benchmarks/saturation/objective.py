"""A job that waits as long as its parameter says."""

import time


def train(trial):
    """Nothing is tracked, so nothing is saved."""
    for _ in trial.steps():
        time.sleep(trial.params["x"])
        trial.report(loss=trial.params["x"])
