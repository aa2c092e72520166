"""An older journal is put back beside a newer MLflow store: that is noticed, and can be made good."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import JournalError
from hpo_core.tracking.follower import Follower, project_study
from tests.mlflow.test_mlflow import NAME, Tracker, play, start, tracker  # noqa: F401 - a fixture


def test_an_older_journal_is_noticed_and_what_is_said_makes_the_copy_anew(
    tracker: Tracker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.uri)
    home = Home(tracker.folder / "home")
    file = home.folder / "journal.db"
    with closing(home.open_journal()) as journal:
        study, clock = start(journal, configs=6)
        play(study, clock, jobs=5)
        with sqlite3.connect(file) as source, sqlite3.connect(tracker.folder / "copy.db") as copy:
            source.backup(copy)
        play(study, clock)
        project_study(home, journal, NAME)
        follower = Follower(journal, tracker.projection())
        assert follower.advance()
    for path in home.folder.glob("journal.db*"):
        path.unlink()
    shutil.copy(tracker.folder / "copy.db", file)
    with closing(home.open_journal()) as older:
        follower.journal = older
        assert not follower.advance() and "An older journal was put back" in follower.trouble
        follower.projection.close()
        with pytest.raises(JournalError, match="An older journal was put back, it seems. Delete the study's runs"):
            project_study(home, older, NAME)
        for run in [*tracker.runs(), tracker.parent()]:
            tracker.client.delete_run(run.info.run_id)
        project_study(home, older, NAME, rebuild=True)
        control = tracker.projection("control")
        control.project(older.entries(NAME))
        control.finish()
        control.close()
    assert tracker.picture() == tracker.picture("control")
