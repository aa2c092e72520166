"""What samplers are judged on: a search space, losses after each unit of training, and how long training takes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpo_core.model.trial import Params
from hpo_core.simulation import CurveTable

FAMILIES = {
    "lcbench": "LCBench",
    "taskset": "TaskSet",
    "deepobs": "DeepOBS",
    "nmtlc": "translation",
    "mlp": "own trainings",
    "trained": "own trainings",
}
"""By the start of a table's name. Tables of a family have much in common, so a choice made on one fits the others."""


class Problem(Protocol):
    """Something to search, and the true value of what a search found.

    A *place* is one configuration of the problem: a row of a table, or the parameters themselves.
    """

    name: str
    family: str
    space: dict[str, Any]
    """As in a study file."""
    max_resource: int
    workers: int
    until: float
    """Seconds on the virtual clock."""
    size: int | None
    """Configurations that it has; None: every proposal is one."""

    def place(self, asked: Params, taken: set[Any]) -> Any:
        """The place nearest to a proposal that is not in ``taken``."""
        ...

    def params(self, place: Any) -> Params: ...

    def loss(self, place: Any, resource: int) -> float: ...

    def seconds(self, place: Any, resource: int) -> float:
        """Cumulative."""
        ...

    def regret(self, place: Any) -> float:
        """Of the configuration fully trained: 0 the best of the problem, 1 its median or worse."""
        ...

    def checkpoint_regret(self, place: Any, resource: int) -> float:
        """Of the checkpoint: 0 the lowest value of the problem, 1 the median over configurations of their lowest."""
        ...


class FunctionProblem:
    """A problem whose places are the parameters themselves."""

    def place(self, asked: Params, taken: set[Any]) -> str:
        return json.dumps(asked, sort_keys=True)

    def params(self, place: str) -> Params:
        found: Params = json.loads(place)
        return found


class TableProblem:
    """A table of learning curves: proposals are moved to its nearest row.

    Distance is Euclidean in the unit cube: numbers on their scale (logarithms where the table says so), ordinal values
    by their place in the list, different choices at distance 1. An ordinal parameter is an integer, the place in its
    list: Optuna has no ordered choices.

    Of rows with the same parameters the first counts: they differ in something that the table does not tell, so only a
    sampler that repeats itself would ever see the others.
    """

    def __init__(self, path: Path, *, workers: int, full_runs: float) -> None:
        with np.load(path) as data:
            meta = json.loads(str(data["meta_json"]))
            values = np.asarray(data["X"], dtype=np.float64)
        kept = np.sort(np.unique(values, axis=0, return_index=True)[1])
        whole = CurveTable.load(path)
        self.curves = CurveTable(whole.name, whole.losses[kept], whole.seconds[kept], whole.mode)
        self.name = path.stem
        self.family = FAMILIES.get(self.name.split("_")[0], self.name)
        self.max_resource = self.curves.max_resource
        self.workers = workers
        self.until = full_runs / workers * float(np.nanmean(self.curves.seconds[:, -1]))
        found = meta["hyperparameters"]
        self._known = list(found.values()) if isinstance(found, dict) else found
        self.space = {one["name"]: _section(one) for one in self._known}
        self.rows: list[Params] = [
            {one["name"]: _value(one, at) for one, at in zip(self._known, row, strict=True)} for row in values[kept]
        ]
        self.size: int | None = len(self.rows)
        self._points = np.array([self._point(row) for row in self.rows])
        losses = np.where(np.isfinite(self.curves.losses), self.curves.losses, np.inf)
        lowest = losses.min(axis=1)
        self._lowest, self._middle = float(lowest.min()), float(np.median(lowest))

    def place(self, asked: Params, taken: set[Any]) -> int:
        apart = ((self._points - self._point(asked)) ** 2).sum(axis=1)
        apart[list(taken)] = np.inf
        return int(np.argmin(apart))

    def params(self, place: int) -> Params:
        return dict(self.rows[place])

    def loss(self, place: int, resource: int) -> float:
        return float(self.curves.losses[place, resource - 1])

    def seconds(self, place: int, resource: int) -> float:
        return float(self.curves.seconds[place, resource - 1])

    def regret(self, place: int) -> float:
        return self.curves.regret(place)

    def checkpoint_regret(self, place: int, resource: int) -> float:
        return min(1.0, (self.loss(place, resource) - self._lowest) / (self._middle - self._lowest))

    def _point(self, params: Params) -> NDArray[np.float64]:
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


def given_tables(data: Path) -> dict[str, TableProblem]:
    """The tables with reference figures, with the workers and the budget that these name."""
    references = json.loads((data / "reference" / "ref_eta3_w9.json").read_text())
    return {
        one["task"]: TableProblem(
            data / "curves" / f"{one['task']}.npz", workers=one["workers"], full_runs=one["budget_full_runs"]
        )
        for one in references
    }


def trained_tables(folder: Path) -> dict[str, TableProblem]:
    """Those that ``trained.py`` has made."""
    return {path.stem: TableProblem(path, workers=9, full_runs=20) for path in sorted(folder.glob("trained_*.npz"))}


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
