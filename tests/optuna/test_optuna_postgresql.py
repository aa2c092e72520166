"""Optuna storages on a real PostgreSQL server: copied to, out of reach for a while, imported from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.study import Study
from hpo_core.tracking.follower import Follower, project_all
from hpo_core.tracking.optuna_import import import_study
from hpo_core.tracking.optuna_projection import OptunaProjection
from tests.mlflow.test_mlflow import NAME, play, start
from tests.postgresql import PostgreSQL

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = PostgreSQL()
    try:
        found.start()
        yield found
    finally:
        found.remove()


def test_a_copy_waits_for_the_server_and_comes_back_by_import(server: PostgreSQL, home: Home) -> None:
    journal = home.open_journal()
    study = play(*start(journal, configs=12))
    projection = OptunaProjection(NAME, server.url, home.study_folder(NAME))
    follower = Follower(journal, projection)
    server.stop()
    assert not follower.advance() and follower.trouble
    server.start()
    assert follower.advance(finish=True) and not follower.trouble
    project_all(projection, journal, study.seq, rebuild=True)
    projection.finish()
    projection.close()
    found = optuna.load_study(study_name=NAME, storage=server.url)
    assert len(found.trials) == 12 and study.best is not None
    assert found.user_attrs["hpo.best_value"] == study.best.loss

    imported = import_study(home, server.url, NAME, name="back")
    assert imported.trials == 12 and imported.results == study.state.completed_jobs
    back = Study.open("back", journal)
    assert back.best is not None and back.best.loss == study.best.loss
    journal.close()


def test_a_database_with_tables_of_the_journal_is_refused(server: PostgreSQL, home: Home) -> None:
    journal = Home(home.folder, journal=server.url).open_journal()
    play(*start(journal, configs=4))
    with pytest.raises(HpoError, match="holds tables of something else"):
        project_all(OptunaProjection(NAME, server.url, home.study_folder(NAME)), journal, 1)
    journal.close()
