from __future__ import annotations

from hpo_core import MemoryJournal, Study
from hpo_core.model.trial import Outcome
from hpo_core.views.failure_reasons import failure_lines, failures_of
from hpo_core.views.summary import summarize
from tests.conftest import completed, failed, fresh, make_spec

RANDOM = {"method": "random", "configs": 8, "max_resource": 1}


def reported(*messages: tuple[Outcome, str] | float) -> Study:
    training = {"retries": {"out_of_memory": 0, "crashed": 0}, "fail_fast": None}
    study = fresh(make_spec(search=RANDOM | {"configs": len(messages)}, training=training), MemoryJournal())
    jobs = study.set_capacity(1)
    for message in messages:
        job = jobs.pop()
        report = completed(job, message) if isinstance(message, float) else failed(job, *message)
        jobs += study.tell_report(report)
    return study


def test_messages_that_differ_in_numbers_are_one_reason() -> None:
    study = reported(
        (Outcome.ERROR, "ValueError: bad width 17 at 0x7f3a"),
        (Outcome.ERROR, "KeyError: 'lr'"),
        0.5,
        (Outcome.ERROR, "ValueError: bad width 3.5e-4 at 0x11"),
    )
    found = failures_of(study.state)
    assert (found.trials, found.failed, found.diverged) == (4, 3, 0)
    assert [(group.error, group.message, group.trials) for group in found.groups] == [
        ("ValueError", "bad width 17 at 0x7f3a", (0, 3)),
        ("KeyError", "'lr'", (1,)),
    ]
    assert found.most_failed
    assert failure_lines(found, "/home/s/") == [
        "of 4 trials, 3 failed",
        "2 x ValueError: bad width 17 at 0x7f3a (such as trial 0, log /home/s/logs/trial-00000-attempt-0.log)",
        "1 x KeyError: 'lr' (trial 1, log /home/s/logs/trial-00001-attempt-0.log)",
    ]


def test_same_message_after_another_outcome_is_another_reason() -> None:
    study = reported((Outcome.OUT_OF_MEMORY, "RuntimeError: x"), (Outcome.ERROR, "RuntimeError: x"), 0.1, 0.2)
    reasons = [group.reason for group in failures_of(study.state).groups]
    assert reasons == ["out of memory: RuntimeError: x", "RuntimeError: x"]
    assert not failures_of(study.state).most_failed  # half is not most


def test_diverged_trials_are_counted_and_have_no_reason() -> None:
    found = failures_of(reported(float("nan"), float("inf"), 0.5).state)
    assert (found.failed, found.diverged, found.groups) == (0, 2, ())
    assert failure_lines(found) == ["of 3 trials, 2 diverged (NaN or infinite)"]
    assert found.most_failed


def test_many_reasons_are_cut_and_counted() -> None:
    study = reported(*[(Outcome.ERROR, f"Error{'abcdefgh'[i]}: x") for i in range(8)])
    lines = failure_lines(failures_of(study.state))
    assert len(lines) == 7
    assert lines[-1] == "and 3 other reasons of 3 more"


def test_exception_without_text_and_long_text() -> None:
    study = reported((Outcome.ERROR, "AssertionError"), (Outcome.ERROR, "ValueError: " + "x" * 900), 0.5)
    first, second = failures_of(study.state).groups
    assert (first.error, first.message) == ("AssertionError", "")
    assert first.reason == "AssertionError"
    assert all(len(line) < 300 for line in failure_lines(failures_of(study.state)))
    assert len(second.message) == 900


def test_the_log_is_that_of_the_rank_that_failed() -> None:
    study = reported((Outcome.CRASHED, "Rank 3 of 4: The training process exited"), 0.1)
    assert failures_of(study.state).groups[0].log == "logs/trial-00000-attempt-0.rank-3.log"


def test_an_attempt_that_ended_with_its_controller_is_no_failed_one() -> None:
    """A study that was paused and resumed told of "2 lost or failed attempts"."""
    study = fresh(make_spec(search=RANDOM), MemoryJournal())
    job, _ = study.set_capacity(2)
    study.tell_report(failed(job, Outcome.CRASHED, "gone"))
    study.recover("the next one")
    assert summarize(study).failed_attempts == 1 < study.state.failed_attempts
