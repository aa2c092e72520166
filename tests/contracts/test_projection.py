"""What every projection promises, run against each implementation."""

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
from hpo_core.tracking.mlflow_projection import MlflowProjection
from hpo_core.tracking.projection import Projection, ProjectionBusyError

Make = Callable[[], Projection]
NAME = "contract"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    times = iter(range(1, 10**6))
    spec: dict[str, Any] = {
        "study": NAME,
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
    return list(journal.entries(NAME))


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    open_client(uri)
    return uri


@pytest.fixture(params=["mlflow"])
def make(request: pytest.FixtureRequest, tmp_path: Path, mlflow_uri: str) -> Make:
    """Projections of one study to one place, as many as wanted."""
    assert request.param == "mlflow"
    return lambda: MlflowProjection(NAME, mlflow_uri, str(tmp_path), tmp_path)


def test_counts_what_is_new(make: Make, entries: list[Entry]) -> None:
    projection = make()
    assert projection.next_seq == 0
    assert projection.project(entries[:3]) == 3
    assert projection.next_seq == 3
    assert projection.project(entries[:3]) == 0
    assert projection.project(entries) == len(entries) - 3
    projection.finish()
    projection.finish()
    projection.close()
    assert make().project(entries) == 0


def test_begins_again_when_told(make: Make, entries: list[Entry]) -> None:
    projection = make()
    projection.project(entries)
    assert projection.project(entries, rebuild=True) == len(entries)


def test_refuses_a_gap(make: Make, entries: list[Entry]) -> None:
    projection = make()
    projection.project(entries[:2])
    with pytest.raises(JournalError, match="entry 3 was given where entry 2 is next"):
        projection.project(entries[3:])
    assert projection.project(entries) == len(entries) - 2


def test_one_process_at_a_time(make: Make, entries: list[Entry]) -> None:
    first, second = make(), make()
    first.project(entries)
    with pytest.raises(ProjectionBusyError):
        second.project(entries)
    first.close()
    assert second.project(entries) == 0


def test_nothing_projected_is_no_error(make: Make) -> None:
    projection = make()
    projection.finish()
    assert projection.project([]) == 0
    projection.close()


def test_importing_the_package_imports_no_tracker() -> None:
    code = (
        "import sys, hpo_core.tracking, hpo_core.tracking.mlflow_projection; "
        "assert 'mlflow' not in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
