"""Features that the core asks for by name: a folder each, imported once a study needs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from hpo_core.model.errors import SpecError

FEATURES = {
    "gangs": "hpo_core.gangs",
    "packing": "hpo_core.packing",
    "sharing": "hpo_core.pool",
    "hopping": "hpo_core.execution.hopping",
    "MLflow": "hpo_core.tracking",
    "Optuna": "hpo_core.optuna",
    "report": "hpo_core.report",
}
"""Package of each; without it and its line everything else works."""


def feature(name: str, module: str) -> ModuleType:
    """Import a module of a feature.

    Raises:
        SpecError: this installation is without the feature.
    """
    if name not in FEATURES:
        raise SpecError(f"This needs {name}, which this installation of hpo-core does not have; install the whole.")
    return import_module(f"{FEATURES[name]}.{module}")
