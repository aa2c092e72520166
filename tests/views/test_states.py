"""The one table of states; those of a grid's configurations."""

from __future__ import annotations

import prefect.states

from hpo_core import Outcome, Report, Study
from hpo_core.views.states import attempt_state, grid_states
from tests.conftest import make_spec


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
