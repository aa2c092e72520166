"""Journals of versions that gave a slot away before its report: another job gets it, and every result counts once."""

from __future__ import annotations

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.events import Entry
from hpo_core.replay.audit import audit
from tests.conftest import World, failed, fresh, make_spec
from tests.golden.make import state_copied


def entries(study: Study) -> list[Entry]:
    return list(study.journal.entries(study.name))


def test_a_freed_slot_is_granted_once() -> None:
    world = World(3)
    study = fresh(make_spec(), MemoryJournal(), world)
    first, second = study.set_capacity(2)
    (third,) = state_copied(study, first.key)
    assert study.state.slots_in_use == 2 and len(study.state.running) == 3
    study.check()
    assert state_copied(study, first.key) == [], "it has no slot any more"
    assert state_copied(study, (first.trial, 7)) == state_copied(study, (99, 0)) == [], "nobody knows them"
    assert study.tell_report(world.good(first)) == [], "its slot is another job's"
    study.check()
    assert len(study.tell_report(world.good(second))) == 1
    assert state_copied(study, first.key) == [], "it was reported"
    state_copied(study, third.key)
    again = study.tell_report(failed(third, Outcome.STORAGE))
    study.check()
    assert again == [] or third.trial in study.state.waiting or study.state.halted is not None
    study.recover("second:2")
    assert study.state.slots_in_use == 0 and not study.state.without_slot
    study.check()
    assert audit(entries(study)).clean
