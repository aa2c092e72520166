"""The one table of states."""

from __future__ import annotations

import prefect.states

from hpo_core import Outcome
from hpo_core.views.states import attempt_state


def test_every_attempt_has_a_word_and_a_state_in_prefect() -> None:
    words = {outcome: attempt_state(outcome).word for outcome in Outcome}
    assert {words.pop(Outcome.COMPLETED), words.pop(Outcome.DIVERGED)} == {"completed", "diverged"}
    assert set(words.values()) == {"failed", "lost or preempted"} and attempt_state(None).word == "running"
    assert all(hasattr(prefect.states, attempt_state(outcome).prefect) for outcome in Outcome)
