"""Training functions that workers import by name: this module is light, for each worker imports it anew."""

from __future__ import annotations

import time
from pathlib import Path

import hpo_core as hpo


class FullError(Exception):
    """An exception of the user's own."""


def train(trial: hpo.Trial) -> None:
    for step in trial.steps():
        trial.report(loss=(trial.params["x"] - 0.3) ** 2 + 1 / (step + 1), cost=trial.params["x"])


def patient(trial: hpo.Trial) -> None:
    """Waits in its second step for the file that the constant ``gate`` names."""
    for step in trial.steps():
        while step and not Path(trial.params["gate"]).exists():
            time.sleep(0.02)
        trial.report(loss=trial.params["x"] + 1 / (step + 1))


class Trains:
    """A class whose objects are called with the trial."""

    def __call__(self, trial: hpo.Trial) -> None:
        train(trial)


def fails(trial: hpo.Trial, first: int = 0) -> None:
    if trial.number >= first:
        raise FullError("the glass")
    train(trial)


def fails_at_once(trial: hpo.Trial) -> None:
    raise ValueError("on purpose")
