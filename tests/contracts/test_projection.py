"""The projection of a journal in MLflow: each entry once, in order, by one process."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import open_client
from hpo_core.tracking.mlflow_projection import MlflowProjection, ProjectionBusyError
from tests.contract_suites.fake_training import STUDY

MakeProjection = Callable[[], MlflowProjection]


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    open_client(uri)
    return uri


@pytest.fixture
def make_projection(tmp_path: Path, mlflow_uri: str) -> MakeProjection:
    """A function that makes projections of the study ``STUDY``, all to the same, initially empty place."""
    return lambda: MlflowProjection(STUDY, mlflow_uri, str(tmp_path), tmp_path)


@pytest.fixture
def entries() -> list[Entry]:
    times = iter(range(1, 10**6))
    spec: dict[str, Any] = {
        "study": STUDY,
        "metric": {"name": "score", "mode": "max"},
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "search": {"method": "asha", "configs": 4, "max_resource": 4, "reduction_factor": 2},
    }
    journal = MemoryJournal()
    study = Study.create(spec, journal, clock=lambda: float(next(times)))
    jobs = deque(study.set_capacity(2))
    while jobs:
        job = jobs.popleft()
        jobs.extend(study.tell(job, {"score": job.params["x"] * job.target}))
    return list(journal.entries(STUDY))


def test_each_entry_is_projected_once(make_projection: MakeProjection, entries: list[Entry]) -> None:
    projection = make_projection()
    assert projection.next_seq == 0
    assert projection.project(entries[:3]) == 3
    assert projection.next_seq == 3
    assert projection.project(entries[:3]) == 0
    assert projection.project(entries) == len(entries) - 3
    projection.finish()
    projection.finish()
    projection.close()
    assert make_projection().project(entries) == 0


def test_a_missing_entry_is_refused(make_projection: MakeProjection, entries: list[Entry]) -> None:
    projection = make_projection()
    projection.project(entries[:2])
    with pytest.raises(JournalError, match="entry 3 was given where entry 2 is next"):
        projection.project(entries[3:])
    assert projection.project(entries) == len(entries) - 2


def test_a_second_projection_at_once_is_refused(make_projection: MakeProjection, entries: list[Entry]) -> None:
    first, second = make_projection(), make_projection()
    first.project(entries)
    with pytest.raises(ProjectionBusyError):
        second.project(entries)
    first.close()
    assert second.project(entries) == 0


def test_importing_the_tracking_package_imports_no_tracker() -> None:
    code = (
        "import sys, hpo_core.tracking, hpo_core.tracking.mlflow_projection; "
        "assert 'mlflow' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
