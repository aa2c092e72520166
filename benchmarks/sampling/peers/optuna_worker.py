"""Optuna: TPESampler or GPSampler with HyperbandPruner or SuccessiveHalvingPruner; a trial reports every unit."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from protocol import serve

ETA = 3


def distribution(one: dict[str, Any]) -> Any:
    if one["type"] == "categorical":
        return CategoricalDistribution(one["choices"])
    kind = IntDistribution if one["type"] == "int" else FloatDistribution
    return kind(one["low"], one["high"], log=bool(one.get("log")))


class Optuna:
    def __init__(self, start: dict[str, Any]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler, pruner = start["method"].split("+")
        self._most, self._space = start["resource"], start["space"]
        self._study = optuna.create_study(
            study_name=f"seed {start['seed']}",  # from it and the trial's number HyperbandPruner chooses the bracket
            sampler={"TPE": optuna.samplers.TPESampler, "GP": optuna.samplers.GPSampler}[sampler](seed=start["seed"]),
            pruner=optuna.pruners.HyperbandPruner(1, self._most, ETA)
            if pruner == "Hyperband"
            else optuna.pruners.SuccessiveHalvingPruner(1, ETA),
        )
        self._trials: dict[str, optuna.Trial] = {}

    def ask(self) -> dict[str, Any]:
        trial = self._study.ask()
        params: dict[str, Any] = {}
        for name, one in self._space.items():  # a dynamic space, as training functions write it
            if all(params.get(parent) == wanted for parent, wanted in one.get("when", {}).items()):
                params[name] = trial._suggest(name, distribution(one))
        self._trials[str(trial.number)] = trial
        return {"trial": str(trial.number), "params": params, "start": 0, "target": 1}

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]:
        running = self._trials[trial]
        running.report(loss, resource)
        if resource >= self._most:
            self._study.tell(running, loss)
            return {}
        if running.should_prune():
            self._study.tell(running, state=TrialState.PRUNED)
            return {}
        return {"target": resource + 1}


if __name__ == "__main__":
    serve(Optuna)
