"""Filled-in forms of the flow ``tune``, and the studies that they describe."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_flows.deployed.form import FilledIn, read_form, study_of
from hpo_flows.deployed.permissions import Permissions


def filled_in(permissions: Permissions, *, cluster: Any = None, **fields: Any) -> StudySpec:
    """The study that the fields of a form describe, by the name ``study``."""
    return study_of(read_form(FilledIn, fields), permissions, cluster)
