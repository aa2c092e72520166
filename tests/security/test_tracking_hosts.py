"""MLflow's credentials go to the server of MLFLOW_TRACKING_URI alone; a study names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import SpecError
from hpo_core.replay.restored_study import _adapted
from hpo_core.study import Study
from tests.conftest import make_spec
from tests.flows.conftest import Runner
from tests.security.listening import listening

PASSWORD = "mlfl0w-pl4nted"
CREDENTIALS = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": PASSWORD}


def finished(home: Path, uri: str | None = None) -> None:
    """A recorded study; one of an earlier version names an MLflow."""
    memory, journal = MemoryJournal(), Home(home).open_journal()
    spec = make_spec(study="toy", tracking={})
    study = Study.create(spec, memory)
    while (job := study.ask()) is not None:
        study.tell(job, {spec.metric.name: 0.5})
    changes = {"tracking": {"mlflow": uri}}
    journal.restore("toy", (_adapted(entry, changes) for entry in memory.entries("toy")))
    journal.close()


def test_a_server_that_a_recorded_study_names_hears_nothing(hpo: Runner) -> None:
    hpo.environment |= CREDENTIALS
    with listening() as (url, heard):
        finished(hpo.home, url)
        assert "copied; mlflow ui --backend-store-uri sqlite" in hpo("project", "toy")
        assert not heard


@pytest.mark.parametrize("uri", ["http://h:5000", "databricks", "sqlite:////srv/a.db", f"http://me:{PASSWORD}@h"])
def test_a_study_names_no_server(uri: str) -> None:
    with pytest.raises(SpecError, match=r"tracking\.mlflow: .*name the server in MLFLOW_TRACKING_URI") as caught:
        make_spec(tracking={"mlflow": uri})
    assert PASSWORD not in str(caught.value)
