"""Training functions for searches that stop trials; each notes its steps in a file of its trial."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import optuna

import hpo_core as hpo
from hpo_core.integrations import EpochSteps


def note(trial_number: int, step: int, folder: str) -> None:
    """Add a line ``PROCESS STEP`` to the trial's file."""
    with Path(folder, f"trial-{trial_number}").open("a") as file:
        file.write(f"{os.getpid()} {step}\n")


def noted(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """(process, step) of all steps that were trained, by trial."""
    return {
        int(file.name.removeprefix("trial-")): [
            (int(process), int(step)) for process, step in map(str.split, file.read_text().splitlines())
        ]
        for file in folder.glob("trial-*")
    }


def draws(trial: hpo.Trial) -> None:
    """A loss that depends on all steps before, through the global generator; nothing is tracked."""
    loss = 0.0
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        loss += trial.params["x"] + random.random()
        trial.report(loss=loss, target=trial.target, reached=trial.resource)


def holds(trial: hpo.Trial) -> None:
    """Takes four megabytes more with each step."""
    held = []
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        held.append(b"1" * 4_000_000)
        trial.report(loss=float(len(held)))


def slow(trial: hpo.Trial) -> None:
    loss = 0.0
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        time.sleep(0.1)
        loss += trial.params["x"] + random.random()
        trial.report(loss=loss)


def after_the_loop(trial: hpo.Trial) -> None:
    """Reports once, when its loop has ended."""
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
    trial.report(loss=trial.params["x"])


def diverges(trial: hpo.Trial) -> None:
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        trial.report(loss=trial.params["x"] if step < 2 else float("nan"))


def fails_once(trial: hpo.Trial) -> None:
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        first = not Path(trial.params["folder"], f"failed-{trial.number}").exists()
        if step == 4 and first:
            Path(trial.params["folder"], f"failed-{trial.number}").touch()
            raise RuntimeError("once")
        trial.report(loss=trial.params["x"])


def cleans_up(trial: hpo.Trial) -> None:
    """Leaves a file when it is left, however."""
    try:
        for step in trial.steps():
            note(trial.number, step, trial.params["folder"])
            trial.report(loss=trial.params["x"])
    finally:
        Path(trial.params["folder"], f"left-{trial.number}").touch()


def suggests(trial: Any) -> float:
    x, loss = trial.suggest_float("x", 0, 1), 0.0
    for step in range(9):
        note(trial.number, step, os.environ["NOTES"])
        loss += x + random.random()
        trial.report(loss, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(loss)


def hangs(trial: hpo.Trial) -> None:
    for step in trial.steps():
        note(trial.number, step, trial.params["folder"])
        time.sleep(600 if step == 1 else 0)
        trial.report(loss=trial.params["x"])


def loops_as_a_library(trial: hpo.Trial) -> None:
    """Decides before the end of an epoch that it is the last, as Lightning and transformers do."""
    epochs, generator = EpochSteps(trial), random.Random(trial.seed)
    epochs.begin({"generator": generator})
    is_last = False
    while not is_last:
        note(trial.number, trial.resource, trial.params["folder"])
        epochs.report({"loss": generator.random()})
        is_last = trial.resource + 1 >= trial.target
        epochs.next()
