"""Slots that running attempts leave before their report: another job gets each, and every result counts once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hpo_core import Job, MemoryJournal, Outcome, Study
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.loop import Loop
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.events import Entry, JobCompleted, SlotFreed, StateCopied
from hpo_core.replay.audit import audit
from tests.conftest import World, failed, fresh, make_spec
from tests.placement.test_shared_devices import devices_for, gpu
from tests.placement.test_shared_devices import job as packed_job


def entries(study: Study) -> list[Entry]:
    return list(study.journal.entries(study.name))


def test_a_freed_slot_is_granted_once() -> None:
    world = World(3)
    study = fresh(make_spec(), MemoryJournal(), world)
    first, second = study.set_capacity(2)
    (third,) = study.note_state_copied(*first.key)
    assert study.state.slots_in_use == 2 and len(study.state.running) == 3
    study.check()
    assert study.note_state_copied(*first.key) == [], "it has no slot any more"
    assert study.note_state_copied(first.trial, 7) == study.note_state_copied(99, 0) == [], "nobody knows them"
    assert study.tell_report(world.good(first)) == [], "its slot is another job's"
    study.check()
    assert len(study.tell_report(world.good(second))) == 1
    assert study.note_state_copied(*first.key) == [], "it was reported"
    study.note_state_copied(*third.key)
    again = study.tell_report(failed(third, Outcome.STORAGE))
    study.check()
    assert again == [] or third.trial in study.state.waiting or study.state.halted is not None
    study.recover("second:2")
    assert study.state.slots_in_use == 0 and not study.state.without_slot
    study.check()
    assert audit(entries(study)).clean


class Behind:
    """One slot; each job leaves it at once, and is reported when no other one can begin."""

    poll_seconds = 1.0

    def __init__(self, world: World) -> None:
        self._world = world
        self._saving: deque[tuple[Job, OnReport]] = deque()
        self.trace: list[tuple[str, int]] = []
        self.moment = 0.0

    def inventory(self) -> Inventory:
        return Inventory.of(1, "here")

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self.trace.append(("begun", job.trial))
        self._saving.append((job, on_report))
        on_report(job, None)
        on_report(job, None)  # a message that comes twice changes nothing

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        raise AssertionError("nothing is to be cancelled")

    def now(self) -> float:
        return self.moment

    def wait(self, inbox: Inbox, until: float) -> bool:
        self.moment += 0.5
        if not inbox.freed and self._saving:
            job, on_report = self._saving.popleft()
            self.trace.append(("told", job.trial))
            on_report(job, self._world.good(job))
            on_report(job, None)  # one that comes late, too
        return True


def test_the_loop_gives_a_freed_slot_to_the_next_job() -> None:
    world = World(5)
    study = fresh(make_spec(), MemoryJournal(), world)
    executor = Behind(world)
    assert Loop(study, executor).run() == "finished"
    study.check()
    told = entries(study)
    assert audit(told).clean
    freed = [event for entry in told for event in entry.events if isinstance(event, SlotFreed)]
    done = [event for entry in told for event in entry.events if isinstance(event, JobCompleted)]
    assert len(freed) == len(done) == sum(isinstance(entry.stimulus, StateCopied) for entry in told)
    first_told = executor.trace.index(next(each for each in executor.trace if each[0] == "told"))
    assert first_told > 1, "others begin before the first is reported"
    assert Study.from_entries(told).state.incumbent == study.state.incumbent


def test_a_packed_job_keeps_its_part_until_its_report() -> None:
    """What it used is learned from the report, and compared with what it held."""
    placer = devices_for(gpu(), stated={"memory": "1GB", "compute": 60, "cores": 1})
    first, second = packed_job(0), packed_job(1)
    assert len(placer.place([first, second], now=0.0).begun) == 1
    assert not placer.leave(first.key)
    assert placer.place([second], now=1.0).begun == []
    placer.release(first.key)
    assert len(placer.place([second], now=2.0).begun) == 1
