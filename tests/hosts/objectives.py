from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.flows.objectives import Weights


class Ballast:
    """Makes a checkpoint large."""

    def __init__(self, megabytes: int) -> None:
        self._array = np.zeros(megabytes * 125_000)

    def state_dict(self) -> dict[str, Any]:
        return {"array": self._array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._array = state["array"]


def traced(trial: Any) -> None:
    """Sleeps ``seconds`` a step; noise from numpy's generator shows a wrong resume; ``megabytes`` of ballast.

    The file ``HOST-PROCESS-TRIAL`` in the folder ``trace`` holds the first and the last moment at which it trained.
    """
    weights = Weights()
    trial.track(weights=weights, ballast=Ballast(trial.params.get("megabytes", 0)))
    trace = Path(trial.params["trace"]) / f"{socket.gethostname()}-{os.getpid()}-{trial.number}"
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    for _ in trial.steps():
        until = time.monotonic() + trial.params["seconds"]
        while time.monotonic() < until:
            time.sleep(0.1)
            trace.write_text(f"{began} {time.clock_gettime(time.CLOCK_BOOTTIME)}")
        weights.value += float(np.random.random()) * 1e-3
        trial.report(loss=trial.params["x"] ** 2 + weights.value)
