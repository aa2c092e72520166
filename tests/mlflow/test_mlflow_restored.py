"""An older journal is put back beside a newer MLflow store: that is noticed, and can be made good."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.errors import JournalError
from hpo_core.model.trial import Job, Report
from hpo_core.tracking.follower import Follower, project_study
from hpo_core.tracking.tracked_study import FINAL, TRAINED_TO
from tests.mlflow.test_mlflow import NAME, Clock, Tracker, good, play, start, tracker  # noqa: F401 - a fixture

CONTROL = "control"


def worse(job: Job, clock: Clock) -> Report:
    """The second history trains the same jobs to other results."""
    report = good(job, clock)
    report.metrics["val_loss"] += 1.0
    for point in report.curve:
        point.metrics["val_loss"] += 1.0
    return report


class Restored:
    """A study that was played to its end, and copied on the way."""

    def __init__(self, tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.uri)
        self.tracker = tracker
        self.home = Home(tracker.folder / "home")
        self.file = self.home.folder / "journal.db"
        journal = self.home.open_journal()
        study, clock = start(journal, configs=6)
        play(study, clock, jobs=5)
        with sqlite3.connect(self.file) as source, sqlite3.connect(tracker.folder / "copy.db") as copy:
            source.backup(copy)
        play(study, clock)
        self.entries = study.seq
        project_study(self.home, journal, NAME)
        journal.close()
        assert tracker.parent().data.tags["hpo.projected_seq"] == str(study.seq - 1)

    def put_back(self) -> SqlJournal:
        for path in self.home.folder.glob("journal.db*"):
            path.unlink()
        shutil.copy(self.tracker.folder / "copy.db", self.file)
        return self.home.open_journal()

    def go_on(self, journal: SqlJournal, jobs: int = 10**6) -> Study:
        """As a controller does that resumes, an hour later."""
        clock = Clock(1_767_225_600.0 + 3600)
        study = Study.open(NAME, journal, clock=clock)
        study.recover("resumed")
        return play(study, clock, worse, jobs=jobs)

    def assert_as_in_the_journal(self, journal: SqlJournal) -> None:
        """Each run has each step of a curve once, and all is as in a store that never saw the other history."""
        for run in [*self.tracker.runs(), self.tracker.parent()]:
            for key in run.data.metrics:
                steps = Counter(step for step, _, _ in self.tracker.history(run, key))
                if run.data.tags["hpo.kind"] == "trial":
                    one_value = key.startswith(FINAL) or key == TRAINED_TO  # the latest counts; it is no curve
                    assert set(steps) == {0} if one_value else set(steps.values()) == {1}, (
                        run.info.run_name,
                        key,
                        steps,
                    )
        control = self.tracker.projection(CONTROL)
        control.project(journal.entries(NAME))
        control.finish()
        control.close()
        assert self.tracker.picture() == self.tracker.picture(CONTROL)


@pytest.mark.parametrize(
    "jobs", [0, pytest.param(3, marks=pytest.mark.slow), 10**6], ids=["at once", "shorter", "longer"]
)
def test_an_older_journal_is_noticed_and_what_is_said_makes_the_copy_anew(
    tracker: Tracker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
) -> None:
    case = Restored(tracker, monkeypatch)
    journal = case.put_back()
    if jobs:
        case.go_on(journal, jobs)
    with pytest.raises(JournalError, match="An older journal was put back, it seems. Delete the study's runs"):
        project_study(case.home, journal, NAME)
    for run in [*tracker.runs(), tracker.parent()]:
        tracker.client.delete_run(run.info.run_id)
    project_study(case.home, journal, NAME, rebuild=True)
    case.assert_as_in_the_journal(journal)


def test_a_journal_that_is_put_back_under_a_follower(
    tracker: Tracker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Restored(tracker, monkeypatch)
    journal = case.home.open_journal()
    follower = Follower(journal, tracker.projection())
    assert follower.advance()
    follower.journal = case.put_back()
    assert not follower.advance() and "An older journal was put back" in follower.trouble
    follower.projection.close()


def test_a_store_of_an_older_version_is_gone_on_with(
    tracker: Tracker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no digest; nothing is made anew for that."""
    case = Restored(tracker, monkeypatch)
    tracker.client.delete_tag(tracker.parent().info.run_id, "hpo.projected_digest")
    before = [run.info.run_id for run in tracker.runs()]
    journal = case.home.open_journal()
    Study.open(NAME, journal).extend(2)
    project_study(case.home, journal, NAME)
    assert [run.info.run_id for run in tracker.runs()][: len(before)] == before
    assert tracker.parent().data.tags["hpo.projected_digest"]
    assert Path(case.home.study_folder(NAME)).exists()
