"""The parameters that Prefect shows of a study which a command or another flow opened."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows import tune
from tests.conftest import make_spec

LIMIT = 524_288
"""Bytes of parameters that a Prefect server takes (``PREFECT_SERVER_API_MAX_PARAMETER_SIZE``)."""


def shown(spec: StudySpec, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the flow is called with."""
    calls: list[dict[str, Any]] = []

    class Flow:
        def with_options(self, **_options: Any) -> Any:
            return lambda **parameters: calls.append(parameters)

    monkeypatch.setattr(tune, "tune", Flow())
    tune.run_in_flow(spec, lambda: None)
    (parameters,) = calls
    return parameters


def test_a_rerun_of_thousands_of_trials_is_shown_by_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record holds all their parameters and grants, and a Prefect server refuses what is that long."""
    study = Study.create(
        make_spec(
            objective="tests.flows.objectives:good", search={"method": "random", "configs": 3500, "max_resource": 1}
        )
    )
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": float(job.trial)})
    spec = rerun_spec(list(study.journal.entries(study.name)), "again")
    assert len(repr(spec.plain())) > LIMIT
    parameters = shown(spec, monkeypatch)
    assert parameters["method"] == {"method": "recorded", "source": study.name}
    assert parameters["name"] == "again" and len(repr(parameters)) < LIMIT / 10
