from __future__ import annotations

import time
from typing import Any

from tests.flows.objectives import Weights


def paced(trial: Any) -> None:
    weights = Weights()
    trial.track(weights=weights)
    for _ in trial.steps():
        time.sleep(trial.params["pause"])
        weights.value += 1.0
        trial.report(loss=trial.params["x"] ** 2 + 1.0 / weights.value)
