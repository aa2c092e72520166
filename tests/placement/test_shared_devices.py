"""Jobs that share devices: what they hold, who waits, who is blamed when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from hpo_core.model.devices.inventory import Capacity, Device, Inventory
from hpo_core.model.devices.measurement import Measurement, Usage
from hpo_core.model.trial import Job, JobKey, Outcome, Report, Rung
from hpo_core.packing.estimates import Estimates
from hpo_core.packing.policies import POLICIES
from hpo_core.packing.shared_devices import TELL_AFTER, SharedDevices
from hpo_core.placement.placer import Placement
from hpo_core.spec.packing import PackingSpec, StatedDemand

GB = 1_000_000_000
QUARTER = {"memory": "10GB"}
"""Stated of a device of 40 GB; a quarter of all else."""


def gpu(
    name: str = "GPU-a", *, memory: int = 40, free: int | None = None, node: str = "n1", kind: str = "A100"
) -> Device:
    free = memory if free is None else free
    capacity = Capacity(node=node, architecture=kind, memory=memory * GB, free=free * GB, cores=16_000, gpu=True)
    return Device(name, 16, capacity)


def job(trial: int, attempt: int = 0, **params: Any) -> Job:
    return Job(trial, attempt, Rung(0, 0), 3, params)


class PlayedMeter:
    """Workers that say what a test says, and note what they are told."""

    def __init__(self) -> None:
        self.seen: dict[JobKey, Usage] = {}
        self.limits: list[tuple[JobKey, int]] = []

    def usages(self) -> dict[JobKey, Usage]:
        return self.seen

    def limit(self, attempt: JobKey, memory: int) -> None:
        self.limits.append((attempt, memory))


def devices_for(
    *devices: Device,
    packing: dict[str, Any] | None = None,
    stated: dict[str, Any] | Callable[[dict[str, Any]], Any] | None = None,
    past: Iterable[Measurement] = (),
    **more: Any,
) -> SharedDevices:
    spec = PackingSpec.model_validate(packing or {})
    estimates = Estimates(
        objective="m:f",
        code="c",
        study="s",
        by=("width",),
        stated=StatedDemand({}, stated) if callable(stated) else StatedDemand(stated),
        past=past,
    )
    placer = SharedDevices(spec, POLICIES[spec.policy](), estimates, **more)
    placer.update(Inventory(devices))
    return placer


def names(placements: Iterable[Placement]) -> list[tuple[int, str]]:
    return [(job.trial, slot.name) for job, slot in placements]


def ended(
    placement: Placement, outcome: Outcome, *, at: float = 100.0, memory: int | None = None, message: str = ""
) -> Report:
    job, _ = placement
    used = {"usage": Usage(device_memory=memory, compute=0.2, cores=1.0, unit_seconds=1.0)} if memory else {}
    return Report(
        trial=job.trial, attempt=job.attempt, outcome=outcome, started=90.0, ended=at, message=message, **used
    )


def test_a_whole_device_until_it_is_measured_then_what_it_needs() -> None:
    placer = devices_for(gpu())
    placed = placer.place([job(trial, width=8) for trial in range(9)]).begun
    assert len(placed) == 1
    share = placed[0][1].portion
    assert share is not None and (share.memory, share.compute, share.capacity) == (40 * GB, 1000, 40 * GB)
    placer.judge(ended(placed[0], Outcome.COMPLETED, memory=2 * GB))
    placer.release(placed[0][0].key)
    later = placer.place([job(trial, width=8) for trial in range(10, 30)]).begun
    assert len(later) == 5, "a fifth of the compute each"
    assert all(slot.portion is not None and slot.portion.memory < 3 * GB for _, slot in later)
    assert len({slot.number for _, slot in [*placed[1:], *later]}) == len(placed) - 1 + len(later), "each its own place"


def test_the_study_may_grant_what_runs_and_a_few_more() -> None:
    placer = devices_for(gpu(), gpu("GPU-b"), stated=QUARTER)
    assert placer.capacity().slots == 2
    placed = placer.place([job(trial, width=8) for trial in range(3)]).begun
    assert placer.capacity().slots == 5
    placer.release(placed[0][0].key)
    assert placer.capacity().slots == 5, "not after each job: each change is an entry of the journal"
    placer.update(placer.inventory)
    assert placer.capacity().slots == 4
    placer.update(Inventory())
    assert placer.capacity().slots == 0 and placer.place([job(9, width=8)]).begun == []


def test_oversubscription_scales_compute_alone() -> None:
    stated = {"memory": "1GB", "compute": 50, "cores": 1}
    jobs = [job(trial, width=8) for trial in range(30)]
    assert len(devices_for(gpu(), stated=stated).place(jobs).begun) == 2
    assert len(devices_for(gpu(), stated=stated, packing={"oversubscribe": {"A100": 3}}).place(jobs).begun) == 6
    assert (
        len(devices_for(gpu(memory=4), stated=stated, packing={"oversubscribe": {"default": 3}}).place(jobs).begun) == 4
    )


def test_what_others_use_is_left_alone_and_a_limit_holds() -> None:
    stated = {"memory": "10GB", "compute": 1, "cores": 0}
    jobs = [job(trial, width=8) for trial in range(9)]
    assert len(devices_for(gpu(free=25), stated=stated).place(jobs).begun) == 2
    assert len(devices_for(gpu(), stated=stated, packing={"memory": {"A100": "30GB"}}).place(jobs).begun) == 3
    assert len(devices_for(gpu(), stated=stated, packing={"memory": {"default": "12GB"}}).place(jobs).begun) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retry_alone_gets_the_whole_device_by_every_policy(policy: str) -> None:
    placer = devices_for(gpu(), packing={"policy": policy, "memory": "400MB"})
    (placed,) = placer.place([job(0, width=8)]).begun
    placer.judge(ended(placed, Outcome.OUT_OF_MEMORY, memory=350_000_000))
    placer.release(placed[0].key)
    again = placer.place([job(0, 1, width=8)]).begun
    assert [slot.portion.allowed for _, slot in again if slot.portion is not None] == [400_000_000]


def test_a_job_that_fits_nowhere_is_refused_with_the_reason_and_blocks_nobody() -> None:
    placer = devices_for(
        gpu(),
        gpu("GPU-b", memory=80, kind="H100"),
        stated=lambda params: {"memory": GB * params["width"], "compute": 10},
    )
    jobs = [job(0, width=100), job(1, width=50), job(2, width=3)]
    placed = placer.place(jobs)
    (report,) = placed.refused
    assert (report.trial, report.outcome) == (0, Outcome.OUT_OF_MEMORY)
    assert "memory 100 GB of 40 GB" in report.message and "of 80 GB" in report.message
    assert "packing.demand" in report.message
    assert sorted(names(placed.begun)) == [(1, "GPU-b"), (2, "GPU-a")]
    assert devices_for(stated=lambda params: {"memory": GB * params["width"]}).place(jobs) == ([], []), (
        "no device yet: it waits"
    )
    used = devices_for(gpu(free=1), stated={"memory": "5GB"})
    assert used.place(jobs) == ([], []), "it will fit when others have gone"


def test_a_person_is_told_once_why_no_job_can_begin() -> None:
    placer = devices_for(gpu(free=4), stated={"memory": "5GB"})
    assert placer.place([job(3, width=8), job(4, width=8)]).begun == []
    said = []
    for _ in range(2 * TELL_AFTER):
        placer.update(placer.inventory)
        said.append(placer.news())
    assert [text[:70] for text in filter(None, said)] == [
        "2 jobs wait for a device and none runs. Trial 3: GPU-a (A100): it need"
    ]
    assert "it needs 5 GB, 4 GB of 40 GB are free" in "".join(said)


def test_a_running_one_that_was_measured_makes_room_for_others() -> None:
    meter = PlayedMeter()
    placer = devices_for(gpu(), packing={"most": 64}, meter=meter)
    placed = placer.place([job(trial, width=8) for trial in range(20)], now=5.0).begun
    assert len(placed) == 1 == len(placer.new_placements())
    seen = Usage(device_memory=GB, compute=0.05, cores=0.1, unit_seconds=1.0)
    meter.seen = {placed[0][0].key: seen}
    placer.update(placer.inventory)
    placed += (later := placer.place([job(trial, width=8) for trial in range(20, 40)]).begun)
    assert len(later) == 19, "50 permille each"
    placer.update(placer.inventory)
    ((key, memory),) = meter.limits
    assert key == placed[0][0].key and GB <= memory < 2 * GB
    lowered, *others = placer.new_placements()
    assert (lowered.trial, lowered.share, lowered.began) == (0, (50, memory, 100), 5.0), "as measured, no guess is left"
    assert len(others) == 19
    grown = Usage(device_memory=39 * GB, compute=0.05, cores=0.1, unit_seconds=1.0)
    meter.seen = {placed[0][0].key: grown}
    placer.update(placer.inventory)
    assert placer.place([job(50, width=8)]).begun == [], "it holds what it was seen to use"


def test_a_device_that_others_fill_is_tried_with_what_is_left_and_no_trial_is_given_up_for_it() -> None:
    placer = devices_for(gpu(free=3))
    jobs = [job(0, width=1), job(1, width=2)]
    (placed,) = placer.place(jobs).begun
    share = placed[1].portion
    assert share is not None and share.memory == share.capacity == 3 * GB, "all that is left, for one"
    told = placer.judge(ended(placed, Outcome.OUT_OF_MEMORY, memory=3 * GB))
    placer.release(placed[0].key)
    assert told.outcome is Outcome.PREEMPTED and "Others used 37 GB of GPU-a" in told.message
    width = placed[0].params["width"]
    assert placer.place([job(placed[0].trial, 1, width=width)]).begun == [], "it failed with as much"
    placer.update(Inventory((gpu(free=39),)))
    ((_, slot),) = placer.place([job(placed[0].trial, 1, width=width)]).begun
    assert slot.portion is not None and 6 * GB <= slot.portion.memory <= 39 * GB


def test_a_retry_alone_on_what_others_leave_is_no_failure_and_one_on_nearly_all_is() -> None:
    placer = devices_for(gpu(free=20), alone=[0])
    (placed,) = placer.place([job(0, width=1)]).begun
    assert placed[1].portion is not None and placed[1].portion.alone
    assert placer.judge(ended(placed, Outcome.OUT_OF_MEMORY, memory=20 * GB)).outcome is Outcome.PREEMPTED
    placer.release(placed[0].key)
    placer.update(Inventory((gpu(free=37),)))
    (placed,) = placer.place([job(0, 1, width=1)]).begun
    told = placer.judge(ended(placed, Outcome.OUT_OF_MEMORY, memory=37 * GB))
    assert told.outcome is Outcome.OUT_OF_MEMORY, "else it would wait for ever for the last gigabytes"


def processors(cores: int = 2000) -> Device:
    capacity = Capacity(node="n1", architecture="CPU", memory=40 * GB, free=40 * GB, cores=cores)
    return Device("cpu:n1", 64, capacity)


def test_what_jobs_get_while_they_wait_for_each_other_is_not_what_they_need() -> None:
    """Else the next ones are placed by it: more of them, each of which gets less again."""
    placer = devices_for(processors(), packing={"oversubscribe": 2})

    def used(cores: float) -> Usage:
        return Usage(memory=GB, cores=cores, unit_seconds=1.0)

    placer.estimates.learn({"width": 8}, used(1.0), at=1.0, architecture="CPU")
    counts = []
    for turn in range(4):
        jobs = [job(10 * turn + number, width=8) for number in range(64)]
        placed = placer.place(jobs).begun
        counts.append(len(placed))
        for at, (one, _) in enumerate(placed):  # two cores, shared by all
            report = Report(
                trial=one.trial,
                attempt=0,
                outcome=Outcome.COMPLETED,
                started=1.0,
                ended=100.0 + turn + at / 99,
                usage=used(2 / len(placed)),
            )
            placer.judge(report)
        for one, _ in placed:
            placer.release(one.key)
    assert counts == [4, 4, 4, 4]
