"""Shared devices in the report: a timeline, memory and compute, a table."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest

from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import figures, key_numbers, render
from hpo_core.report.timelines import device_table
from tests.report.packed_study import packed_study
from tests.report.test_report import ASHA, World, html


@pytest.fixture(scope="module")
def series() -> Series:
    return read_series(packed_study({"method": "asha", "configs": 20, "max_resource": 9}))


def test_each_attempt_is_a_bar_on_its_device(series: Series) -> None:
    found = {figure.key: figure for figure in figures(series)}
    lanes = found["jobs"]
    ended = [span for span in series.spans if span.outcome is not None]
    assert sum(len(trace["x"]) for trace in lanes.data) == len(ended)
    assert lanes.layout["yaxis"]["ticktext"] == [f"GPU-{k}a1b2c3d4-9f3e-77aa" for k in range(3)]
    rows = [row for trace in lanes.data for row in trace["y"]]
    assert max(rows) + 1 == 12 == sum(use.most_at_once for use in series.uses)
    words = [line for trace in lanes.data for line in trace["text"]]
    assert all("share: 25% of the compute" in line and "used: " in line for line in words)
    assert re.search(r"\d+% of the devices' compute claimed in the mean", lanes.title)
    for figure in (lanes, found["device-load"]):
        go.Figure(figure.data, figure.layout)  # Plotly's own validation
    memory = found["device-load"].data[0]
    assert max(memory["y"]) == pytest.approx(series.uses[0].claimed / 1e9) and memory["y"][-1] == 0


def test_table_counts_what_the_journal_holds(series: Series) -> None:
    entries = packed_study({"method": "asha", "configs": 20, "max_resource": 9})
    events = [event for entry in entries for event in entry.events]
    uses = series.uses
    assert sum(use.jobs for use in uses) == sum(isinstance(e, JobCompleted | AttemptFailed) for e in events)
    assert sum(use.failed for use in uses) == sum(isinstance(e, AttemptFailed) for e in events) > 0
    assert html(device_table(series)).count("<tr>") == 1 + len(uses)
    page = render(series)
    assert "packing fill, oversubscribe A100 1.5" in page
    assert "utilization" not in [label for label, _, _ in key_numbers(series)], "slots are jobs to choose from here"


def test_studies_that_do_not_pack_have_none_of_it() -> None:
    shown = read_series(World(search={**ASHA, "configs": 9}).play().entries())
    assert html(device_table(shown)) == "" and "device-load" not in [figure.key for figure in figures(shown)]
