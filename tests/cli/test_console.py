"""``hpo show`` and ``hpo status``: brackets, ceilings, stop rules, failed trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.model.trial import Outcome
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_flows.command import app
from tests.conftest import World, completed, failed, make_spec
from tests.methods import spec_of


def played(folder: Path, spec: StudySpec, steps: int | None = None) -> Study:
    world = World(2)
    journal = Home(folder).open_journal()
    study = Study.create(spec, journal, clock=world.clock)
    world.play(study, steps=steps)
    journal.close()
    return study


def hpo(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--home", str(folder)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def shown(folder: Path) -> Any:
    return json.loads(hpo(folder, "show", "world", "--json"))


@pytest.mark.parametrize("name", ["asha-shared", "stopping", "sha", "pasha", "pbt", "grid", "pareto-random"])
def test_every_method_is_shown(name: str, tmp_path: Path) -> None:
    study = played(tmp_path, spec_of(name), 14)
    text = hpo(tmp_path, "show", "world")
    assert "trained to" in text and text.count("to be resumed: trial") == len(study.state.running)
    rungs = shown(tmp_path)["rungs"]
    assert sum(rung["results"] for rung in rungs) == study.state.completed_jobs + study.state.abandoned_trials
    assert sum(rung["running"] for rung in rungs) == len(study.state.running)
    assert {rung["bracket"] for rung in rungs} == {rung.bracket for rung in study.method.rungs()}


def test_brackets_are_named_and_shared_rungs_explained(tmp_path: Path) -> None:
    played(tmp_path / "own", spec_of("asha-brackets"), 30)
    text = hpo(tmp_path / "own", "show", "world")
    assert any(line.split()[:1] == ["bracket"] for line in text.splitlines()) and "of bracket 1" in text
    played(tmp_path / "shared", spec_of("asha-shared"), 30)
    text = " ".join(hpo(tmp_path / "shared", "show", "world").split())  # however wide the terminal is
    assert "their trials enter at 1 (bracket 0), 3 (bracket 1), 9 (bracket 2), 27 (bracket 3)" in text


def test_ceilings_are_told(tmp_path: Path) -> None:
    study = played(tmp_path, spec_of("pasha"))
    lines = hpo(tmp_path, "show", "world").count("ceiling: rung ")
    assert lines == len(shown(tmp_path)["ceilings"]) == len(study.state.ceilings) > 0


TRACEBACK = "Traceback (most recent call last):\n  File train.py\nValueError: bad \x1b[2J x\n"


def half_failed(folder: Path) -> None:
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
