from __future__ import annotations

from pathlib import Path

import prefect.states
import pytest

from hpo_core import Outcome, Report, Study
from hpo_core.home import Home
from hpo_core.model.errors import HpoError
from hpo_core.terminal.output import study_at
from hpo_core.views.states import attempt_lines, attempt_state, grid_states, trial_story
from tests.cli.test_console import hpo, played
from tests.conftest import World, fresh, make_spec
from tests.methods import ALL, spec_of


def test_every_attempt_has_a_word_and_a_state_in_prefect() -> None:
    words = {outcome: attempt_state(outcome).word for outcome in Outcome}
    assert {words.pop(Outcome.COMPLETED), words.pop(Outcome.DIVERGED)} == {"completed", "diverged"}
    assert set(words.values()) == {"failed", "lost or preempted"} and attempt_state(None).word == "running"
    assert all(hasattr(prefect.states, attempt_state(outcome).prefect) for outcome in Outcome)


def test_each_configuration_of_a_grid_is_in_one_of_four_states() -> None:
    space = {"width": {"type": "ordinal", "choices": [1, 2, 3, 4]}}
    grid = Study.create(make_spec(space=space, search={"method": "grid"}))
    assert grid_states(grid) == {"pending": 4, "in progress": 0, "complete": 0, "failed": 0}
    jobs = [job for job in (grid.ask() for _ in range(3)) if job is not None]
    grid.tell(jobs[0], {"loss": float("nan")})
    grid.tell_report(Report(trial=1, attempt=0, outcome=Outcome.CRASHED, message="no"))
    assert grid_states(grid) == {"pending": 1, "in progress": 1, "complete": 1, "failed": 1}
    again = grid.ask()
    assert again is not None and again.trial == 1, "what failed is tried again"
    assert grid_states(grid) == {"pending": 1, "in progress": 2, "complete": 1, "failed": 0}
    assert grid_states(Study.create(make_spec(search={"method": "random", "configs": 3}))) is None


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
    assert f"world as of entry {last} (the last one):" in hpo(tmp_path, "show", "world")
    assert f"clean: {study.seq} entries" in hpo(tmp_path, "audit", "world")
    assert f"world as of entry 5 (0 is the first of {study.seq}):" in hpo(tmp_path, "show", "world", "--at", "5")
    with pytest.raises(HpoError, match=f"has entries 0 to {last}"):
        study_at(Home(tmp_path).read_journal(), "world", study.seq)


def test_a_story_has_the_reported_values_and_the_attempts_that_were_repeated() -> None:
    spec = make_spec(metric={"name": "accuracy", "mode": "max"}, search={"method": "random", "configs": 1})
    study = Study.create(spec)
    job = study.ask()
    study.tell_report(Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message="its worker is gone"))
    again = study.ask()
    study.tell(again, {"accuracy": 0.825})
    story = [*trial_story(study, 0), *attempt_lines(list(study.journal.entries(study.name)), 0)]
    assert any(line.startswith("reached ") and line.endswith("in attempt 1: accuracy 0.825") for line in story)
    assert "attempt 0 (training to 1) was lost: its worker is gone" in story


def test_a_story_says_what_a_person_gave_and_how_many_ranks_train() -> None:
    study = fresh(make_spec(start_with=[{"x": 0.5}], training={"gang": 2}))
    study.set_capacity(2)
    story = trial_story(study, 0)
    assert "its configuration, or a part of it, was given by a person (start_with, enqueue)" in story
    assert any("now running in a gang of 2 ranks" in line for line in story)
