"""A controller that goes on after another one knows which sizes of gangs were worth it; judged from the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.hopping.unit_history import observe_recorded
from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import Worker
from hpo_core.hopper.unit_times import UnitTimes
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted
from hpo_core.model.hops import units_of
from hpo_core.model.trial import Job
from tests.hopping.hopping_studies import METHODS, VirtualHopping
from tests.hopping.test_states_on_disk import UnitsThatWrite

GANGS: dict[str, Any] = {"training": {"gang": "auto"}, "cluster": {"kind": "local", "workers": 8}}
SPEEDS = {"never": (1.1, 1.1, 1.1), "up to two": (1.9, 1.95, 2.0), "up to four": (1.9, 2.6, 3.4)}
"""How many times as fast 2, 3, and 4 and more ranks are as one."""


def speedup(speeds: str) -> Any:
    def gain(job: Job) -> float:
        assert job.unit is not None
        return (1.0, *SPEEDS[speeds])[min(job.unit.ranks, 4) - 1]

    return gain


def world_of(search: str = "sha", speeds: str = "never", **given: Any) -> VirtualHopping:
    more = {"partitions": 8, "workers": [Worker()] * 8, "more": GANGS} | given
    return VirtualHopping(search=METHODS[search], speedup=speedup(speeds), **more)


def go_on(
    world: VirtualHopping, entries: list[Entry], folder: Path | None = None, *, killed: float = 0.0
) -> VirtualHopping:
    """The world, where another controller wrote these entries and was killed."""
    world.journal = MemoryJournal()
    world.journal.create("hopping", entries[0])
    for entry in entries[1:]:
        world.journal.append("hopping", entry)
    world.clock.now = max(entries[-1].time, killed)
    world.study = study = Study.open("hopping", world.journal, clock=world.clock)
    running = [*study.state.running, *study.state.waiting]
    read = world.journal.entries("hopping")
    world.executor = HoppingExecutor(world.units, study.spec, folder, running=running, entries=read)
    study.recover("the second controller")
    world.loop = Loop(study, world.executor)
    return world


def sizes(entries: list[Entry]) -> list[int]:
    """Ranks of all units that the journal holds, in the order of their ends; each once."""
    units = {
        (unit[0].ended, event.trial, unit)
        for entry in entries
        for event in entry.events
        if isinstance(event, JobCompleted | AttemptFailed)
        for unit in units_of(event.visits or (), event.together)
    }
    return [len(unit) for _, _, unit in sorted(units)]


@pytest.mark.parametrize("speeds", sorted(SPEEDS))
@pytest.mark.parametrize("search", ["sha", "asha", "random"])
def test_what_the_journal_holds_is_what_the_first_controller_measured(search: str, speeds: str) -> None:
    workers = [*[Worker()] * 6, Worker(speed=0.5), Worker(joins=30.0)]
    world = world_of(search, speeds, workers=workers, validation=1).run()
    live = world.executor._schedule.times
    assert len(live.measured_gangs()) >= 1
    files = [*world.names, *world.validation]
    found = UnitTimes([1.0] * len(files), trained_on=8)
    observe_recorded(found, world.journal.entries("hopping"))
    assert found.measured_gangs() == live.measured_gangs()
    for ranks in live.measured_gangs():
        assert found.gain(ranks) == pytest.approx(live.gain(ranks), rel=0.02)
    for trial in world.study.state.trials:
        assert found.cost(trial.number) == pytest.approx(live.cost(trial.number), rel=0.02)
    for worker in world.held:
        assert found.slowness(worker) == pytest.approx(live.slowness(worker), rel=0.02)


@pytest.mark.parametrize("search", ["sha", "asha"])
def test_a_size_that_was_too_slow_is_not_tried_again_after_a_kill_at_any_entry(search: str) -> None:
    """Two ranks are too slow twice, as the first controller found; each later one would try them twice again."""
    whole = world_of(search).run()
    entries = list(whole.journal.entries("hopping"))
    cuts = [cut for cut in range(2, len(entries)) if sizes(entries[:cut]).count(2) >= 2]
    assert cuts and max(sizes(entries)) == 2
    for cut in cuts:
        again = go_on(world_of(search), entries[:cut]).run()
        assert again.study.status == "finished"
        after = list(again.journal.entries("hopping"))
        assert sizes(after).count(2) == sizes(entries[:cut]).count(2), f"killed after entry {cut}"


def test_epochs_that_ended_of_a_job_under_way_count(tmp_path: Path) -> None:
    """They are in the folder of the study and not in the journal."""
    search = {"method": "random", "max_resource": 6, "configs": 1}

    def on_disk() -> VirtualHopping:
        world = VirtualHopping(
            search=search, speedup=speedup("never"), partitions=8, workers=[Worker()] * 8, more=GANGS
        )
        world.units.__class__ = UnitsThatWrite
        world.units.folder = tmp_path  # type: ignore[attr-defined]
        return world

    first = on_disk()
    first.executor = HoppingExecutor(first.units, first.study.spec, tmp_path)
    first.loop = Loop(first.study, first.executor)
    first.loop.run(until=30.0)
    entries = list(first.journal.entries("hopping"))
    assert not sizes(entries) and list(tmp_path.glob("hops/*/progress.msgpack"))
    again = go_on(on_disk(), entries, tmp_path, killed=30.0).run()
    again.judge()
    assert sizes(list(again.journal.entries("hopping"))).count(2) == 2
