"""What a trial is called: in a study that goes on, and in one that is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core import Outcome, Report, Study
from hpo_core.journal.memory import MemoryJournal
from hpo_core.views.states import attempt_lines, trial_story
from tests.cli.test_console import hpo, played
from tests.conftest import World, fresh, make_spec
from tests.methods import ALL, spec_of

GOES_ON = ("now", "paused", "running", "waiting")


@pytest.mark.parametrize("name", ALL)
def test_story_of_a_finished_study_says_nothing_that_may_still_change(name: str) -> None:
    world = World()
    study = fresh(spec_of(name), None, world)
    assert not world.play(study, steps=3000) and study.finished
    ends = [trial_story(study, trial.number)[-1] for trial in study.state.trials]
    assert ends.count("at the study's end: winner") == 1
    assert not [end for end in ends if any(word in end for word in GOES_ON)]


def test_show_and_audit_count_the_same_entries(tmp_path: Path) -> None:
    study = played(tmp_path, make_spec())
    last = study.seq - 1
    assert f"world as of entry {last}, the last of {study.seq}:" in hpo(tmp_path, "show", "world")
    assert f"clean: {study.seq} entries" in hpo(tmp_path, "audit", "world")
    assert f"world as of entry 5 (0 is the first of {study.seq}):" in hpo(tmp_path, "show", "world", "--at", "5")


def test_a_story_has_the_reported_values_and_the_attempts_that_were_repeated() -> None:
    journal = MemoryJournal()
    spec = make_spec(metric={"name": "accuracy", "mode": "max"}, search={"method": "random", "configs": 1})
    study = Study.create(spec, journal)
    job = study.ask()
    assert job is not None
    study.tell_report(Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message="its worker is gone"))
    again = study.ask()
    assert again is not None
    study.tell(again, {"accuracy": 0.825})
    story = [*trial_story(study, 0), *attempt_lines(list(journal.entries(study.name)), 0)]
    assert any(line.startswith("reached ") and line.endswith("in attempt 1: accuracy 0.825") for line in story)
    assert "attempt 0 to 1 was lost: its worker is gone" in story
