"""The log of a rung whose jobs have no task runs of their own."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_flows.prefect_pages.study_tasks import EACH, StudyTasks


def test_a_rung_of_thousands_of_jobs_has_some_hundred_lines(caplog: pytest.LogCaptureFixture) -> None:
    group = SimpleNamespace(counts=[0, 0], logger=logging.getLogger("a rung"))
    tasks = SimpleNamespace(_told=set(), _metric="loss")
    with caplog.at_level(logging.INFO, "a rung"):
        for trial in range(3000):
            fails = trial % 1000 == 999
            group.counts[fails] += 1
            outcome, metrics = (Outcome.ERROR, {}) if fails else (Outcome.COMPLETED, {"loss": 0.5})
            report = Report(trial=trial, attempt=0, outcome=outcome, metrics=metrics, message="bad" if fails else "")
            StudyTasks._log_end(cast(Any, tasks), Job(trial, 0, Rung(0, 0), 1, {}), report, cast(Any, group))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "trial 0 -> 1: loss = 0.5" and lines[EACH - 1].startswith("trial 99 ")
    assert lines[EACH] == "200 jobs completed, 0 attempts did not"
    assert [line for line in lines if "bad" in line] == ["trial 999 -> 1: error: bad"], "each failure once"
    assert lines[-1] == "2997 jobs completed, 3 attempts did not" and len(lines) <= EACH + 30
