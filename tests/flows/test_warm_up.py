"""Imports for the report, which a thread makes while a study runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import StorageError
from hpo_core.report.parameters import ENOUGH
from hpo_core.study import Study
from hpo_flows.study_run import session as module
from hpo_flows.study_run.session import Session
from tests.conftest import make_spec


@pytest.mark.parametrize(
    ("from_results", "order"), [(1, ["imports of 3", "report"]), pytest.param(4, ["report"], marks=pytest.mark.slow)]
)
def test_the_report_is_written_once_its_imports_are_made(
    from_results: int, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plotly asks half imported packages for what they do not have yet: the study of a second ended with its error.

    They begin with the first result for which no job is granted, the last one here: before, they would hold up jobs.
    """
    ended: list[str] = []

    def slow_imports() -> None:
        results = Study.open(spec.study, driven.journal).state.completed_jobs
        time.sleep(1.0)
        ended.append(f"imports of {results}")

    def write_report(*arguments: object, **named: object) -> Path:
        ended.append("report")
        raise StorageError("the order is known")

    assert module.IMPORTANCES_FROM == ENOUGH
    monkeypatch.setattr(module, "IMPORTANCES_FROM", from_results)
    monkeypatch.setattr("hpo_core.report.prepare", slow_imports)
    monkeypatch.setattr("hpo_core.report.write_report", write_report)
    spec = make_spec(
        objective="tests.flows.objectives:good",
        pythonpath=[str(Path(__file__).parents[2])],
        search={"method": "random", "configs": 3, "max_resource": 1},
        cluster={"kind": "local", "workers": 1},
        tracking={"mlflow": "off"},
    )
    driven = Session(Home(tmp_path / "home"), spec.study, spec=spec)
    try:
        driven.run()
    finally:
        driven.close()
    assert ended == order
