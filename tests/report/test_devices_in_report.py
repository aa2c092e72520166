"""Shared devices and slots of a pool in the report: timelines, memory and compute, a table."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest

from hpo_core import Study
from hpo_core.execution.virtual import VirtualClock
from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.rng import Stream
from hpo_core.report.study_page import figures, key_numbers, render
from hpo_core.report.style import Figure
from hpo_core.report.timelines import device_table, pool_slots
from hpo_core.simulation.repeats import Simulation
from hpo_core.views.series import Series, read_series
from tests.conftest import make_spec
from tests.report.packed_study import packed_study
from tests.report.test_report import ASHA, World, html
from tests.sharing.in_memory import MemoryPools
from tests.sharing.played_pool import PlayedPool, Player


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


ENDLESS = {"method": "random", "configs": 100_000, "max_resource": 1}


def series_of(player: Player) -> Series:
    return read_series(player.study.journal.entries(player.name))


def drawn(series: Series) -> Figure:
    found = pool_slots(series)
    assert found is not None
    return found


def curve(figure: Figure, name: str) -> list[tuple[float, float]]:
    (trace,) = [trace for trace in figure.data if trace["name"] == name]
    return list(zip(trace["x"], trace["y"], strict=True))


def at(steps: list[tuple[float, float]], time: float) -> float:
    return [value for moment, value in steps if moment <= time][-1]


def shared_slots() -> Series:
    """Eight slots alone, four beside another study from second 40 to 100 or so, eight again."""
    mine = Player("mine", MemoryPools(), seconds=lambda job: 4.0 + Stream(job.trial, "s", 0).uniform(), search=ENDLESS)
    other = Player("other", mine.seat._pools, seconds=lambda job: 5.0, search={**ENDLESS, "configs": 50}, begins=40.0)
    PlayedPool(mine, other).play(150.0)
    assert other.ended
    return series_of(mine)


def test_workers_that_follow_a_study_are_drawn_over_time() -> None:
    """Nine configurations on at most four workers: four work, until one trial is left of each rung."""
    search = {"method": "sha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    spec = make_spec(search=search, cluster={"kind": "local", "workers": {"min": 0, "max": 4}})
    clock = VirtualClock()
    study = Study.create(spec, clock=clock)
    Simulation(
        study, clock, workers=4, least=0, train=lambda job: {"loss": job.params["x"]},
        seconds=lambda job: job.target + 0.1 * job.trial,
    ).run()  # fmt: skip
    figure = drawn(read_series(study.journal.entries(spec.study)))
    there, used = curve(figure, "workers there"), curve(figure, "workers in use")
    assert at(there, 1.5) == 4 == max(number for _, number in there) and at(there, there[-1][0]) == 1
    assert figure.title.startswith("Workers over time: ")
    assert re.search(r"over time: (\d\.\d\d) in use in the mean, of \1$", figure.title)
    assert [number for _, number in used if number > 4] == []
    assert "workers over time" in render(read_series(study.journal.entries(spec.study))).lower()


def test_held_and_used_slots_are_drawn_over_time() -> None:
    figure = drawn(shared_slots())
    held, used = curve(figure, "slots that it might use"), curve(figure, "slots in use")
    assert at(held, 30.0) == 8 and at(held, 70.0) == 4 and at(held, 140.0) == 8
    assert at(used, 30.0) == 8 and at(used, 70.0) == 4
    assert figure.layout["yaxis"]["title"]["text"] == "slots" and "time" in figure.layout["xaxis"]["title"]["text"]
    assert re.fullmatch(r"Slots of the pool over time: 6\.\d\d in use in the mean, of 6\.\d\d", figure.title)
    assert "pool p" in figure.caption and "other studies" in figure.caption
