"""What people are shown of models that hop, judged by the journal of a study in virtual time."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise

import plotly.graph_objects as go
import pytest

from hpo_core.execution.virtual import Worker
from hpo_core.model.events import Entry
from hpo_core.model.trial import Visit
from hpo_core.report.study_page import figures, key_numbers, render
from hpo_core.report.trials_table import embedded_trials
from hpo_core.views.hop_views import hop_units, hopping_line, plain_hops, visit_lines, workers_busy
from hpo_core.views.series import Series, read_series
from hpo_core.views.states import trial_story
from tests.hopping.hopping_studies import METHODS, VirtualHopping


@pytest.fixture(scope="module")
def world() -> VirtualHopping:
    workers = [Worker(), Worker(speed=0.5), Worker(joins=30.0)]
    return VirtualHopping(search=METHODS["asha"], validation=2, workers=workers).run()


@pytest.fixture(scope="module")
def series(world: VirtualHopping) -> Series:
    return read_series(entries(world))


def entries(world: VirtualHopping) -> list[Entry]:
    return list(world.journal.entries("hopping"))


def visits_of(world: VirtualHopping) -> list[tuple[int, Visit]]:
    return [(event.trial, visit) for event in world.completed() for visit in event.visits or ()]


def test_units_are_the_visits_of_the_journal(world: VirtualHopping) -> None:
    units = hop_units(world.study.spec, world.study.state)
    recorded = Counter((trial, v.epoch, v.partition, v.worker, v.started, v.ended) for trial, v in visits_of(world))
    assert Counter((u.trial, u.epoch, u.partition, u.worker, u.started, u.ended) for u in units) == recorded
    seconds, workers = math.fsum(v.ended - v.started for _, v in visits_of(world)), 3
    assert workers_busy(units) == pytest.approx(seconds / workers / max(unit.ended for unit in units))
    assert workers_busy(units) < 1


def test_the_chart_has_a_bar_for_each_unit(world: VirtualHopping, series: Series) -> None:
    found = {figure.key: figure for figure in figures(series)}
    lanes = found["hops"]
    assert sum(len(trace["x"]) for trace in lanes.data) == len(visits_of(world))
    assert lanes.layout["yaxis"]["ticktext"] == ["worker-0", "worker-1", "worker-2"]
    assert [trace["name"] for trace in lanes.data] == [f"trial {number}" for number in range(9)]
    pale = [share for trace in lanes.data for share in trace["marker"]["opacity"]]
    assert pale.count(0.45) == 2 * pale.count(1) // 3, "validation on two partitions for three of training"
    words = [line for trace in lanes.data for line in trace["text"]]
    assert any("came from worker-1" in line for line in words) and all(line.startswith("trial ") for line in words)
    go.Figure(lanes.data, lanes.layout)
    spans = sorted(
        (y, base, x) for trace in lanes.data for y, base, x in zip(trace["y"], trace["base"], trace["x"], strict=True)
    )
    for (row, begin, length), (other, then, _) in pairwise(spans):
        assert row != other or begin + length <= then + 1e-3, "one unit at a time on a worker"
    jobs = found["jobs"]
    assert jobs.title == "Jobs over time" and "Each row is a model that trains" in jobs.caption
    assert "utilization" not in [label for label, _, _ in key_numbers(series)]
    render(series)


def test_the_order_of_visits_of_a_trial(world: VirtualHopping, series: Series) -> None:
    lines = list(visit_lines(world.study.spec, world.study.state.trials[0]))
    orders = {epoch: order for (trial, epoch), order in world.orders().items() if trial == 0}
    assert len(lines) == len(orders)
    for epoch, order in orders.items():
        assert lines[epoch].startswith(f"epoch {epoch}: part-{order[0]} on worker-")
        places = [lines[epoch].index(f"part-{place} on") for place in order]
        assert places == sorted(places) and "; validation val-" in lines[epoch]
    reached = [line for line in trial_story(world.study, 0) if line.startswith("reached")]
    epochs = [result.resource for result in world.study.state.trials[0].results]
    counts = ["1 epoch" if count == 1 else f"{count} epochs" for count in epochs]
    assert all(f"({count}) in attempt" in line for line, count in zip(reached, counts, strict=True))
    trials = embedded_trials(series)
    assert trials["details"][0]["visits"] == lines


def test_one_line_for_hpo_status_and_json_for_programs(world: VirtualHopping) -> None:
    line = hopping_line(world.study)
    many = len(visits_of(world))
    assert line.startswith("3 partitions (3 examples), validation on 2 partitions (2 examples), scheduler remaining, "
                           "two models for each worker at once; ")  # fmt: skip
    assert f"{many:,} units of {many // 5} epochs on 3 workers, busy " in line and " hops moved " in line
    plain = json.loads(json.dumps(plain_hops(world.study)))
    assert plain["moved"]["units"] == many and 0 < plain["utilization"] < 1
    fresh = VirtualHopping(search=METHODS["asha"])
    assert hopping_line(fresh.study).endswith("; no result yet") and plain_hops(fresh.study) == {}
