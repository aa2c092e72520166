"""Laws that hold for every study, whatever the order of reports, failures and losses."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import MemoryJournal, Outcome, Study
from hpo_core.model.arithmetic import as_written
from hpo_core.model.events import JobCompleted, JobGranted
from hpo_core.replay.audit import audit
from hpo_core.search.rungs import rung_levels
from tests.conftest import completed, failed, fresh, make_spec
from tests.contract_suites.fake_training import snapshot
from tests.methods import judge

LOSSES = st.one_of(st.floats(-10, 10), st.sampled_from([0.5, float("nan"), float("inf"), float("-inf"), 1e300, -1e300]))
FAILURES = st.sampled_from([Outcome.ERROR, Outcome.CRASHED, Outcome.LOST, Outcome.PREEMPTED, Outcome.TIMEOUT])
STEP = st.tuples(st.integers(0, 50), st.one_of(LOSSES, LOSSES, LOSSES, FAILURES))


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    method = draw(st.sampled_from(["asha", "asha", "stopping", "sha", "hyperband", "pasha", "random"]))
    configs = draw(st.integers(1, 30))
    if method == "random":
        return {"method": "random", "configs": configs, "max_resource": 5}
    smallest, eta = draw(st.integers(1, 3)), draw(st.sampled_from([2, 3, 4, 2.5, 1.6, 3.7]))
    top = max(smallest, round(smallest * eta ** draw(st.integers(0, 3))))
    search = {"method": method, "min_resource": smallest, "max_resource": top, "reduction_factor": eta}
    if method == "hyperband":
        return search
    search["configs"] = configs
    if method in ("asha", "stopping"):
        search |= {"method": "asha", "variant": "promotion" if method == "asha" else "stopping"}
        if draw(st.booleans()):
            search["brackets"] = "all"
            search["rung_system"] = draw(st.sampled_from(["shared", "per_bracket"]))
            search["assignment"] = draw(st.sampled_from(["budget", "proportional", "loop"]))
    if method == "sha":
        search["rounds"] = draw(st.integers(1, 3))
        search["configs"] += math.ceil(
            eta ** (len(rung_levels(smallest, top, as_written(eta))) - 1)
        )  # fewer never reach the top
    return search


def width(study: Study) -> int:
    search = study.spec.search
    if search.method == "hyperband":
        return sum(rung.expected for rung in study.method.rungs() if rung.rung == 0)
    return int(search.configs) * int(getattr(search, "rounds", 1))


def play(search: dict[str, Any], workers: int, script: list[tuple[int, float | Outcome]]) -> Study:
    """A study whose next report is chosen by the script, then in order with equal losses."""
    study = fresh(make_spec(search=search, training={"fail_fast": None}), MemoryJournal())
    running = list(study.set_capacity(workers))
    steps = iter(script)
    for _ in range(2000):
        study.check()
        if not running:
            break
        index, result = next(steps, (0, 0.25))
        job = running.pop(index % len(running))
        report = failed(job, result) if isinstance(result, Outcome) else completed(job, result)
        running += study.tell_report(report)
    assert study.status == "finished"
    return study


@settings(max_examples=40, deadline=None)
@given(searches(), st.integers(1, 9), st.lists(STEP, max_size=120))
def test_laws_of_any_study(search: dict[str, Any], workers: int, script: list[tuple[int, float | Outcome]]) -> None:
    study = play(search, workers, script)
    entries = list(study.journal.entries(study.name))

    open_grants: dict[int, int] = {}
    results: dict[tuple[int, int], int] = defaultdict(int)
    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobGranted):
                assert event.trial not in open_grants, "granted twice at once"
                open_grants[event.trial] = event.attempt
                assert len(open_grants) <= workers, "capacity exceeded"
            elif isinstance(event, JobCompleted):
                assert open_grants.pop(event.trial) == event.attempt
                results[event.trial, event.rung] += 1
            elif type(event).__name__ == "AttemptFailed":
                open_grants.pop(event.trial)  # type: ignore[union-attr]
    assert set(results.values()) <= {1}, "a result counted twice"
    judge(study.spec, entries)
    assert len(study.state.trials) == width(study), "the base rungs take n configurations"
    ended = {t.number for t in study.state.trials if t.abandoned or t.results}
    assert ended == set(range(width(study))), "a trial was lost"

    again = Study.from_entries(entries)
    assert snapshot(again) == snapshot(study), "replay equals live"
    again.check()
    assert audit(entries).clean


@settings(max_examples=20, deadline=None)
@given(searches(), st.integers(1, 9), st.lists(STEP, max_size=60), st.data())
def test_recovery_at_any_entry_is_lawful(
    search: dict[str, Any], workers: int, script: list[tuple[int, float | Outcome]], data: st.DataObject
) -> None:
    entries = list(play(search, workers, script).journal.entries("world"))
    cut = data.draw(st.integers(1, len(entries)))
    journal = MemoryJournal()
    journal.create("world", entries[0])
    for entry in entries[1:cut]:
        journal.append("world", entry)
    study = Study.open("world", journal)
    study.recover("second controller")
    running = list(study.set_capacity(workers))
    while running:
        running += study.tell_report(completed(running.pop(0), 0.5))
        study.check()
    assert study.status == "finished"
    assert len(study.state.trials) == width(study)
    assert audit(journal.entries("world")).clean
