"""Training functions with a known need: of this computer's memory, or of a card of the stand-in for NVML."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.training.gpu_stub_objectives import take


def need_of_gb(params):
    return {"memory": 1.1e9 * params["gb"]}


def on_processors(trial):
    block = bytearray(trial.params["mb"] * 1_000_000)
    for place in range(0, len(block), 4096):
        block[place] = 1
    for step in trial.steps():
        time.sleep(0.4)
        trial.report(loss=trial.params["x"] + 1.0 / (step + 1) + 0 * len(block))


def on_card(trial):
    for step in trial.steps():
        take(trial.params["gb"] * 10**9, 10)
        time.sleep(0.4)
        trial.report(loss=trial.params["x"] + 1.0 / (step + 1))


def on_shared_card(trial):
    """As :func:`on_card`, and leaves what CUDA would read for the test."""
    found = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    Path(os.environ["MPS_STUB"], f"child-{os.getpid()}").write_text(json.dumps(found))
    on_card(trial)
