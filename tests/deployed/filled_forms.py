"""Filled-in forms of the flow ``tune``, and the studies that they describe."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_flows.deployed.form import DaskScheduler, FilledIn, LocalWorkers, read_form, study_of, with_changes
from hpo_flows.deployed.form_schema import DEFAULT_METHOD
from hpo_flows.deployed.permissions import Permissions


def filled_in(permissions: Permissions, *, cluster: Any = None, **fields: Any) -> StudySpec:
    """The study that the fields of a form describe, by the name ``study``."""
    return study_of(read_form(FilledIn, fields), permissions, cluster)


def made(permissions: Permissions, cluster: LocalWorkers | DaskScheduler | None = None, **changes: Any) -> StudySpec:
    """The study of a form, as the flow makes it."""
    chosen = cluster or LocalWorkers(workers=3)
    fields: dict[str, Any] = {
        "objective": "models.net:fit",
        "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "log": True}],
        "choices": [{"name": "kind", "values": ["sgd", "16", "true", "no", "1e-3", "'8'"]}],
        "method": DEFAULT_METHOD,
    }
    spec = filled_in(permissions, cluster=cluster, **(fields | changes))
    return with_changes(spec, "named", permissions, seed=4, cluster=chosen)
