"""Training functions that write down which GPU they may see."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def _seen() -> list[str]:
    return [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")]


AT_IMPORT = _seen()


def train(trial: Any) -> None:
    """Write a line for each attempt, then take a moment, so that all workers get jobs."""
    line = {"trial": trial.number, "rank": trial.rank, "import": AT_IMPORT, "run": _seen(), "pid": os.getpid()}
    with Path(trial.params["file"]).open("a") as opened:
        opened.write(json.dumps(line) + "\n")
    for _ in trial.steps():
        time.sleep(trial.params["seconds"])
        trial.report(loss=trial.params["x"])


def on_card(trial: Any) -> None:
    """Hold memory of the card that the stand-in for NVML shows, as :func:`train` otherwise."""
    from tests.training.gpu_stub_objectives import take

    take(trial.params["gb"] * 10**9, 10)
    train(trial)
