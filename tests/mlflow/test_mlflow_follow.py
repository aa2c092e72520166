from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.home import Home
from hpo_core.journal.sql import SqlJournal, current_owner
from hpo_core.tracking.follower import REQUEST, Follower, FollowRequest, TrackerError, project_study
from hpo_core.tracking.tracker_links import read_place, reason_of, run_url
from tests.mlflow.test_mlflow import NAME, Tracker, play, start
from tests.waiting import eventually

QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


class Child:
    """A follower, its standard input in our hand."""

    def __init__(self, folder: Path, journal: SqlJournal, uri: str, **more: Any) -> None:
        self.log = folder / "follow.log"
        place = str(folder / "study")
        request = FollowRequest(journal=journal.url, study=NAME, folder=place, uri=uri, interval=0.2, **more)
        command = [sys.executable, "-m", "hpo_core.tracking.follower", place]
        environment = os.environ | {REQUEST: msgspec.json.encode(request).decode()}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, stdout=log, env=environment)

    def end(self, timeout: float = 600) -> int:
        self.process.stdin.close()
        return self.process.wait(timeout)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqlJournal]:
    made = SqlJournal(f"sqlite:///{tmp_path / 'journal.db'}")
    yield made
    made.close()


def test_follows_a_study_while_it_goes_on_and_ends_with_its_input(tmp_path: Path, journal: SqlJournal) -> None:
    tracker = Tracker(tmp_path)
    study, clock = start(journal, configs=6)
    child = Child(tmp_path, journal, tracker.uri)
    try:
        play(study, clock, jobs=2)
        eventually(lambda: tracker.client.get_experiment_by_name("hpo") and len(tracker.runs()) >= 2)
        assert tracker.parent().info.status == "RUNNING"
        play(study, clock)
        assert child.end() == 0
    finally:
        child.process.kill()
    assert tracker.parent().data.tags["hpo.status"] == "finished"
    assert int(tracker.parent().data.tags["hpo.projected_seq"]) == study.seq - 1
    assert "mlflow ui --backend-store-uri" in child.log.read_text()


@pytest.mark.slow
def test_a_server_that_comes_up_later_gets_everything(tmp_path: Path, journal: SqlJournal, free_port: int) -> None:
    tracker = Tracker(tmp_path)
    uri = f"http://127.0.0.1:{free_port}"
    study, clock = start(journal, configs=4)
    child = Child(tmp_path, journal, uri, artifact_location=(tmp_path / "art").as_uri())
    server = None
    try:
        play(study, clock, jobs=3)
        eventually(lambda: "cannot be copied to MLflow" in child.log.read_text())
        server = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "mlflow"), "server", "--backend-store-uri", tracker.uri,
                "--host", "127.0.0.1", "--port", str(free_port), "--workers", "1",
            ],
            env=os.environ | QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
            start_new_session=True,
        )  # fmt: skip
        eventually(lambda: "caught up again" in child.log.read_text())
        play(study, clock)
        assert child.end() == 0
    finally:
        child.process.kill()
        if server is not None:
            os.killpg(server.pid, signal.SIGTERM)  # older MLflow's command leaves its web server behind
            server.wait(600)
    lines = child.log.read_text().splitlines()
    assert sum("cannot be copied" in line for line in lines) == 1
    assert f"{uri}/#/experiments/" in child.log.read_text()
    assert tracker.parent().info.status == "FINISHED"
    assert len(tracker.runs()) == 4
    assert tracker.text(tracker.parent(), "promotions.csv").startswith("time,trial,")


def test_a_study_taken_over_is_not_called_over(
    tmp_path: Path, journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(tmp_path)
    play(*start(journal, configs=4), jobs=2)
    follower = Follower(journal, tracker.projection())
    journal.claim(NAME, current_owner())  # this process lives and is not the follower's parent
    assert follower.advance(finish=True)
    assert tracker.parent().info.status == "RUNNING"
    monkeypatch.setattr(follower, "parent", os.getpid())
    assert follower.advance(finish=True)
    assert tracker.parent().info.status == "KILLED"


def test_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    home = Home(tmp_path / "home")
    journal = home.open_journal()
    study = play(*start(journal, configs=2, top=1))
    assert project_study(home, journal, NAME).startswith(f"{NAME}: {study.seq} new entries of {study.seq} copied; mlf")
    assert "0 new entries" in project_study(home, journal, NAME)
    place = read_place(home.study_folder(NAME))
    assert place is not None and place.url.startswith("mlflow ui")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port}")
    with pytest.raises(TrackerError, match=r"was not copied to MLflow at http://127") as caught:
        project_study(home, journal, NAME)
    assert "secret" not in str(caught.value)


def test_links() -> None:
    assert run_url("http://me:pw@h:5000/", "2", "abc") == (
        "http://h:5000/#/experiments/2/runs/abc?workflowType=machine_learning"
    )
    assert run_url("sqlite:////x/mlflow.db", "2", "abc") == "mlflow ui --backend-store-uri sqlite:////x/mlflow.db"
    assert reason_of(ValueError("http://me:pw@h:1/x\nfailed")) == "ValueError: http://h:1/x failed"
