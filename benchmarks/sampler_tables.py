"""Curve tables as search spaces: a sampler proposes a point, the nearest row not tried yet is trained.

Distance is Euclidean in the unit cube: numbers on their scale (logarithms where the table says so), ordinal values by
their place in the list, different choices at distance 1. The sampler is told the row's values, not its own. That is
the same for all samplers, random search too.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.events import Event
from hpo_core.model.trial import Job, Params
from hpo_core.samplers.sampler import Sampler
from hpo_core.simulation import CurveTable


class SpaceOfTable:
    """The search space of a table, and its rows as configurations.

    An ordinal parameter is the place in its list, an integer: Optuna has no ordered choices.
    """

    def __init__(self, path: Path) -> None:
        self.curves = CurveTable.load(path)
        with np.load(path) as data:
            meta = json.loads(str(data["meta_json"]))
            values = np.asarray(data["X"], dtype=np.float64)
        found = meta["hyperparameters"]
        self._known = list(found.values()) if isinstance(found, dict) else found
        self.space = {one["name"]: _section(one) for one in self._known}
        self.rows: list[Params] = [
            {one["name"]: _value(one, at) for one, at in zip(self._known, row, strict=True)} for row in values
        ]
        self.places = np.array([self.place(row) for row in self.rows])

    def place(self, params: Params) -> NDArray[np.float64]:
        """A point of the unit cube; a choice as one column each."""
        found: list[float] = []
        for one in self._known:
            section, value = self.space[one["name"]], params[one["name"]]
            if section["type"] == "categorical":
                found += [math.sqrt(0.5) * (value == choice) for choice in section["choices"]]
                continue
            low, high = section["low"], section["high"]
            if section.get("log"):
                low, high, value = math.log(low), math.log(high), math.log(value)
            found.append((value - low) / (high - low) if high > low else 0.5)
        return np.array(found)


class RowsOf:
    """A sampler whose answers are moved to rows of a table."""

    def __init__(self, inner: Sampler, table: SpaceOfTable) -> None:
        self._inner, self._table = inner, table
        self._free = np.ones(len(table.rows), dtype=bool)
        self.rows: list[int] = []
        """By trial."""

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        asked = self._inner.propose(number)
        assert asked is not None
        apart = ((self._table.places - self._table.place(asked)) ** 2).sum(axis=1)
        row = int(np.argmin(np.where(self._free, apart, np.inf)))
        self._free[row] = False
        self.rows.append(row)
        return dict(self._table.rows[row])

    def apply(self, event: Event) -> None:
        self._inner.apply(event)

    def train(self, job: Job) -> dict[str, float]:
        return {"loss": float(self._table.curves.losses[self.rows[job.trial], job.target - 1])}

    def cost(self, job: Job) -> float:
        seconds = self._table.curves.seconds[self.rows[job.trial]]
        start = job.checkpoint.resource if job.checkpoint else 0
        return max(0.0, float(seconds[job.target - 1] - (seconds[start - 1] if start else 0.0)))


def _section(one: dict[str, Any]) -> dict[str, Any]:
    if one["type"] == "categorical":
        return {"type": "categorical", "choices": [str(choice) for choice in one["choices"]]}
    if one["type"] == "ordinal":
        return {"type": "int", "low": 0, "high": len(one["choices"]) - 1}
    return {"type": one["type"], "low": one["lower"], "high": one["upper"], "log": bool(one.get("log"))}


def _value(one: dict[str, Any], at: float) -> Any:
    if one["type"] == "categorical":
        return str(one["choices"][int(at)])
    if one["type"] == "ordinal":
        return int(np.argmin(np.abs(np.array(one["choices"], dtype=np.float64) - at)))
    at = min(max(at, one["lower"]), one["upper"])
    return round(at) if one["type"] == "int" else float(at)
