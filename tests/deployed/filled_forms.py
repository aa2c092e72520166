"""Filled-in forms of the flow ``tune``, and the studies that they describe."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_flows.deployed.form import StudyForm, study_of
from hpo_flows.deployed.permissions import Permissions

ASHA: dict[str, Any] = {"asha": {"configs": 30, "max_resource": 27}}
RATE = {"name": "rate", "low": 1e-4, "high": 1, "log": True}
KIND = {"name": "kind", "choices": ["sgd", "16", "true", "no", "1e-3", "'8'"]}


def filled_in(permissions: Permissions, **fields: Any) -> StudySpec:
    """The study that the fields of a form describe, by the name ``study``."""
    return study_of(StudyForm.read(fields), "study", permissions)


def made(permissions: Permissions, **changes: Any) -> StudySpec:
    """The study of a form, as the flow makes it."""
    fields: dict[str, Any] = {
        "objective": "models.net:fit",
        "metric": {"name": "val_loss"},
        "space": {"float": [RATE], "categorical": [KIND]},
        "search": ASHA,
        "cluster": {"local": {"workers": "3"}},
        "seed": 4,
    }
    return study_of(StudyForm.read(fields | changes), "named", permissions)
