"""Devices without slots: another study holds them, or they are to be given back. Nothing begins there."""

from __future__ import annotations

import msgspec

from hpo_core.model.devices.inventory import Device, Inventory
from hpo_core.model.devices.measurement import Usage
from tests.placement.test_shared_devices import GB, PlayedMeter, devices_for, gpu, job, names


def closed(device: Device) -> Device:
    return msgspec.structs.replace(device, slots=0)


SMALL = {"memory": "10GB", "compute": 10, "cores": 2}


def test_nothing_begins_on_a_closed_device_and_what_runs_there_goes_on() -> None:
    a, b = gpu("GPU-a"), gpu("GPU-b")
    placer = devices_for(a, b, stated=SMALL)
    first = placer.place([job(trial) for trial in range(8)]).begun
    assert {name for _, name in names(first)} == {"GPU-a", "GPU-b"}
    assert placer.update(Inventory((a, closed(b)))) == [], "its device is known, and its jobs run"
    assert placer.capacity().slots == 8 + 1 and placer.capacity().devices[0].name == "1 shared device"
    for number in range(8):
        placer.release((number, 0))
    assert {name for _, name in names(placer.place([job(trial) for trial in range(10, 30)]).begun)} == {"GPU-a"}
    assert placer.update(Inventory((closed(a), closed(b)))) == []
    assert placer.place([job(50)]).begun == [] and placer.capacity().slots == 0
    assert placer.update(Inventory((closed(a),))) == [], "nothing runs on the one that vanished"
    assert {key[0] for key in placer.update(Inventory((b,)))} == set(range(10, 14))


def test_a_job_that_only_a_closed_device_can_hold_waits_for_it() -> None:
    small, large = gpu("GPU-a", memory=20), gpu("GPU-b", memory=80)
    placer = devices_for(small, closed(large), stated={"memory": "60GB", "compute": 10, "cores": 1})
    assert placer.place([job(0)]) == ([], [])
    placer.update(Inventory((small, large)))
    assert names(placer.place([job(0)]).begun) == [(0, "GPU-b")]
    placer.update(Inventory((small,)))
    assert len(placer.place([job(1)]).refused) == 1, "no device of the pool could hold it"


def test_a_job_on_a_closed_device_keeps_its_cores_and_is_measured() -> None:
    a, b = gpu("GPU-a"), gpu("GPU-b")
    meter = PlayedMeter()
    placer = devices_for(a, b, stated={"compute": 10, "cores": 6}, meter=meter)
    (begun,) = placer.place([job(0, width=8)]).begun
    held = begun[1].name
    placer.update(Inventory(tuple(closed(one) if one.name == held else one for one in (a, b))))
    assert len(placer.place([job(trial, width=trial) for trial in range(1, 9)]).begun) == 1, "10 of 16 cores are left"
    meter.seen = {begun[0].key: Usage(device_memory=3 * GB, compute=0.1, cores=6.0, unit_seconds=1.0)}
    placer.update(placer.inventory)
    placer.update(placer.inventory)
    assert len(meter.limits) == 1, "it is told once"


def test_devices_that_jobs_would_fill() -> None:
    placer = devices_for(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c"), stated=SMALL, packing={"policy": "first_fit"})
    assert placer.devices_for(2) == 2, "nothing is known yet: each takes a device"
    placer.place([job(trial) for trial in range(4)])
    assert placer.devices_for(4) == 1
    assert [placer.devices_for(jobs) for jobs in (5, 8, 9, 12)] == [2, 2, 3, 3]
    placer.update(Inventory((closed(gpu("GPU-a")),)))
    for trial in range(4):
        placer.release((trial, 0))
    placer.place([job(9)])
    assert placer.devices_for(0) == 0
