"""Syne Tune 0.13 with its defaults: BOHB, MOBSTER, HyperTune, ASHA (they stop trials) and DyHPO (it pauses them)."""

from __future__ import annotations

import datetime
from typing import Any

from protocol import serve
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform
from syne_tune.optimizer import baselines

ETA, DAY = 3, datetime.datetime(2026, 1, 1)


def domain(one: dict[str, Any]) -> Any:
    if one["type"] == "categorical":
        return choice(one["choices"])
    if one["low"] == one["high"]:
        return one["low"]
    if one["type"] == "int":
        return (lograndint if one.get("log") else randint)(one["low"], one["high"])
    return (loguniform if one.get("log") else uniform)(one["low"], one["high"])


class SyneTune:
    def __init__(self, start: dict[str, Any]) -> None:
        self._names, self._most = list(start["space"]), start["resource"]
        rungs = {} if start["method"] == "DyHPO" else {"reduction_factor": ETA}
        space = {name: domain(one) for name, one in start["space"].items()} | {"epochs": self._most}
        self._scheduler = getattr(baselines, start["method"])(
            space, metric="loss", mode="min", resource_attr="epoch", max_resource_attr="epochs", grace_period=1,
            random_seed=start["seed"], search_options={"debug_log": False}, **rungs,
        )  # fmt: skip
        self._trials: dict[str, Trial] = {}
        self._reached: dict[str, int] = {}
        self._number = 0

    def ask(self) -> dict[str, Any]:
        suggestion = self._scheduler.suggest(self._number)
        if suggestion is None:
            return {"wait": True}
        if suggestion.spawn_new_trial_id:
            trial = Trial(self._number, suggestion.config, DAY)
            self._scheduler.on_trial_add(trial)
            self._trials[str(self._number)] = trial
            self._number += 1
        else:
            trial = self._trials[str(suggestion.checkpoint_trial_id)]
        start = self._reached.get(str(trial.trial_id), 0)
        params = {name: plain(trial.config[name]) for name in self._names}
        return {"trial": str(trial.trial_id), "params": params, "start": start, "target": start + 1}

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]:
        result = {"loss": loss, "epoch": resource}
        self._reached[trial] = resource
        if resource >= self._most:
            self._scheduler.on_trial_complete(self._trials[trial], result)
            return {}
        decision = self._scheduler.on_trial_result(self._trials[trial], result)
        return {"target": resource + 1} if decision == "CONTINUE" else {}


def plain(value: Any) -> Any:
    """Without NumPy's types."""
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    serve(SyneTune)
