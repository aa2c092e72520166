from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.replay.audit import audit
from hpo_core.replay.past_results import with_past
from hpo_core.replay.rerun import rerun_spec
from tests.conftest import World, completed, failed, fresh, make_spec, played
from tests.methods import spec_of

WHOLE = {"x": 0.25, "c": "a", "d": 16}
PART = {"x": 0.5}


def params(study: Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.state.trials]


@pytest.mark.parametrize("name", ["asha", "asha-brackets", "hyperband", "stopping", "pasha", "pbt", "random"])
def test_every_search_begins_with_them_and_goes_on_as_it_would_have(name: str) -> None:
    study = played(spec_of(name, study="given", start_with=[WHOLE, PART]), World(3))
    assert study.status == "finished"
    first, second = params(study)[:2]
    assert first == WHOLE and second["x"] == 0.5 and study.spec.search_space().complaints(second) == []
    plain = played(spec_of(name, study="plain"), World(3))
    if "pbt" not in name:
        assert params(study)[2:] == params(plain)[2 : len(params(study))], "random draws follow the trial's number"
    assert audit(study.journal.entries("given")).clean


@pytest.mark.parametrize("sampler", ["random", "TPESampler", "QMCSampler"])
def test_every_sampler_completes_them_and_a_resume_goes_on_the_same(sampler: str) -> None:
    def played(steps: int | None) -> Study:
        journal = MemoryJournal()
        search = {"method": "random", "configs": 9}
        study = fresh(make_spec(search=search, sampler={"name": sampler}, start_with=[PART, WHOLE]), journal)
        for step in range(9):
            job = study.ask()
            study.tell(job, {"loss": job.params["x"]})
            if step == 3:
                study.enqueue({"c": "b"})
                study.enqueue({"x": 0.75})
            if step == steps:
                study = Study.open("world", journal)
        assert study.finished and audit(journal.entries("world")).clean
        return study

    whole = played(None)
    found = params(whole)
    assert found[0]["x"] == 0.5 and found[1] == WHOLE
    assert found[4]["c"] == "b" and found[5]["x"] == 0.75
    assert all(whole.spec.search_space().complaints(one) == [] for one in found)
    for steps in (2, 4):
        again = params(played(steps))
        if sampler == "QMCSampler":  # its state is asked for again on a resume
            assert again[:6] == found[:6] or again[:2] == found[:2]
        else:
            assert again == found


def test_a_grid_is_gone_through_whole_after_them() -> None:
    study = played(spec_of("grid", study="g", start_with=[{"x": 0.123}]), World(3), steps=3)
    plain = played(spec_of("grid", study="plain"), World(3))
    study.enqueue({"x": 0.456, "c": "b"})
    World(3).play(study, study.state.wanted())
    found = params(study)
    assert found[0]["x"] == 0.123 and found.count({"x": 0.456, "c": "b"}) == 1
    assert [one for one in found if one.get("x") not in (0.123, 0.456)] == params(plain)
    assert study.finished and audit(study.journal.entries("g")).clean
    World(3).play(study, study.enqueue({"x": 0.789, "c": "b"}))
    assert params(study)[-1]["x"] == 0.789 and study.finished and audit(study.journal.entries("g")).clean


def test_duplicates_are_refused_at_the_start_and_skipped_on_request() -> None:
    with pytest.raises(SpecError, match=r"start_with\[1\] is the same configuration as start_with\[0\]"):
        make_spec(start_with=[WHOLE, dict(reversed(WHOLE.items()))])
    make_spec(start_with=[PART, PART])  # the sampler adds other values to each
    study = fresh(make_spec())
    study.enqueue(WHOLE)
    study.enqueue(WHOLE, skip_if_exists=True)
    study.enqueue({"d": 16, "c": "a"}, skip_if_exists=True)
    assert len(study.state.queue) == 1
    study.ask()
    study.enqueue(WHOLE, skip_if_exists=True)
    assert not study.state.queue
    study.enqueue(WHOLE)
    assert len(study.state.queue) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"y": 1}, "start_with[0]: 'y' is no parameter of the space; it has x, c, d"),
        ({"xx": 1}, "did you mean 'x'?"),
        ({"x": 2.0}, "start_with[0].x = 2.0 lies outside its range, 0.0 to 1.0; give a value inside"),
        ({"x": "a"}, "start_with[0].x = 'a' lies outside its range"),
        ({"x": True}, "start_with[0].x = True lies outside its range"),
        ({"c": "z"}, "start_with[0].c = 'z' is none of its choices 'a', 'b'; give one of them"),
        ({"c": "b", "d": 3}, "d takes part only where c is 'a', and c is 'b'; give that too, or drop d"),
        ({"d": 3}, "d takes part only where c is 'a', and c is not given"),
        ({"c": "a", "d": 2.5}, "start_with[0].d = 2.5 lies outside its range, whole numbers 1 to 64"),
    ],
)
def test_what_the_space_does_not_take_is_refused_with_the_cure(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        make_spec(start_with=[given])
    assert says in str(refused.value)
    study = fresh(make_spec())
    with pytest.raises(HpoError) as refused_too:
        study.enqueue(given)
    assert says.replace("start_with[0]", "enqueue") in str(refused_too.value)
    assert study.seq == 1, "nothing was recorded"


def test_more_configurations_than_the_search_begins_are_refused() -> None:
    with pytest.raises(SpecError, match="start_with holds 7 configurations, and search pbt begins only 6"):
        spec_of("pbt", start_with=[{"x": n / 10} for n in range(7)])
    with pytest.raises(SpecError, match="start_with holds 13 configurations, and search random begins only 12"):
        spec_of("random", start_with=[{"x": n / 20} for n in range(13)])


def test_numbers_are_taken_as_the_parameter_has_them() -> None:
    study = fresh(make_spec())
    study.enqueue({"x": 1, "c": "a", "d": np.int64(4)})
    study.enqueue({"x": np.float32(0.5), "c": "a", "d": 4.0})
    assert json.dumps(list(study.state.queue)) == '[{"x": 1.0, "c": "a", "d": 4}, {"x": 0.5, "c": "a", "d": 4}]'
    stepped = {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.1}}
    make_spec(space=stepped, start_with=[{"x": 0.1 + 0.2}])
    with pytest.raises(SpecError, match="off its steps, 0.0 to 1.0 in steps of 0.1"):
        make_spec(space=stepped, start_with=[{"x": 0.25}])


