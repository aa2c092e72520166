"""Training functions for tests: quick, without torch, each bad in its own way where its name says so."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import numpy as np
import psutil


class Weights:
    """The least that can be tracked."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def good(trial):
    """Accumulates noise from numpy's global generator, so that a wrong resume shows in the metric."""
    weights = Weights()
    trial.track(weights=weights)
    for _ in trial.steps():
        time.sleep(0.01)
        weights.value += float(np.random.random()) * 1e-3
        trial.report(loss=trial.params["x"] ** 2 + 1.0 / (trial.resource + 1) + weights.value)


def slow(trial):
    """Like good, 0.15 s a step."""
    weights = Weights()
    trial.track(weights=weights)
    for _ in trial.steps():
        time.sleep(0.15)
        weights.value += float(np.random.random()) * 1e-3
        trial.report(loss=trial.params["x"] ** 2 + weights.value)


def held(trial):
    """Like slow; while the file that the constant ``gate`` names is there, trials from the number in it on wait."""
    with contextlib.suppress(FileNotFoundError):
        while trial.number >= int(Path(trial.params["gate"]).read_text()):
            time.sleep(0.1)
    slow(trial)


def logs_to_prefect(trial):
    """Uses Prefect as a task of the user's would."""
    from prefect import get_run_logger
    from prefect.runtime import flow_run

    for step in trial.steps():
        get_run_logger().warning("step %d of trial %d in %s, run %s", step, trial.number, flow_run.name, flow_run.id)
        trial.report(loss=trial.params["x"] ** 2)


def ends_workers(trial):
    """Says which trial trains in the file that the constant ``marks`` names; the third trial kills its worker."""
    with Path(trial.params["marks"]).open("a") as marks:
        marks.write(f"{trial.number}\n")
    if trial.number == 2:
        above = psutil.Process().parents()
        (controller,) = [place for place, process in enumerate(above) if "tune" in process.cmdline()]
        above[controller - 1].kill()
        time.sleep(60)
    good(trial)


def raises(trial):
    for _ in trial.steps():
        raise ValueError(f"width {trial.params['x']:.3f} is not what I like")


def nan(trial):
    weights = Weights()
    trial.track(weights=weights)
    for _ in trial.steps():
        trial.report(loss=float("nan") if trial.params["x"] < 0 else trial.params["x"])


def never(trial):
    for _ in trial.steps():
        trial.report(loss=float("nan"))


def fills_disk(trial):
    """A checkpoint larger than the small disk the study lives on."""

    class Large:
        def state_dict(self):
            return {"weights": np.zeros(trial_bytes // 8)}

        def load_state_dict(self, state):
            pass

    trial_bytes = int(os.environ.get("TEST_CHECKPOINT_BYTES", "200000"))
    trial.track(model=Large())
    for _ in trial.steps():
        trial.report(loss=trial.params["x"] ** 2)


def heavy(trial):
    """Like good, with a checkpoint of 300,000 bytes of noise."""
    weights = Weights()
    ballast = np.random.default_rng(7)  # one for all: members of a population go on with another's
    noise = {"noise": ballast.integers(0, 256, 300_000 - 2_600, dtype=np.uint8)}

    class Ballast:
        def state_dict(self):
            return noise

        def load_state_dict(self, state):
            assert state["noise"].tobytes() == noise["noise"].tobytes()

    trial.track(weights=weights, ballast=Ballast())
    for _ in trial.steps():
        time.sleep(0.01)
        weights.value += float(np.random.random()) * 1e-3
        trial.report(loss=trial.params["x"] ** 2 + 1.0 / (trial.resource + 1) + weights.value)
