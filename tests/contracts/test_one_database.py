"""HPO_DATABASE: journal and MLflow in one PostgreSQL database, by one setting."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.replay.audit import audit
from hpo_core.tracking.follower import project_study
from hpo_core.tracking.mlflow_client import open_client
from tests.conftest import World, fresh, make_spec

pytestmark = pytest.mark.postgresql


@pytest.fixture
def database(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of our own on the tests' server, named by the one setting."""
    name = f"hpo_{uuid.uuid4().hex}"
    server = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    server.dispose()
    url = postgresql_url.rpartition("/")[0] + f"/{name}"
    monkeypatch.setenv("HPO_DATABASE", url)
    return url


def test_journal_and_mlflow_live_in_it_together(database: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    study = fresh(make_spec(), home.open_journal(), World(2))
    World(2).play(study)
    journal = home.open_journal()
    assert audit(journal.entries("world")).clean and Study.open("world", journal).status == "finished"
    said = project_study(home, journal, "world")
    assert f"of {study.seq} copied" in said and "0 new entries" in project_study(home, journal, "world")
    client = open_client(database)
    (experiment,) = [e for e in client.search_experiments() if e.name == "hpo"]
    assert experiment.artifact_location == (tmp_path / "mlartifacts").as_uri()
    assert len(client.search_runs([experiment.experiment_id])) == 1 + len(study.state.trials)
    assert not list(tmp_path.glob("*.db")), "no SQLite file beside it"
