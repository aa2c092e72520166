"""What a study had of its pool over time, drawn from the journals of studies that shared one on virtual clocks."""

from __future__ import annotations

import re

from hpo_core import Study
from hpo_core.execution.virtual import VirtualClock
from hpo_core.model.rng import Stream
from hpo_core.report.series import Series, read_series
from hpo_core.report.study_page import render
from hpo_core.report.style import Figure
from hpo_core.report.timelines import pool_slots
from hpo_core.simulation.repeats import Simulation
from tests.conftest import make_spec
from tests.sharing.in_memory import MemoryPools
from tests.sharing.played_pool import PlayedPool, Player

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
