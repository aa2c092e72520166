"""The copy is part of a study's end: it is waited for, goes on by itself, and what is missing is completed later."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpo_core as hpo
from hpo_core.home import Home
from hpo_core.study import Study
from hpo_core.tracking.mlflow_client import open_client
from hpo_core.tracking.tracker_links import CopyProgress, incomplete_copies, read_progress
from hpo_core.tracking.trackers import Trackers, complete_copies
from tests.flows.conftest import LIMIT
from tests.mlflow.test_mlflow import play, start
from tests.waiting import eventually

STARVED_SECONDS = 45.0
"""Longer than a follower was once waited for."""


def train(trial: Any) -> None:
    for _ in trial.steps():
        trial.report(loss=(trial.params["lr"] - 0.3) ** 2)


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = Home(tmp_path / "home")
    shutil.copy(empty_store, found.make_folder() / "mlflow.db")
    return found


def played(home: Home, name: str, configs: int = 4) -> Study:
    """A finished study of a home, copied nowhere."""
    with closing(home.open_journal()) as journal:
        study = play(*start(journal, configs=configs, study=name))
    home.study_folder(name, create=True)
    return study


def trials_in_mlflow(home: Home, name: str) -> int:
    client = open_client(home.default_tracking_uri)
    ids = [found.experiment_id for found in client.search_experiments()]
    wanted = f"tags.`hpo.kind` = 'trial' and tags.`hpo.study` = '{name}' and attributes.status = 'FINISHED'"
    return len(client.search_runs(ids, wanted, max_results=1000))


def progress(home: Home, name: str) -> CopyProgress:
    found = read_progress(home.study_folder(name))
    assert found is not None
    return found


def follower(trackers: Trackers) -> psutil.Process:
    return psutil.Process(trackers._process.pid)  # type: ignore[union-attr]


@pytest.fixture
def starved(home: Home) -> Iterator[tuple[Trackers, psutil.Process]]:
    """A study whose follower gets no processor time."""
    study = played(home, "starved")
    trackers = Trackers(home, study.spec)
    trackers.trials = len(study.state.trials)
    trackers.start()
    process = follower(trackers)
    process.suspend()
    yield trackers, process
    if process.is_running():
        process.kill()


def test_a_wait_that_is_over_says_why_and_leaves_the_copy_to_go_on(
    home: Home, starved: tuple[Trackers, psutil.Process]
) -> None:
    trackers, process = starved
    said: list[str] = []
    trackers.say = said.append
    warning = trackers.finish(seconds=3.0)
    assert warning is not None and "0 of 4 trials" in warning and "`hpo project starved`" in warning
    assert "longer than 3 s" in warning
    assert said == ["copying to MLflow: 0 of 4 trials"]
    assert process.is_running(), "it is not killed"
    assert "MLflow" in (home.study_folder("starved") / "mlflow.log").read_text(), "the log is never empty"
    process.resume()
    eventually(lambda: progress(home, "starved").complete)
    assert trials_in_mlflow(home, "starved") == 4


def test_a_terminal_does_not_wait(starved: tuple[Trackers, psutil.Process]) -> None:
    trackers, process = starved
    said: list[str] = []
    trackers.say, trackers.is_awaited = said.append, False
    assert trackers.finish() is None
    assert said == ["copying to MLflow: 0 of 4 trials; this goes on in the background"] and process.is_running()


def test_a_copy_whose_process_was_killed_is_completed_later(
    home: Home, starved: tuple[Trackers, psutil.Process]
) -> None:
    trackers, process = starved
    process.kill()
    warning = trackers.finish(seconds=LIMIT)
    assert warning is not None and "its process ended" in warning
    assert not progress(home, "starved").complete
    with closing(home.read_journal()) as journal:
        spec = Study.current_spec("starved", journal)
    assert Trackers(home, spec).complete() is None
    assert progress(home, "starved").complete
    assert trials_in_mlflow(home, "starved") == 4


def test_a_run_id_that_mlflow_cannot_give_is_none_after_one_attempt_with_the_reason(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    played(home, "away")
    assert hpo.load("away", home=home.folder).mlflow_run_id is None
    process = psutil.Process(progress(home, "away").process)
    assert process.is_running() and "follower" in " ".join(process.cmdline()), "it goes on, and is not waited for"
    (warning,) = [record.getMessage() for record in caplog.records if "not complete in MLflow" in record.getMessage()]
    assert "refused" in warning and "`hpo project away`" in warning
    process.terminate()


@pytest.mark.slow
def test_one_process_completes_what_is_missing_of_a_home(home: Home) -> None:
    for name in ("one", "two", "three"):
        trackers = Trackers(home, played(home, name, configs=2).spec)
        trackers.start()
        process = follower(trackers)
        process.kill()
        trackers.finish(seconds=LIMIT)
    assert complete_copies(home) == ["one", "three", "two"]
    eventually(lambda: not incomplete_copies(home.folder / "studies"), LIMIT)
    assert [trials_in_mlflow(home, name) for name in ("one", "two", "three")] == [2, 2, 2]
    assert {progress(home, name).process for name in ("two", "three")} == {progress(home, "one").process}
    assert complete_copies(home) == []


def call(home: Home, **more: Any) -> hpo.Result:
    return hpo.tune(
        train, {"lr": hpo.Float(0, 1)}, metric="loss", method=hpo.Asha(configs=4, max_resource=1), name="called",
        home=home.folder, workers=1, progress=False, prefect="off", **more,
    )  # fmt: skip


def followers_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "hpo_core.tracking.follower" in (command := process.cmdline()) and str(folder) in command:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_same_call_again_completes_the_copy_of_a_finished_study(home: Home) -> None:
    def kill(report: Any) -> None:
        for process in followers_of(home.study_folder("called")):
            process.kill()

    call(home, callbacks=[kill])
    assert not progress(home, "called").complete
    assert call(home, resume=True).mlflow_run_id is not None
    assert progress(home, "called").complete and trials_in_mlflow(home, "called") == 4


@pytest.mark.slow
def test_a_call_returns_once_a_starved_copy_is_complete(home: Home) -> None:
    """The process that copies is stopped from the first report on, as on a machine whose processors are all taken."""
    stopped: list[psutil.Process] = []

    def starve(report: Any) -> None:
        if not stopped:
            stopped.extend(followers_of(home.study_folder("called")))
            for process in stopped:
                process.suspend()
                timer = threading.Timer(STARVED_SECONDS, lambda pid=process.pid: os.kill(pid, signal.SIGCONT))
                timer.start()

    began = time.monotonic()
    result = call(home, callbacks=[starve])
    assert stopped and time.monotonic() - began >= STARVED_SECONDS
    assert result.mlflow_run_id is not None
    assert trials_in_mlflow(home, "called") == 4
