"""From what the workers see to the devices that jobs can share."""

from __future__ import annotations

from typing import Any

import msgspec

from hpo_core.model.devices.inventory import Capacity, SeenDevice
from hpo_flows.dask.cluster_room import shared_inventory

GIB = 2**30


def seen_by(used: int = 0, own: dict[str, int] | None = None, **other: Any) -> SeenDevice:
    facts = {"node": "n", "architecture": "A100", "memory": 80 * GIB, "cores": 8000, "gpu": True}
    return msgspec.convert(facts | {"used": used, "own": own or {}} | other, SeenDevice)


def free(*workers: SeenDevice, folder: str = "/a") -> float:
    (device,) = shared_inventory({f"tcp://{n}": {"GPU-a": one} for n, one in enumerate(workers)}, folder, 4).devices
    assert isinstance(device.capacity, Capacity)
    return device.capacity.free / GIB


def test_memory_of_another_study_in_the_same_worker_is_not_free() -> None:
    both = seen_by(60 * GIB, {"/a": 20 * GIB, "/b": 40 * GIB})
    assert 33 < free(both) <= 40
    assert 53 < free(both, folder="/b") <= 60
    assert 13 < free(both, folder="/c") <= 20


def test_memory_of_one_study_in_several_workers_adds_up() -> None:
    assert 73 < free(seen_by(60 * GIB, {"/a": 20 * GIB}), seen_by(60 * GIB, {"/a": 40 * GIB})) <= 80


def test_what_several_workers_saw_a_device_grow_by_counts_once() -> None:
    grown = seen_by(60 * GIB, {"/a": 30 * GIB}, by_growth=True)
    assert 43 < free(grown, grown, grown) <= 50
