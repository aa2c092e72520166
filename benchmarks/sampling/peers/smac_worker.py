"""SMAC3's MultiFidelityFacade with its defaults, ask and tell. Each evaluation trains from the beginning."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from protocol import serve
from smac import MultiFidelityFacade, Scenario
from smac.runhistory import TrialInfo, TrialValue
from spaces import config_space, plain

MOST_TRIALS = 5000


class Smac:
    def __init__(self, start: dict[str, Any]) -> None:
        self._space = start["space"]
        scenario = Scenario(
            config_space(self._space, start["seed"]), deterministic=True, n_trials=MOST_TRIALS, min_budget=1,
            max_budget=start["resource"], seed=start["seed"], output_directory=Path(tempfile.mkdtemp()),
        )  # fmt: skip
        self._smac = MultiFidelityFacade(
            scenario, lambda config, seed, budget: 0.0, logging_level=False, overwrite=True
        )
        self._trials: dict[Any, str] = {}
        self._jobs: dict[tuple[str, int], list[TrialInfo]] = {}

    def ask(self) -> dict[str, Any]:
        info = self._smac.ask()
        trial = self._trials.setdefault(info.config, str(len(self._trials)))
        target = max(1, round(info.budget))
        self._jobs.setdefault((trial, target), []).append(info)
        return {"trial": trial, "params": plain(self._space, info.config), "start": 0, "target": target}

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]:
        self._smac.tell(self._jobs[trial, resource].pop(), TrialValue(cost=loss, time=resource), save=False)
        return {}


if __name__ == "__main__":
    serve(Smac)
