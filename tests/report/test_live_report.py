"""The page that follows a study: its versions, its changing part, and its command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import StudyNotFoundError
from hpo_core.report import live
from hpo_core.report.live import LiveReport
from hpo_flows.command import app
from tests.cli.test_console import played
from tests.flows.conftest import LIMIT
from tests.methods import spec_of
from tests.report.test_report import World
from tests.report.test_trials_data import data_of


def version(report: LiveReport) -> dict[str, object]:
    answer = report.answer("version")
    assert answer is not None and answer.kind == "application/json"
    found: dict[str, object] = json.loads(answer.body)
    return found


def test_the_page_follows_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_REST", 0.0)
    world = World(failing=False)
    report = LiveReport(world.journal, "digits-mlp", tmp_path)
    first = report.answer("")
    assert first is not None and "Nothing to draw yet" in first.body and "plotly.js v" in first.body
    assert "function showTrials" in first.body, "what is needed once there are trials"
    assert data_of(first.body)["live"] == 2.0
    before = version(report)
    assert before == {"version": data_of(first.body)["version"], "ended": False}
    world.play(12)
    assert version(report)["version"] != before["version"]
    fragment = report.answer("fragment")
    assert fragment is not None and "plotly.js v" not in fragment.body and len(fragment.body) < 1_000_000
    assert len(data_of(fragment.body)["trials"]["rows"]) == len(world.study.state.trials)
    world.study.stop("enough")
    assert version(report)["ended"] is True
    assert report.answer("anything") is None


def test_a_page_that_takes_long_is_not_written_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_REST", 1e9)
    world = World(failing=False)
    report = LiveReport(world.journal, "digits-mlp", tmp_path)
    before = version(report)
    world.play(5)
    assert version(report) == before


def test_a_study_that_is_not_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(StudyNotFoundError):
        LiveReport(MemoryJournal(), "digits", tmp_path).answer("")


@pytest.mark.parametrize("arguments", [["--live", "--out", "x.html"], ["--port", "8000"]])
def test_options_that_contradict_each_other_are_refused(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", "world", *arguments, "--home", str(tmp_path)])
    assert result.exit_code != 0 and "hpo report: --" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_a_finished_study_until_it_is_interrupted(how: signal.Signals, tmp_path: Path) -> None:
    played(tmp_path, spec_of("random"))
    command = [sys.executable, "-m", "hpo_core.cli", "report", "world", "--live", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\S+/", process.stdout.readline())
        with urllib.request.urlopen(url, timeout=600) as answer:
            page = answer.read().decode()
        assert "world" in page and data_of(page)["trials"]["rows"]
        process.send_signal(how)
        assert process.wait(timeout=LIMIT) == 0
    finally:
        process.kill()
        process.wait(timeout=LIMIT)
    assert not Home(tmp_path).report_path("world").exists(), "nothing is written"
