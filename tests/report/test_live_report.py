"""The report that is written anew while its study runs, and its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_core.report.study_page import LiveReport
from tests.cli.test_console import played
from tests.methods import spec_of
from tests.report.test_report import World
from tests.report.test_trials_data import data_of
from tests.waiting import LIMIT


def test_the_file_is_written_anew_where_the_journal_has_grown(tmp_path: Path) -> None:
    world, page = World(failing=False), tmp_path / "report.html"
    report = LiveReport(world.journal, "digits-mlp", page)
    assert report.write()
    assert "Nothing to draw yet" in page.read_text() and data_of(page.read_text())["live"] > 0
    before = page.stat().st_ino
    assert report.write() and page.stat().st_ino == before, "nothing new"
    world.play(12)
    assert report.write()
    assert len(data_of(page.read_text())["trials"]["rows"]) == len(world.study.state.trials)
    world.study.stop("enough")
    assert not report.write()
    assert data_of(page.read_text())["live"] == 0, "it loads itself no more"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_a_study_until_it_is_interrupted(how: signal.Signals, tmp_path: Path) -> None:
    played(tmp_path, spec_of("random"), steps=2)
    command = [sys.executable, "-m", "hpo_core.cli", "report", "world", "--live", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        assert " follows world. Ctrl-C ends that" in process.stdout.readline()
        page = tmp_path / "studies" / "world" / "report.html"
        assert data_of(page.read_text())["live"] > 0
        process.send_signal(how)
        assert process.wait(timeout=LIMIT) == 0
        assert data_of(page.read_text())["live"] == 0
    finally:
        process.kill()
        process.wait(timeout=LIMIT)
