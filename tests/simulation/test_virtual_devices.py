"""Virtual devices that jobs share: schedules worked out by hand and by brute force, limits, the same twice."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hpo_core import Job, MemoryJournal, Study
from hpo_core.execution.executor import Inbox
from hpo_core.execution.loop import Loop
from hpo_core.execution.placing import PlacementWriter
from hpo_core.execution.virtual import Worker
from hpo_core.model.devices.inventory import Capacity, Device, Portion, Slot
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.devices.stated_demand import StatedDemand
from hpo_core.model.trial import Outcome, Report, Rung
from hpo_core.placement.estimates import Estimates
from hpo_core.placement.policies import POLICIES
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.replay.audit import audit
from hpo_core.simulation import VirtualClock
from hpo_core.spec.packing import PackingSpec
from tests.conftest import make_spec
from tests.virtual_devices import Load, VirtualDevices

GB = 1_000_000_000
SPACE: dict[str, Any] = {
    "m": {"type": "int", "low": 1, "high": 12},
    "c": {"type": "int", "low": 5, "high": 70},
    "d": {"type": "int", "low": 1, "high": 30},
}


def demand(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"memory": GB * params["m"], "compute": params["c"], "cores": 0.001}


def gpus(count: int, kind: str = "A100", memory: int = 16) -> list[Device]:
    """GPUs of one computer whose cores limit nothing."""
    capacity = Capacity(node=kind, architecture=kind, memory=memory * GB, free=memory * GB, cores=10**9, gpu=True)
    return [Device(f"{kind}-{number}", 16, capacity) for number in range(count)]


def seconds(job: Job) -> float:
    return float(job.params["d"])


class Played:
    """A random search of jobs that need what their parameters say, on shared devices."""

    def __init__(self, devices: Sequence[Device], policy: str, configs: int, *, seed: int = 0, **packing: Any) -> None:
        spec = make_spec(space=SPACE, seed=seed, search={"method": "random", "configs": configs, "max_resource": 1})
        settings = PackingSpec.model_validate({"policy": policy} | packing)
        self.devices = devices
        self.clock = VirtualClock()
        self.journal = MemoryJournal()
        self.study = Study.create(spec, self.journal, clock=self.clock)
        needs = Estimates(objective="", code="", study="world", by=("m", "c", "d"), stated=StatedDemand({}, demand))
        placer = SharedDevices(settings, POLICIES[policy](), needs, free_choice=True)
        self.executor = VirtualDevices(
            self.clock,
            devices=devices,
            load=lambda job, slot: Load(seconds(job), 10 * job.params["c"]),
            train=lambda job: {"loss": job.params["c"]},
            poll_seconds=1.0,
            objectives=["loss"],
        )
        Loop(self.study, self.executor, placer=placer, observers=[PlacementWriter(self.study, placer)]).run()
        self.study.check()

    @property
    def entries(self) -> list[Any]:
        return list(self.journal.entries("world"))

    def held_on(self, device: str) -> list[list[tuple[int, int, int]]]:
        """What jobs held of a device whenever one began there."""
        found = [result for trial in self.study.state.trials for result in trial.results]
        there = [result for result in found if isinstance(result.usage, Usage) and result.usage.device == device]
        return [
            [other.usage.share for other in there if other.started <= one.started < other.ended and other.usage.share]
            for one in there
        ]

    @property
    def jobs(self) -> list[Mapping[str, Any]]:
        return [trial.params for trial in self.study.state.trials]


def first_fit_by_seconds(jobs: Sequence[Mapping[str, Any]], memory: int, devices: int) -> int:
    """The makespan of first fit in the order given, second by second."""
    waiting = list(jobs)
    running: list[tuple[int, int, Mapping[str, Any]]] = []
    now = 0
    while True:
        running = [one for one in running if one[0] > now]
        for job in list(waiting):
            for device in range(devices):
                there = [other for _, place, other in running if place == device]
                compute = sum(other["c"] for other in there) + job["c"]
                if compute <= 100 and sum(other["m"] for other in there) + job["m"] <= memory:
                    running.append((now + job["d"], device, job))
                    waiting.remove(job)
                    break
        if not running:
            return now
        now += 1


@pytest.mark.parametrize("seed", range(2))
def test_first_fit_ends_when_a_walk_through_every_second_says(seed: int) -> None:
    played = Played(gpus(2), "first_fit", 14, seed=seed)
    walked = first_fit_by_seconds(played.jobs, 16, 2)
    assert played.clock.now == pytest.approx(walked)


def test_one_job_per_device_is_the_plain_queue() -> None:
    played = Played(gpus(3), "first_fit", 20, most=1)
    free = [0.0, 0.0, 0.0]
    for job in played.jobs:
        place = free.index(min(free))
        free[place] += job["d"]
    assert played.clock.now == pytest.approx(max(free))
    assert all(len(held) <= 1 for device in played.devices for held in played.held_on(device.name))


@pytest.mark.parametrize("policy", ["first_fit", "fill"])
def test_what_jobs_hold_never_exceeds_a_device(policy: str) -> None:
    played = Played([*gpus(3), *gpus(2, "H100", 12)], policy, 60, oversubscribe={"default": 1.0, "A100": 1.5}, most=6)
    assert played.study.state.completed_jobs == 60
    assert audit(played.entries).clean
    most = 0
    for device, history in zip(played.devices, played.executor.history, strict=True):
        assert isinstance(device.capacity, Capacity)
        ratio = 1500 if device.capacity.architecture == "A100" else 1000
        for held in played.held_on(device.name):
            assert sum(share[1] for share in held) <= device.capacity.memory
            assert sum(share[0] for share in held) <= ratio and len(held) <= 6
            most = max(most, len(held))
        assert history[-1][1] == 0
    assert most > 2


def slot(number: int, device: str = "A100-0") -> Slot:
    portion = Portion(device=device, architecture="A100", compute=1, memory=1, cores=0, capacity=9)
    return Slot(0, number, device, portion)


class Driven:
    """Virtual devices without a study."""

    def __init__(self, loads: Sequence[Load], workers: Sequence[Worker] | None = None) -> None:
        self.clock = VirtualClock()
        self.inbox = Inbox()
        self.executor = VirtualDevices(
            self.clock,
            devices=gpus(1),
            load=lambda job, slot: loads[job.trial],
            train=lambda job: {"loss": 1.0},
            poll_seconds=1.0,
            workers=workers,
        )

    def submit(self, trial: int) -> None:
        job = Job(trial, 0, Rung(0, 0), 1, {})
        self.executor.submit(job, slot(trial), self.inbox.put)

    def next(self) -> Report:
        while not self.inbox.reports:
            assert self.executor.wait(self.inbox, math.inf)
        return self.inbox.reports.popleft()


def test_jobs_that_claim_more_than_the_device_slow_each_other_down() -> None:
    driven = Driven([Load(10.0, 600), Load(20.0, 900), Load(4.0, 100)])
    driven.submit(0)
    driven.submit(1)
    first = driven.next()  # both at 1000/1500 of their speed
    assert (first.trial, first.ended) == (0, pytest.approx(15.0))
    driven.submit(2)  # 900 + 100: as fast as alone
    second, third = driven.next(), driven.next()
    assert (second.trial, second.ended) == (2, pytest.approx(19.0))
    assert (third.trial, third.ended) == (1, pytest.approx(25.0)), "10 of its 20 seconds were left at second 15"
    assert driven.executor.utilization == 1.0
    assert driven.executor.occupancy == pytest.approx((15 * 1.5 + 4 * 1.0 + 6 * 0.9) / 25)


def test_a_cancelled_job_gives_its_neighbour_its_speed_back() -> None:
    driven = Driven([Load(10.0, 1000), Load(10.0, 1000)])
    driven.submit(0)
    driven.submit(1)
    driven.executor.wait(driven.inbox, 4.0)
    driven.executor.cancel([(0, 0)])
    assert driven.next().outcome is Outcome.PREEMPTED
    assert driven.next().ended == pytest.approx(12.0), "two seconds of work in the first four"
    assert not driven.executor.wait(driven.inbox, 99.0), "nothing will happen any more"


def test_a_device_that_leaves_takes_all_its_jobs() -> None:
    driven = Driven([Load(10.0, 100), Load(10.0, 100)], [Worker(leaves=5.0)])
    driven.submit(0)
    driven.submit(1)
    found = [driven.next(), driven.next()]
    assert [(one.trial, one.outcome, one.ended) for one in found] == [(0, Outcome.LOST, 5.0), (1, Outcome.LOST, 5.0)]


def test_shuffled_jobs_keep_within_oversubscribed_devices_and_take_longer() -> None:
    draw = random.Random(5)
    loads = [Load(draw.uniform(1, 9), draw.randrange(100, 900)) for _ in range(12)]
    driven = Driven(loads)
    for trial in range(12):
        driven.submit(trial)
    ends = [driven.next().ended for _ in range(12)]
    work = sum(load.seconds * load.compute / 1000 for load in loads)
    assert ends == sorted(ends) and ends[-1] >= work * (1 - 1e-9), "no more work is done than the device can do"
