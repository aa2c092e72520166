"""Studies whose jobs are gangs: granted within the slots, recorded, replayed, audited, trained again, simulated."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import SpecError
from hpo_core.model.events import JobGranted
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.study.parts import JobSizes
from tests.conftest import World, fresh, make_spec
from tests.methods import facts

CLUSTER = {"kind": "local", "workers": 16}


def gang_spec(gang: int = 4, **changes: Any) -> StudySpec:
    return make_spec(training={"gang": gang}, cluster=CLUSTER, **changes)


def granted(study: Study) -> list[JobGranted]:
    return facts(study.journal.entries(study.name), JobGranted)


def test_the_journal_says_how_many_ranks_and_nothing_without_a_gang() -> None:
    for gang, words in ((4, '"demand":{"slots":4}'), (1, None)):
        world = World(3, failures=0.1)
        study = fresh(gang_spec(gang), MemoryJournal(), world)
        running = study.set_capacity(8)
        while running:
            running += study.tell_report(world.report(running.pop(0)))
        entries = list(study.journal.entries(study.name))
        lines = [encode_entry(entry) for entry in entries]
        grants = [line for line in lines if '"JobGranted"' in line]
        assert grants and all((words in line) if words else '"demand"' not in line for line in grants)
        assert any(grant.retry for grant in granted(study))
        read = [decode_entry(line) for line in lines]
        assert Study.from_entries(read).state.slots_in_use == study.state.slots_in_use == 0
        assert audit(read).clean


def test_a_rerun_trains_with_the_recorded_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = random.Random(5)

    def any_size(_: JobSizes, failed: Any = None) -> int:
        return failed.demand.slots if failed is not None else sizes.choice([1, 2, 3, 4])

    def played(study: Study) -> Study:
        world = World(7, failures=0.1)
        running = study.set_capacity(9)
        while running:
            assert study.state.slots_in_use <= 9
            running += study.tell_report(world.report(running.pop(0)))
        study.check()
        return study

    with monkeypatch.context() as patched:
        patched.setattr(JobSizes, "next", any_size)
        source = played(fresh(gang_spec(), MemoryJournal(), World(7)))
    first = {(one.trial, one.target): one.demand.slots for one in granted(source) if not one.retry}
    assert set(first.values()) == {1, 2, 3, 4}
    again = played(fresh(rerun_spec(list(source.journal.entries("world")), "again"), MemoryJournal(), World(8)))
    assert {(one.trial, one.target): one.demand.slots for one in granted(again) if not one.retry} == first
    assert audit(list(again.journal.entries("again"))).clean


def test_what_is_not_built_is_refused_with_its_cure() -> None:
    for changes, words in (
        ({"packing": True}, r"training\.gang = 4, and packing: .*part of one device.*need one each.*drop one"),
        ({"data": {"partitions": ["a", "b"]}, "objective": "lab:train"}, r"and data: .*set training\.gang to 1"),
        ({"style": "optuna", "objective": "lab:train"}, r"training\.gang = 4, and style optuna: "),
        ({"cluster": {"kind": "local", "workers": 3}}, r"needs 4 slots .*cluster\.workers gives 3: .*raise .* to 4"),
    ):
        plain = gang_spec().plain() | changes
        with pytest.raises(SpecError, match=words):
            StudySpec.from_plain(plain)
    for size in (0, 2.5, "some"):
        with pytest.raises(SpecError, match="training.gang"):
            StudySpec.from_plain(gang_spec().plain() | {"training": {"gang": size}})
    StudySpec.from_plain(gang_spec().plain() | {"cluster": {"kind": "address", "address": "tcp://127.0.0.1:1"}})


def test_an_executor_of_one_process_refuses_a_gang(tmp_path: Any) -> None:
    with pytest.raises(SpecError, match=r"training\.gang = 4 needs a process for each rank.*set training\.gang to 1"):
        InProcessExecutor(gang_spec(), tmp_path, objective=lambda trial: None)
