"""Training functions of jobs with several seeds; without torch, which every process would import."""

from __future__ import annotations

import os
import time
from typing import Any

from hpo_core import State


def unlucky(trial: Any) -> None:
    """Repeat 1 fails in the way that its parameter says."""
    memory = State(steps=0)
    trial.track(memory=memory)
    for _ in trial.steps():
        memory.steps += 1
        if trial.repeat == 1 and trial.params["x"] == 0.25:
            raise KeyError("no such layer")
        if trial.repeat == 1 and trial.params["x"] == 0.5:
            os._exit(3)
        trial.report(loss=float("nan") if trial.repeat == 1 and trial.params["x"] == 0.75 else trial.seed * 1.0)
        print(f"repeat {trial.repeat} goes on in {trial.folder.name}")


def slow(trial: Any) -> None:
    for _ in trial.steps():
        time.sleep(0.3)
        trial.report(loss=1.0)
