"""The parameters that Prefect shows of a study which a command or another flow opened."""

from __future__ import annotations

from hpo_core.replay.rerun import rerun_spec
from hpo_core.study import Study
from hpo_flows.prefect_pages.tune_flow import shown_parameters
from tests.conftest import make_spec

LIMIT = 524_288
"""Bytes of parameters that a Prefect server takes (``PREFECT_SERVER_API_MAX_PARAMETER_SIZE``)."""


def test_a_rerun_of_thousands_of_trials_is_shown_by_its_source() -> None:
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
    parameters = shown_parameters(spec)
    assert parameters["search"].startswith(f'{{"method": "recorded", "source": "{study.name}"')
    assert parameters["name"] == "again" and len(repr(parameters)) < LIMIT / 10
