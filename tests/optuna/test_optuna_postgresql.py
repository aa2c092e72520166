"""Optuna storages on a real PostgreSQL server: copied to, and imported from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from hpo_core.home import Home
from hpo_core.study import Study
from hpo_core.tracking.optuna_import import import_study
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


def test_a_copy_comes_back_by_import(server: PostgreSQL, home: Home) -> None:
    journal = home.open_journal()
    study = play(*start(journal, configs=12))
    study.to_optuna(server.url)
    assert len(optuna.load_study(study_name=NAME, storage=server.url).trials) == 12 and study.best is not None
    imported = import_study(home, server.url, NAME, name="back")
    assert imported.trials == 12
    back = Study.open("back", journal)
    assert back.best is not None and back.best.loss == study.best.loss
    journal.close()
