"""HEBO with its defaults. It knows no early results: every trial is trained in full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hebo.design_space.design_space import DesignSpace
from hebo.optimizers.hebo import HEBO
from protocol import serve


def section(name: str, one: dict[str, Any]) -> dict[str, Any]:
    if one["type"] == "categorical":
        return {"name": name, "type": "cat", "categories": one["choices"]}
    kind = ("pow_int" if one.get("log") else "int") if one["type"] == "int" else ("pow" if one.get("log") else "num")
    return {"name": name, "type": kind, "lb": one["low"], "ub": one["high"]}


class Hebo:
    def __init__(self, start: dict[str, Any]) -> None:
        np.random.seed(start["seed"])
        self._most = start["resource"]
        space = DesignSpace().parse([section(name, one) for name, one in start["space"].items()])
        self._hebo = HEBO(space, scramble_seed=start["seed"])
        self._trials: list[pd.DataFrame] = []

    def ask(self) -> dict[str, Any]:
        proposal = self._hebo.suggest(n_suggestions=1)
        self._trials.append(proposal)
        row = proposal.iloc[0].to_dict()
        params = {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        return {"trial": str(len(self._trials) - 1), "params": params, "start": 0, "target": self._most}

    def tell(self, trial: str, resource: int, loss: float) -> dict[str, Any]:
        self._hebo.observe(self._trials[int(trial)], np.array([[loss]]))
        return {}


if __name__ == "__main__":
    serve(Hebo)
