"""Laws of growing studies, on workers that come and go and jobs that fail."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core import Study
from hpo_core.execution.virtual import Faults, VirtualClock, Worker
from hpo_core.model.events import CapacityChanged, JobGranted
from hpo_core.model.trial import Job, Outcome
from hpo_core.replay.audit import audit
from hpo_core.simulation import Simulation
from tests.conftest import fresh, make_spec

SEARCHES: list[dict[str, Any]] = [
    {"method": "asha", "configs": 20, "max_resource": 9, "reduction_factor": 3},
    {"method": "sha", "configs": 9, "max_resource": 9, "reduction_factor": 3},
    {"method": "hyperband", "max_resource": 9, "reduction_factor": 3},
    {"method": "random", "configs": 7, "max_resource": 3},
    {"method": "pasha", "configs": 12, "max_resource": 9, "reduction_factor": 3},
    {"method": "pbt", "population": 4, "generations": 3, "steps_per_generation": 2},
]
SCALINGS: list[dict[str, Any]] = [
    {},
    {"speedups": {2: 1.8, 4: 3.1}},
    {"speedups": {3: 2.7}},
]


def growing(search: dict[str, Any], scaling: dict[str, Any], clock: VirtualClock, seed: int) -> Study:
    cluster = {"kind": "local", "workers": 8}
    retries = {"retries": {"lost": 1000, "error": 2}, "fail_fast": None}
    training = {"gang": "auto", **retries}
    spec = make_spec(search=search, scaling=scaling, cluster=cluster, training=training, seed=seed)
    return Study.create(spec, clock=clock)


def most_of(scaling: dict[str, Any]) -> int:
    return int(max(scaling["speedups"]) if "speedups" in scaling else 1024)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SEARCHES), st.sampled_from(SCALINGS), st.integers(0, 10_000))
def test_a_growing_study_ends_within_its_slots_and_is_decided_again_alike(
    search: dict[str, Any], scaling: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    clock = VirtualClock()
    study = growing(search, scaling, clock, seed)

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
                assert used <= capacity and event.demand.slots <= most_of(scaling)
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
