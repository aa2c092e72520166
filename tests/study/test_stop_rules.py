from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from hpo_core import MemoryJournal, Study
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import SpecError
from hpo_core.model.events import StudyHalted
from hpo_core.replay.audit import audit
from tests.conftest import World, completed, fresh, make_spec, played
from tests.methods import ALL, facts, spec_of

RANDOM = {"method": "random", "configs": 100, "max_resource": 4}


def test_target() -> None:
    study = fresh(make_spec(search=RANDOM, stop={"target": 0.3}))
    (job,) = study.set_capacity(1)
    (job,) = study.tell_report(completed(job, 0.31))
    assert study.tell_report(completed(job, 0.30)) == []
    assert study.status == "halted"
    halted = study.state.halted
    assert halted is not None and halted.rule == "target"
    assert halted.reason == "target reached: loss = 0.3 (wanted 0.3)"
    study.recover("again")  # a person wants more: the target that is reached is no reason any more
    (job,) = study.set_capacity(1)
    assert len(study.tell_report(completed(job, 0.1))) == 1


def test_target_of_a_metric_to_maximize() -> None:
    spec = make_spec(search=RANDOM, stop={"target": 0.9}, metric={"name": "loss", "mode": "max"})
    study = fresh(spec)
    (job,) = study.set_capacity(1)
    (job,) = study.tell_report(completed(job, 0.5))
    assert study.tell_report(completed(job, 0.95)) == []
    assert study.state.halted is not None and "loss = 0.95 (wanted 0.9)" in study.state.halted.reason


def test_seconds_count_while_a_controller_drives() -> None:
    now = [1000.0]
    journal = MemoryJournal()
    spec = make_spec(search=RANDOM, stop={"seconds": 60})
    study = Study.create(spec, journal, clock=lambda: now[0])
    study.recover("first")
    (job,) = study.set_capacity(1)
    now[0] += 50
    (job,) = study.tell_report(completed(job, 0.5))
    now[0] += 5000  # the controller was down
    study = Study.open("world", journal, clock=lambda: now[0])
    study.recover("second")
    study.set_capacity(1)
    before = study.seq
    now[0] += 9
    study.tick()
    assert study.state.halted is None and study.seq == before, "a tick that changes nothing records nothing"
    now[0] += 2
    study.tick()
    assert study.state.halted is not None and study.state.halted.rule == "seconds"
    assert "60 seconds are over" in study.state.halted.reason
    study.recover("third")
    assert len(study.set_capacity(1)) == 1
    assert audit(journal.entries("world")).clean


def test_seconds_do_not_count_while_the_controller_stands_still() -> None:
    now = [1000.0]
    study = Study.create(make_spec(search=RANDOM, stop={"seconds": 60}), clock=lambda: now[0])
    study.recover("first")
    (job,) = study.set_capacity(1)
    now[0] += 50
    study.note_standstill(45.0)
    assert study.seconds_to_rule() == 55.0
    now[0] += 54
    (job,) = study.tell_report(completed(job, 0.5))
    now[0] += 3601
    study.note_standstill(3600.0)
    assert study.state.halted is not None and "60 seconds are over" in study.state.halted.reason
    entries = [decode_entry(encode_entry(entry)) for entry in study.journal.entries("world")]
    assert audit(entries).clean
    assert Study.from_entries(entries).rules.seconds == 60.0
    before = study.seq
    study.note_standstill(9.0)
    without = fresh(make_spec(search=RANDOM))
    without.note_standstill(9.0)
    assert (study.seq, without.seq) == (before, 1), "nothing is recorded where no rule counts it"


RULES = [{"total_resource": 30}, {"target": 0.35}, {"seconds": 6.0}]


@pytest.mark.parametrize(("name", "rule"), zip(ALL, cycle(RULES), strict=False))
def test_every_method_halts_resumes_and_ends(name: str, rule: dict[str, Any]) -> None:
    world = World(4, failures=0.05)
    study = played(spec_of(name, stop=rule), world)
    rounds = 0
    while study.status == "halted":
        rounds += 1
        study.recover(f"round {rounds}")
        world.play(study)
        study.check()
    assert study.status == "finished"
    entries = list(study.journal.entries("world"))
    halts = [event.rule for event in facts(entries, StudyHalted)]
    assert set(halts) <= {*rule} and len(halts) in (rounds, rounds + 1), "the last one may come with the last result"
    used, best = study.state.resource_used, study.best
    met = {"total_resource": used >= 30, "target": best is not None and best.loss <= 0.35, "seconds": world.now > 8}
    assert not met[next(iter(rule))] or halts, "a rule that was met halted nothing"
    assert audit(entries).clean
    again = Study.from_entries(entries)
    assert again.rules.seconds == pytest.approx(study.rules.seconds)


def test_a_study_without_end_needs_a_rule() -> None:
    endless = {"method": "asha", "max_resource": 9, "reduction_factor": 3}
    with pytest.raises(SpecError, match="asha without configs: it has no end; give configs, or a stop rule"):
        make_spec(search=endless)
    study = played(make_spec(search=endless, stop={"total_resource": 500}), World(2))
    assert study.status == "halted" and 500 <= study.state.resource_used < 500 + 9 * 4
