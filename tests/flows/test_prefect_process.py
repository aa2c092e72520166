"""The controller's end of the process that shows its study: a stand-in for that process, over real pipes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hpo_flows.prefect_pages.prefect_process import RESTARTS, PrefectProcess, ShowRequest

from tests.flows.conftest import LIMIT


class Told:
    """A process that runs a shell script instead, and what a person is told."""

    def __init__(self, folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        program = folder / "program"
        program.write_text(f"#!/bin/sh\ncd {folder}\necho begun >> starts\n{script}\n")
        program.chmod(0o700)
        self.folder = folder
        self.said: list[str] = []
        self.addresses = 0
        self.cancels = 0
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            self.process = PrefectProcess(
                ShowRequest(study="s", action="tune", start=0, began=0.0, runs_folder=str(folder)),
                folder,
                journal="sqlite:///none",
                environment=os.environ,
                say=self.said.append,
                on_shown=self.on_shown,
                on_cancel=self.on_cancel,
            )

    def on_shown(self) -> None:
        self.addresses += 1

    def on_cancel(self) -> None:
        self.cancels += 1

    def starts(self) -> int:
        place = self.folder / "starts"
        return len(place.read_text().split()) if place.exists() else 0


def until(there: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while not there.exists():
        assert time.monotonic() < deadline, there
        time.sleep(0.02)


def test_the_address_is_said_while_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, "echo 0; touch shown; cat > ending", monkeypatch)
    until(tmp_path / "shown")
    deadline = time.monotonic() + LIMIT
    while not told.addresses and time.monotonic() < deadline:
        time.sleep(0.02)
    told.process.end(error="why")
    assert told.process.wait(LIMIT) and told.addresses == 1 and told.said == []
    assert '"why"' in (tmp_path / "ending").read_text()


def test_the_address_is_not_said_below_the_summary_of_a_short_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path, "cat > ending; echo 0", monkeypatch)
    told.process.end()
    assert told.process.wait(LIMIT) and told.addresses == 0


def test_a_killed_process_is_replaced_and_told_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, "test -e killed && exec cat > ending; touch killed; kill -9 $$", monkeypatch)
    until(tmp_path / "killed")
    told.process.end(links={"Report": "here"})
    assert told.process.wait(LIMIT) and told.starts() == 2
    assert "here" in (tmp_path / "ending").read_text()


def test_a_process_that_is_killed_each_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, "kill -9 $$", monkeypatch)
    assert not told.process.wait(LIMIT) and told.starts() == 1 + RESTARTS
    assert "Prefect shows this study no longer" in told.said[-1]


def test_one_that_fails_by_itself_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, "exit 1", monkeypatch)
    assert not told.process.wait(LIMIT) and told.starts() == 1


def test_a_cancel_is_told_while_the_study_runs_and_not_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path, "echo 1; touch cancelled; cat > ending; echo 1", monkeypatch)
    until(tmp_path / "cancelled")
    deadline = time.monotonic() + LIMIT
    while not told.cancels and time.monotonic() < deadline:
        time.sleep(0.02)
    told.process.end(interrupted=True)
    assert told.process.wait(LIMIT) and told.cancels == 1 and told.addresses == 0
