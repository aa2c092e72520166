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
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import figures, key_numbers, render
from hpo_core.report.timelines import hop_figure, jobs_over_time, units_of
from hpo_core.report.trials_table import embedded_trials
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.formatting import byte_count
from hpo_core.views.hop_views import (
    hop_units,
    hopping_line,
    mean_utilization,
    moved_bytes,
    plain_hops,
    visit_lines,
    worker_uses,
)
from hpo_core.views.states import trial_story
from tests.hopping.hopping_studies import METHODS, VirtualHopping
from tests.report.test_report import World

SIZES = [{"name": f"part-{place}", "count": 50, "bytes": 10**6} for place in range(3)]


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
    uses = worker_uses(units)
    assert [use.worker for use in uses] == ["worker-0", "worker-1", "worker-2"]
    assert sum(use.units for use in uses) == len(units)
    end = max(unit.ended for unit in units)
    for use in uses:
        seconds = math.fsum(v.ended - v.started for _, v in visits_of(world) if v.worker == use.worker)
        assert use.seconds == pytest.approx(seconds) and use.utilization == pytest.approx(seconds / end)
        assert use.received == 100 * use.models
    assert 0 < mean_utilization(uses) < 1


def test_bytes_moved_are_those_of_the_visits() -> None:
    """Three configurations, two epochs, three partitions of 1 MB, models of 100 bytes."""
    search = {"method": "random", "max_resource": 2, "configs": 3}
    world = VirtualHopping(search=search, data={"partitions": SIZES}, counts=[50] * 3).run()
    units = hop_units(world.study.spec, world.study.state)
    moved = moved_bytes(units)
    assert moved is not None and moved.epochs == 6
    assert moved.moved == 100 * (moved.units - 3) == sum(v.size for _, v in visits_of(world)), "three began with none"
    orders: dict[int, list[str]] = {}
    for trial, visit in visits_of(world):
        orders.setdefault(trial, []).append(visit.worker)
    changes = sum(a != b for order in orders.values() for a, b in pairwise(order))
    assert moved.changed_worker == changes > 0 and moved.moved_to_others == 100 * changes
    told = f"{moved.hops} hops moved {byte_count(moved.moved)}, {byte_count(moved.moved_to_others)} of that to another"
    figure = hop_figure(read_series(entries(world)))
    assert figure is not None and told in figure.caption


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
    assert trials is not None
    assert trials["details"][0]["visits"] == lines


def test_one_line_for_hpo_status_and_json_for_programs(world: VirtualHopping) -> None:
    line = hopping_line(world.study)
    many = len(visits_of(world))
    assert line.startswith("3 partitions (3 examples), validation on 2 partitions (2 examples), scheduler remaining, "
                           "two models for each worker at once; ")  # fmt: skip
    assert f"{many:,} units of {many // 5} epochs on 3 workers, busy " in line and " hops moved " in line
    plain = json.loads(json.dumps(plain_hops(world.study)))
    assert plain["moved"]["units"] == many == sum(row["units"] for row in plain["workers"])
    fresh = VirtualHopping(search=METHODS["asha"])
    assert hopping_line(fresh.study).endswith("; no result yet") and plain_hops(fresh.study) == {}


def test_mlflow_gets_the_bytes(world: VirtualHopping) -> None:
    fold = TrackedStudy()
    moved: dict[int, list[float]] = {}
    for entry in entries(world):
        fold.add(entry)
        for number, notes in enumerate(fold.trials):
            moved.setdefault(number, []).extend(p.value for p in notes.points if p.key == "bytes_moved")
        fold.clear_changes()
    sizes: Counter[int] = Counter()
    for trial, visit in visits_of(world):
        sizes[trial] += visit.size
    assert {trial: values[-1] for trial, values in moved.items()} == sizes
    assert all(values == sorted(values) for values in moved.values())


def test_studies_that_do_not_hop_have_none_of_it() -> None:
    plain = read_series(World().play().entries())
    assert hop_figure(plain) is None and units_of(plain) == []
    assert hopping_line(plain.study) == "" and plain_hops(plain.study) == {}
    trials = embedded_trials(plain)
    assert trials is not None and not any("visits" in one for one in trials["details"].values())
    jobs = jobs_over_time(plain)
    assert jobs is not None and "Each row is a worker" in jobs.caption
