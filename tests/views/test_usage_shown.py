"""What attempts used is shown: the story of a trial, its section of the report, its run in MLflow."""

from __future__ import annotations

import pytest

from hpo_core.journal.codec import decode_entry
from hpo_core.model.events import Entry
from hpo_core.report.series import read_series
from hpo_core.report.trials_table import embedded_trials
from hpo_core.study import Study
from hpo_core.views.states import trial_story
from tests.golden.make import FOLDER


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return [decode_entry(line) for line in (FOLDER / "used-format-1.jsonl").read_text().splitlines()]


def test_story_says_what_each_attempt_used(entries: list[Entry]) -> None:
    study = Study.from_entries(entries)
    (reached,) = [line for line in trial_story(study, 4) if line.startswith("reached")]
    assert reached.endswith(
        "; used 194 MB, 0.875 cores, start-up 0.25 s, 0.5 s per unit; of GPU-5d4e (A100) 3.89 GB, 28 % of its compute; "
        "given 30 %, 6 GB, 2 cores of GPU-5d4e (A100)"
    )
    failures = [line for line in trial_story(study, 9) if "failed" in line or "was lost" in line]
    lost, error = failures
    assert "used" not in lost and "; used 1" in error  # a lost attempt measured nothing


def test_report_has_columns_for_it_only_where_something_was_measured(entries: list[Entry]) -> None:
    data = embedded_trials(read_series(entries))
    assert data is not None
    columns = data["columns"]
    at = columns.index("memory MB")
    assert columns[at : at + 3] == ["memory MB", "cores", "seconds per unit"]
    assert columns[at - 1] == "seconds" and len(columns) - data["params"] == at + 3
    assert {tuple(row[at + 1 : at + 3]) for row in data["rows"]} == {(0.875, 0.5)}
    assert all(100 <= row[at] <= 200 for row in data["rows"])
    assert all(len(row) == len(columns) for row in data["rows"])
    assert any("GPU-5d4e" in attempt[-1] for found in data["details"].values() for attempt in found["attempts"])
    older = [decode_entry(line) for line in (FOLDER / "asha-shared-format-1.jsonl").read_text().splitlines()]
    plain = embedded_trials(read_series(older))
    assert plain is not None and "cores" not in plain["columns"]
