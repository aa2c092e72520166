"""The job of overhead.py: 10 ms, however many steps it has, and one number."""

import random
import time

SECONDS = 0.010


def train(trial):
    """Sleep; nothing is tracked, so nothing is saved."""
    for _ in trial.steps():
        time.sleep(SECONDS)
        trial.report(loss=trial.params["x"])


def train_computing(trial):
    """Keep a core busy instead."""
    for _ in trial.steps():
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            pass
        trial.report(loss=trial.params["x"])


def train_saving(trial):
    """Sleep 10 ms in all, and track a generator: a checkpoint is written, and read by the next job."""
    trial.track(state=random.Random(trial.seed))
    pause = SECONDS / (trial.target - trial.resource)
    for _ in trial.steps():
        time.sleep(pause)
        trial.report(loss=trial.params["x"])