def test_a_warm_start_comes_after_them() -> None:
    journal = MemoryJournal()
    World(0).play(fresh(make_spec(study="earlier"), journal))
    settings = {"studies": ["earlier"]}
    tpe = {"name": "TPESampler"}
    spec = with_past(make_spec(study="new", warm_start=settings, start_with=[WHOLE], sampler=tpe), journal)
    assert spec.warm_start is not None and spec.warm_start.proposals
    study = fresh(spec, journal)
    World(1).play(study, steps=5)
    assert params(study)[:4] == [WHOLE, *spec.warm_start.proposals]
    assert study.sampler.sampler._tried_again == {1: -1, 2: -2, 3: -3}  # type: ignore[attr-defined]
    assert audit(journal.entries("new")).clean


def test_constants_reach_every_job_and_a_rerun_and_are_no_parameters() -> None:
    constants = {"data": "train.npz", "lags": [1, 7], "optimizer.momentum": 0.9}
    study = fresh(make_spec(study="c", constants=constants, start_with=[WHOLE]))
    job = study.ask()
    assert job is not None and job.params == constants | WHOLE
    assert study.state.trials[0].params == WHOLE
    again = Study.open("c", study.journal)
    assert [one.params for one in again.recover("next:1") or again.set_capacity(1)] == [constants | WHOLE]
    World(1).play(again)
    rerun = rerun_spec(list(study.journal.entries("c")), "r", changes={"data": "new.npz"})
    repeated = fresh(rerun)
    first = repeated.ask()
    assert first is not None and first.params == constants | WHOLE | {"data": "new.npz"}
    with pytest.raises(HpoError, match="trains again along a record"):
        repeated.enqueue(WHOLE)


def test_a_rerun_refuses_a_setting_where_a_parameter_belongs() -> None:
    """It would be a parameter ``training.gang`` that no training function reads."""
    study = fresh(make_spec(study="c", constants={"data.path": "a.npz"}, start_with=[WHOLE]))
    study.ask()
    entries = list(study.journal.entries("c"))
    for name in ("training.gang", "share.weight", "constants.lags"):
        with pytest.raises(SpecError, match=f"--set {name}: a rerun has the settings .* Drop it"):
            rerun_spec(entries, "r", changes={name: 2})
    again = fresh(rerun_spec(entries, "r", changes={"data.path": "b.npz", "seed": 2, "own.name": 3}))
    job = again.ask()
    assert job is not None and job.params == WHOLE | {"data.path": "b.npz", "seed": 2, "own.name": 3}


def test_a_rerun_needs_trials_that_are_there() -> None:
    study = fresh(make_spec())
    with pytest.raises(SpecError, match="granted no job yet; there is nothing to train again"):
        rerun_spec(list(study.journal.entries("world")), "r")
    study.ask()
    with pytest.raises(SpecError, match="--trial 7: the study has trials 0 to 0"):
        rerun_spec(list(study.journal.entries("world")), "r", trials=[7])


def test_a_rerun_goes_on_without_trials_that_fail_or_are_abandoned() -> None:
    again = fresh(rerun_spec(list(played(make_spec(), World(3)).journal.entries("world")), "again"))
    promoted = max(again.method.settings.grants, key=lambda grant: grant.target).trial  # type: ignore[attr-defined]
    running = list(again.set_capacity(2))
    while running[0].trial != promoted:
        running += again.tell_report(completed(running.pop(0), 0.5))
    again.set_capacity(0)
    assert again.tell_report(completed(running.pop(0), 0.5)) == []
    again.abandon(promoted)  # while it waits for the job that the record has for it
    failing = running.pop(0)
    running += again.tell_report(failed(failing, Outcome.ERROR, "ValueError: no"))
    running += again.set_capacity(4)
    while running:
        running += again.tell_report(completed(running.pop(0), 0.5))
        again.check()
    assert again.status == "finished"
    gone = {trial.number for trial in again.state.trials if trial.abandoned is not None}
    assert gone == {promoted, failing.trial}
    done = sum(status.results for status in again.method.rungs())
    assert done == again.state.completed_jobs < sum(status.expected for status in again.method.rungs())
    assert audit(again.journal.entries("again")).clean


@pytest.mark.parametrize(
    ("constants", "says"),
    [
        ({"x": 1}, "constants.x: 'x' is a parameter of the space too"),
        ({"x.y": 1}, "'x.y' is in the group 'x', which is a name of its own as well"),
        ({"a": 1, "a.b": 2}, "'a.b' is in the group 'a'"),
        ({"when": {1, 2}}, "no plain value"),
    ],
)
def test_constants_that_collide_are_refused(constants: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        make_spec(constants=constants)
    assert says in str(refused.value)
