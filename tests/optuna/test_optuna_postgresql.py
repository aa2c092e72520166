"""Optuna storages on a real PostgreSQL server: copied to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from hpo_core.home import Home
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


def test_a_copy_holds_every_trial(server: PostgreSQL, home: Home) -> None:
    with closing(home.open_journal()) as journal:
        study = play(*start(journal, configs=12))
    study.to_optuna(server.url)
    copy = optuna.load_study(study_name=NAME, storage=server.url)
    assert len(copy.trials) == 12 and study.best is not None and copy.best_value == study.best.loss
