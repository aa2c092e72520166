"""Filled-in forms of the flow ``tune``, and the studies that they describe."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_flows.deployed.form import StudyForm, study_of
from hpo_flows.deployed.permissions import Permissions

RATE = {"name": "rate", "low": 1e-4, "high": 1, "log": True}
FILLED: dict[str, Any] = {
    "objective": "models.net:fit",
    "metric": {"name": "val_loss"},
    "space": {"float": [RATE]},
    "search": {"asha": {"configs": 30, "max_resource": 27}},
}
"""The least that a form needs."""


def filled_in(permissions: Permissions, **fields: Any) -> StudySpec:
    """The study that these fields describe."""
    return study_of(StudyForm.read(fields), "named", permissions)


def made(permissions: Permissions, **changes: Any) -> StudySpec:
    """The study of a form with the least that it needs, and changes."""
    return filled_in(permissions, **(FILLED | changes))


ROWS: dict[str, Any] = {
    "objective": "models.net:fit",
    "metric": {"name": "loss"},
    "space": {
        "float": [
            {"name": "x", "low": -1, "high": 1},
            {"name": "lr", "low": 0.001, "high": 1, "log": True},
            {"name": "momentum", "low": 0, "high": 0.9, "when": "{net.kind: [a, 16]}"},
        ],
        "int": [{"name": "net.width", "low": 8, "high": 32, "step": 8}],
        "categorical": [
            {"name": "net.kind", "choices": ["a", "'16'", "16", "true", "null", "0.5"]},
            {"name": "size", "type": "ordinal", "choices": ["1", "2", "4"]},
        ],
    },
    "search": {"random": {"configs": 3, "max_resource": 2}},
    "sampler": {"name": "TPESampler", "arguments": "{n_startup_trials: 5}"},
    "cluster": {"local": {"workers": "{min: 1, max: 4}"}},
    "advanced": "{start_with: [{x: 0.25}], constants: {data: a.npz}, training: {threads: 2, fail_fast: null}}",
}
"""A form with a parameter of each kind, and fields that hold YAML."""
STUDY: dict[str, Any] = {
    "study": "named",
    "objective": "models.net:fit",
    "metric": {"name": "loss"},
    "space": {
        "x": {"type": "float", "low": -1, "high": 1},
        "lr": {"type": "float", "low": 0.001, "high": 1, "log": True},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"net.kind": ["a", 16]}},
        "net.width": {"type": "int", "low": 8, "high": 32, "step": 8},
        "net.kind": {"type": "categorical", "choices": ["a", "16", 16, True, None, 0.5]},
        "size": {"type": "ordinal", "choices": [1, 2, 4]},
    },
    "search": {"method": "random", "configs": 3, "max_resource": 2},
    "sampler": {"name": "TPESampler", "n_startup_trials": 5},
    "cluster": {"kind": "local", "workers": {"min": 1, "max": 4}},
    "start_with": [{"x": 0.25}],
    "constants": {"data": "a.npz"},
    "training": {"threads": 2, "fail_fast": None},
}
"""The study file that says the same."""
