"""Studies whose trials grow: sizes by room, stack and kappa; recorded, audited, trained again, claimed of a pool."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import Study, StudySpec
from hpo_core.execution.virtual import Faults, VirtualClock, Worker
from hpo_core.gangs.growth import grown_size
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import SpecError
from hpo_core.model.events import CapacityChanged, JobGranted
from hpo_core.model.trial import Checkpoint, Job, Outcome
from hpo_core.pool.division import Member, divide
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.simulation import Simulation
from tests.conftest import completed, fresh, make_spec
from tests.methods import facts

CLUSTER = {"kind": "local", "workers": 64}
FOUR = {2: 1.9, 4: 3.4, 8: 4.0}
"""Kappa is 4 at three quarters."""


def growing(scaling: dict[str, Any] | None = None, **changes: Any) -> StudySpec:
    given = {"speedups": FOUR} if scaling is None else scaling
    return make_spec(**{"training": {"gang": "auto"}, "scaling": given, "cluster": CLUSTER, **changes})


def straight(configs: int) -> dict[str, Any]:
    return {"method": "random", "configs": configs, "max_resource": 9}


def sizes(jobs: list[Job]) -> list[int]:
    return [job.demand.slots for job in jobs]


def granted(study: Study) -> list[JobGranted]:
    return facts(study.journal.entries(study.name), JobGranted)


def simulated(study: Study, clock: VirtualClock, workers: int, speedup: Any) -> Simulation:
    return Simulation(
        study,
        clock,
        workers=workers,
        train=lambda job: {"loss": float(job.params["x"]) / job.target},
        seconds=lambda job: 10.0 * (job.target - (job.checkpoint.resource if job.checkpoint else 0)),
        speedup=lambda job: speedup(job.demand.slots),
    )


def test_32_slots_are_used_by_8_jobs_of_kappa_4_and_a_second_study_gets_half() -> None:
    """The example of section 5.3 of the paper on ASHA."""
    first = fresh(growing(search=straight(8)))
    assert first.demand(32) == 32
    assert divide(32, [Member(study="first", demand=first.demand(32))]) == {"first": 32}
    jobs = first.set_capacity(32)
    assert sizes(jobs) == [4] * 8 and first.state.slots_in_use == 32
    second = fresh(growing(search=straight(16), study="second"))
    assert second.demand(64) == 64
    claims = [Member(study=name, demand=study.demand(64)) for name, study in (("first", first), ("second", second))]
    assert divide(32, claims) == {"first": 16, "second": 16}
    assert sizes(second.set_capacity(16)) == [1] * 16, "many wait, so they shrink"


def test_many_waiting_jobs_have_one_slot_and_few_grow_to_kappa() -> None:
    assert sizes(fresh(growing(search=straight(100))).set_capacity(16)) == [1] * 16
    assert sizes(fresh(growing(search=straight(8))).set_capacity(16)) == [2] * 8
    assert sizes(fresh(growing(search=straight(3))).set_capacity(16)) == [4, 4, 4], "never beyond kappa"
    assert sizes(fresh(growing({"speedups": {2: 2.0, 8: 8.0}}, search=straight(3))).set_capacity(16)) == [2, 2, 8]


def test_sizes_leave_each_waiting_job_a_slot_by_brute_force() -> None:
    for room in range(1, 40):
        for waiting in range(1, 40):
            for most in ((1,), (1, 2), (1, 2, 4, 8), (1, 3, 5)):
                fair = [size for size in most if size * waiting <= room]
                assert grown_size(room, waiting, most) == max(fair, default=1)


def test_a_job_keeps_its_size_and_the_next_one_has_another() -> None:
    """Growth happens at grants, which are the boundaries of rungs."""
    study = fresh(growing(search={"method": "sha", "configs": 4, "max_resource": 4, "reduction_factor": 2}))
    jobs = study.set_capacity(4)
    assert sizes(jobs) == [1] * 4
    study.set_capacity(16)
    assert [grant.demand.slots for grant in study.state.running.values()] == [1] * 4
    for number, job in enumerate(jobs):
        promoted = study.tell(job, {"loss": float(number)})
    assert sizes(promoted) == [4, 4]
    study.check()


@pytest.mark.parametrize("scaling", [{"speedups": FOUR}, {}])
def test_a_growing_study_ends_is_audited_and_trained_again(scaling: dict[str, Any]) -> None:
    clock = VirtualClock()
    search = {"method": "asha", "configs": 30, "max_resource": 27, "reduction_factor": 3}
    study = Study.create(growing(scaling, search=search), clock=clock)
    simulated(study, clock, 9, lambda ranks: ranks**0.9).run()
    study.check()
    entries = list(study.journal.entries(study.name))
    assert study.finished and audit(entries).clean
    record = {(grant.trial, grant.target): grant.demand.slots for grant in granted(study)}
    assert max(record.values()) > 1
    clock = VirtualClock()
    again = Study.create(rerun_spec(entries, "again"), clock=clock)
    simulated(again, clock, 9, float).run()
    assert {(grant.trial, grant.target): grant.demand.slots for grant in granted(again)} == record


def test_speeds_are_measured_by_a_pilot_of_two_ranks() -> None:
    search = {"method": "asha", "configs": 30, "max_resource": 27, "reduction_factor": 3}
    study = fresh(growing({}, search=search))
    jobs = study.set_capacity(4)
    pilot, told = None, 0
    while pilot is None:
        job = jobs.pop(0)
        checkpoint = Checkpoint(f"t{job.trial}", "", job.target, 0)
        usage = Usage(unit_seconds=10.0 * (1 + job.trial % 3), startup_seconds=100.0)
        jobs += study.tell_report(completed(job, float(job.trial), checkpoint=checkpoint, usage=usage))
        told += 1
        pilot = next((job for job in jobs if job.demand.slots > 1), None)
    assert pilot.demand.slots == 2 and pilot.checkpoint is not None, "a trial that was seen on one slot"
    assert study.parts.sizes.largest(64) == 2
    assert study.parts.sizes.words().endswith("2 slots (at least 75% of linear; measured: nothing yet)")
    assert study.demand(64) == study.state.slots_in_use + 2 * study.method.grantable(64)
    alone = 10.0 * (1 + pilot.trial % 3)
    study.tell_report(completed(pilot, 0.1, usage=Usage(unit_seconds=alone / 1.99)))
    assert study.state.speeds.relative == pytest.approx({1: 1.0, 2: 1 / 1.99})
    assert study.parts.sizes.largest(64) == 4, "at most twice of what was measured"
    assert study.parts.sizes.words().endswith(
        "4 slots (at least 75% of linear; measured: 2 ranks are 1.99 times as fast)"
    )
    entries = list(study.journal.entries(study.name))
    assert audit(entries).clean


def test_a_slow_pilot_ends_growth() -> None:
    study = fresh(growing({}, search=straight(2)))
    jobs = study.set_capacity(4)
    assert sizes(jobs) == [2, 2], "nothing is known, and slots would be idle"
    slow = fresh(growing({}, search={"method": "sha", "configs": 4, "max_resource": 4, "reduction_factor": 2}))
    jobs = slow.set_capacity(4)
    promoted: list[Job] = []
    for job in jobs:
        promoted += slow.tell_report(completed(job, float(job.trial), usage=Usage(unit_seconds=10.0)))
    assert sizes(promoted) == [2, 2]
    last: list[Job] = []
    for job in promoted:
        last += slow.tell_report(completed(job, float(job.trial), usage=Usage(unit_seconds=9.0)))
    assert sizes(last) == [1]


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"speedups": {1: 1.0}}, "from 2 to"),
        ({"speedups": {2: 2.5}}, "at most 2"),
        ({"speedups": {2: 0.0}}, "above 0"),
        ({"speedups": {2048: 7.0}}, "sizes must be from 2 to 1024"),
        ({"speedups": {2: 1.2, 4: 2.0}}, "no size reaches"),
        ({"efficiency": 1.5}, "efficiency"),
        ({"most": 8}, "scaling.most: is no setting any more: name the sizes"),
    ],
)
def test_scaling_that_contradicts_itself_is_refused(scaling: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        growing(scaling)


def test_scaling_without_growing_trials_is_refused() -> None:
    for gang in (1, 4):
        with pytest.raises(SpecError, match="scaling has no effect"):
            growing(training={"gang": gang})
    with pytest.raises(SpecError, match="needs 2 slots"):
        growing(cluster={"kind": "local", "workers": 1})
    with pytest.raises(SpecError, match="needs 4 slots at once, and cluster.workers gives 3: no job could ever grow"):
        growing({"speedups": {2: 1.1, 4: 3.4, 8: 7.0}}, cluster={"kind": "local", "workers": 3})
    with pytest.raises(SpecError, match="packing"):
        growing(packing=True)


SEARCHES: list[dict[str, Any]] = [
    {"method": "asha", "configs": 20, "max_resource": 9, "reduction_factor": 3},
    {"method": "sha", "configs": 9, "max_resource": 9, "reduction_factor": 3},
    {"method": "hyperband", "max_resource": 9, "reduction_factor": 3},
    {"method": "random", "configs": 7, "max_resource": 3},
    {"method": "pasha", "configs": 12, "max_resource": 9, "reduction_factor": 3},
    {"method": "pbt", "population": 4, "generations": 3, "steps_per_generation": 2},
]
SCALINGS: list[dict[str, Any]] = [{}, {"speedups": {2: 1.8, 4: 3.1}}, {"speedups": {3: 2.7}}]


def growing_study(search: dict[str, Any], scaling: dict[str, Any], clock: VirtualClock, seed: int) -> Study:
    cluster = {"kind": "local", "workers": 8}
    retries = {"retries": {"lost": 1000, "error": 2}, "fail_fast": None}
    training = {"gang": "auto", **retries}
    spec = make_spec(search=search, scaling=scaling, cluster=cluster, training=training, seed=seed)
    return Study.create(spec, clock=clock)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SEARCHES), st.sampled_from(SCALINGS), st.integers(0, 10_000))
def test_a_growing_study_ends_within_its_slots_and_is_decided_again_alike(
    search: dict[str, Any], scaling: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    clock = VirtualClock()
    study = growing_study(search, scaling, clock, seed)

    def train(job: Job) -> dict[str, float] | Outcome:
        bad = random.Random(f"{seed}-{job.trial}-{job.attempt}").random() < 0.1
        return Outcome.ERROR if bad else {"loss": draw.random()}

    workers = [Worker(joins=draw.choice((0.0, 0.0, 30.0)), leaves=1e9) for _ in range(draw.randint(1, 9))]
    workers += [Worker(leaves=draw.uniform(5, 60)) for _ in range(draw.randint(0, 4))]
    Simulation(
        study,
        clock,
        workers=workers,
        train=train,
        seconds=lambda job: 5.0 * job.target * draw.uniform(0.5, 1.5),
        speedup=lambda job: job.demand.slots ** draw.uniform(0.5, 1.0),
        faults=Faults(drops=0.02, seed=seed, time_unit=5.0),
    ).run()
    study.check()
    assert study.finished, "nothing waits for slots for ever"
    capacity, used, running = 0, 0, dict[int, int]()
    entries = list(study.journal.entries(study.name))
    for entry in entries:
        for event in entry.events:
            if isinstance(event, CapacityChanged):
                capacity = event.inventory.slots
            elif isinstance(event, JobGranted):
                used += event.demand.slots
                running[event.trial] = event.demand.slots
                assert used <= capacity and event.demand.slots <= max(scaling.get("speedups", [1024]))
                assert "speedups" in scaling or event.demand.slots.bit_count() == 1
            elif type(event).__name__ in ("JobCompleted", "AttemptFailed"):
                used -= running.pop(event.trial)  # type: ignore[union-attr]
    assert audit(entries).clean


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 2, 4, 8]))
def test_no_slot_is_idle_that_a_trial_could_use(configs: int, slots: int, largest: int) -> None:
    """At the start of a search without rungs, by trying all sizes."""
    gains = {size: float(size) for size in (2, 4, 8) if size <= largest} or {2: 1.6}
    spec = make_spec(
        search={"method": "random", "configs": configs, "max_resource": 3},
        training={"gang": "auto"},
        scaling={"speedups": gains},
        cluster={"kind": "local", "workers": 64},
    )
    study = fresh(spec)
    jobs = study.set_capacity(slots)
    largest = max(gains)
    assert len(jobs) == min(configs, slots)
    assert study.state.slots_in_use <= min(slots, configs * largest)
    left = slots - study.state.slots_in_use
    last = jobs[-1].demand.slots
    assert last == largest or left < last or len(jobs) == slots, "the last one would have had room to double"
    study.check()
