from __future__ import annotations

import math
from itertools import pairwise

import pytest

from hpo_core import MemoryJournal, Study, StudySpec
from hpo_core.model.errors import HpoError
from hpo_core.model.events import Entry, JobCompleted, JobGranted, Reproduced, TrialCreated
from hpo_core.model.trial import Checkpoint, Rung
from hpo_core.simulation import Simulation, VirtualClock
from hpo_core.views.lineage import Lineage, Segment, read_lineage

SPACE = {"lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}, "n": {"type": "int", "low": 1, "high": 9}}


def play(seed: int = 0, checkpoints: bool = True, **search: object) -> tuple[Study, list[Entry]]:
    """A simulated study whose best learning rate falls while it trains."""
    plain = {"method": "pbt", "population": 6, "generations": 8, "steps_per_generation": 2} | search
    spec = StudySpec.from_plain({
        "study": "toy", "metric": {"name": "loss"}, "space": SPACE, "search": plain, "seed": seed,
    })  # fmt: skip
    clock, journal = VirtualClock(), MemoryJournal()
    study = Study.create(spec, journal, clock=clock)
    executor = Simulation(
        study, clock, workers=3, checkpoints=checkpoints, seconds=lambda job: 1.0 + job.trial % 3,
        train=lambda job: {"loss": abs(math.log(job.params["lr"]) + 0.3 * job.target)},
    )  # fmt: skip
    executor.run()
    return study, list(journal.entries("toy"))


@pytest.mark.parametrize("selection", ["tournament", "truncation"])
def test_lineage_is_what_the_state_holds(selection: str) -> None:
    study, entries = play(0, selection=selection)
    lineage = read_lineage(entries)
    assert len(lineage.births) == len(study.state.trials) == 48 and lineage.generations() == 8
    for trial, birth in zip(study.state.trials, lineage.births, strict=True):
        assert (birth.trial, birth.parent, birth.params) == (trial.number, trial.parent, trial.params)
        event = study.state.reproduced.get(trial.number)
        own = (0, trial.number, None) if event is None else (event.generation, event.member, event.initiator)
        assert (birth.generation, birth.member, birth.initiator) == own
        if birth.parent is not None:
            before = study.state.trials[birth.parent].params
            assert set(birth.explored) == {name for name in SPACE if before[name] != trial.params[name]}


def test_ancestry_and_survivors() -> None:
    study, entries = play(1)
    lineage = read_lineage(entries)
    last = [birth.trial for birth in lineage.births if birth.generation == 7]
    path = lineage.ancestry(last[0])
    assert (
        2 * len(path) == study.state.trials[last[0]].resource
        and path[-1] == last[0]
        and lineage.births[path[0]].parent is None
    )
    assert all(lineage.births[b].parent == a for a, b in pairwise(path))
    assert lineage.survivors() == {t for n in last for t in lineage.ancestry(n)}
    assert set(last) < lineage.survivors() < set(range(48))


def test_the_schedule_follows_the_ancestry() -> None:
    study, entries = play(2)
    lineage = read_lineage(entries)
    path = lineage.ancestry(study.best.trial)
    schedule = read_lineage(entries).schedule(study.best.trial)
    assert [segment.trial for segment in schedule] == path
    assert [(one.start, one.end) for one in schedule] == [(2 * k, 2 * k + 2) for k in range(len(path))]
    assert schedule[-1].end == study.best.resource
    assert [one.params for one in schedule] == [study.state.trials[trial].params for trial in path]


def test_a_study_by_hand_that_keeps_its_checkpoints_to_itself() -> None:
    study, entries = play(2, checkpoints=False)
    lineage = read_lineage(entries)
    schedule = lineage.schedule(study.best.trial)
    assert [segment.trial for segment in schedule] == lineage.ancestry(study.best.trial)


def fold(*events: object) -> Lineage:
    lineage = Lineage()
    for event in events:
        lineage.apply(event)
    return lineage


def session(
    trial: int, attempt: int, start: Checkpoint | None, end: int, keep: bool = True
) -> tuple[object, object, Checkpoint]:
    kept = Checkpoint(f"t{trial}a{attempt}", "", end, 0)
    granted = JobGranted(trial, attempt, Rung(0, 0), end, start)
    done = JobCompleted(trial, attempt, Rung(0, 0), end, 1.0, {}, kept if keep else None, "", 0.0, 0.0)
    return granted, done, kept


def test_what_was_trained_and_lost_is_not_in_the_schedule() -> None:
    """Trial 2's parent lost its checkpoint, so its last attempt went back to the grandparent's."""
    zero, one = session(0, 0, None, 2), session(1, 0, Checkpoint("t0a0", "", 2, 0), 4)
    two = session(2, 1, zero[2], 6)
    lineage = fold(
        TrialCreated(0, 0, {"lr": 1.0}), *zero[:2],
        TrialCreated(1, 0, {"lr": 2.0}, 0), Reproduced(1, 0, None, 0, 0, 1), *one[:2],
        TrialCreated(2, 0, {"lr": 3.0}, 1), Reproduced(2, 1, None, 1, 0, 2),
        JobGranted(2, 0, Rung(0, 2), 6, one[2]), *two[:2],
    )  # fmt: skip
    assert lineage.ancestry(2) == [0, 1, 2]
    assert lineage.schedule(2) == [Segment(0, 2, {"lr": 1.0}, 0), Segment(2, 6, {"lr": 3.0}, 2)]


def test_trials_without_result_or_existence() -> None:
    lineage = fold(TrialCreated(0, 0, {"lr": 1.0}))
    with pytest.raises(HpoError, match=r"trial 0 has no result \(results: none yet\)"):
        lineage.schedule(0)
    with pytest.raises(HpoError, match="no trial 7; its trials are 0 to 0"):
        lineage.ancestry(7)
    with pytest.raises(HpoError, match="no trial yet"):
        fold().birth(0)
