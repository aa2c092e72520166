"""Requests of single jobs, for tests that train without a study."""

from __future__ import annotations

from typing import Any

import msgspec

from hpo_core.training.request import JobRequest, StudySetup

OF_SETUP = frozenset(StudySetup.__struct_fields__)


def make_request(*, metric: str = "loss", more_metrics: tuple[str, ...] = (), **fields: Any) -> JobRequest:
    """A request from the fields of both, side by side."""
    fields = {"study": "s", "objective": "a:b", "seed": 3} | fields
    setup = {name: value for name, value in fields.items() if name in OF_SETUP}
    own = {name: value for name, value in fields.items() if name not in OF_SETUP}
    return JobRequest(setup=StudySetup(metrics=(metric, *more_metrics), **setup), **own)


def changed(request: JobRequest, **fields: Any) -> JobRequest:
    setup = {name: value for name, value in fields.items() if name in OF_SETUP}
    own = {name: value for name, value in fields.items() if name not in OF_SETUP}
    return msgspec.structs.replace(request, **own).with_setup(**setup)
