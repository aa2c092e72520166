"""What the commands say of trials that failed: reason, traceback, log, and the exit code where most did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpo_core.home import Home
from hpo_core.model.trial import Outcome
from hpo_core.study import Study
from tests.cli.test_console import hpo
from tests.conftest import completed, failed, make_spec

TRACEBACK = "Traceback (most recent call last):\n  File train.py\nValueError: bad \x1b[2J x\n"


def half_failed(folder: Path) -> None:
    """A study whose first trial failed and whose second one succeeded."""
    journal = Home(folder).open_journal()
    study = Study.create(make_spec(search={"method": "random", "configs": 2, "max_resource": 1}), journal)
    first, second = study.set_capacity(2)
    study.tell_report(failed(first, Outcome.ERROR, "ValueError: bad \x1b[2J x", detail=TRACEBACK))
    study.tell_report(completed(second, 0.5))
    log = folder / "studies/world/logs/trial-00000-attempt-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("printed")
    journal.close()


def test_status_says_why_trials_failed(tmp_path: Path) -> None:
    half_failed(tmp_path)
    text = hpo(tmp_path, "status", "world")
    assert "of 2 trials, 1 failed" in text and "1 x ValueError: bad \\x1b[2J x (trial 0, log " in text
    assert json.loads(hpo(tmp_path, "status", "world", "--json"))["failures"]["groups"][0]["trials"] == [0]


def test_story_of_a_trial_has_traceback_and_log_without_control_characters(tmp_path: Path) -> None:
    half_failed(tmp_path)
    text = hpo(tmp_path, "show", "world", "--trial", "0")
    assert "  Traceback (most recent call last):\n    File train.py\n  ValueError: bad \\x1b[2J x\n" in text
    assert "\x1b" not in text
    assert f"log: {tmp_path}/studies/world/logs/trial-00000-attempt-0.log\n" in text
    good = hpo(tmp_path, "show", "world", "--trial", "1")
    assert "Traceback" not in good and good.rstrip().endswith("(not on this machine)")
    facts: dict[str, Any] = json.loads(hpo(tmp_path, "show", "world", "--trial", "0", "--json"))
    assert facts["attempts"][0]["detail"] == TRACEBACK and len(facts["logs"]) == 1
