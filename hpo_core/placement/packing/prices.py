"""What it is worth that a waiting job begins now: priced by the resource that runs out first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpo_core.placement.packing.need import Need, WaitingJob
from hpo_core.placement.packing.room import Room

SHARPNESS = 8
"""Exponent of a resource's price: one that the jobs need 10 % less of than of the scarcest costs less than half."""
HASTE = 5.0
"""How much it counts that a job takes a large part of the time that is left."""
_MOST_HASTE = 20.0
_LEAST_SECONDS = 1e-3


class Prices:
    """Sizes and values of waiting jobs. Neither memory nor cores count as long as compute runs out first.

    The relaxation: jobs could be cut anywhere. The work of all waiting jobs in each resource (compute, memory, cores,
    each times seconds) over what the cluster has of it is the time that it would take; the longest of the three is the
    time that is left, and the resource is the scarce one. A resource's price is its time over the longest, to the power
    of :data:`SHARPNESS`.

    A job's value is size * size * seconds * exp(:data:`HASTE` * (seconds / time left) ** 2). A large job only finds
    room while much of a device is free, and small ones fill any gap later. A job that takes much of the time that is
    left should begin first, whatever its size.

    Args:
        jobs: that wait.
        room: what is left on the devices.
    """

    def __init__(self, jobs: Sequence[WaitingJob], room: Room) -> None:
        devices: Counter[str] = Counter()
        there: dict[str, Any] = {}
        on_node = Counter(room.node_of)
        for place, device in enumerate(room.devices):
            cores = room.all_cores[room.node_of[place]] / on_node[room.node_of[place]]
            amounts = np.array([device.oversubscribe, device.memory, cores], dtype=float)
            there[device.architecture] = there.get(device.architecture, 0.0) + amounts
            devices[device.architecture] += 1
        self.needs: dict[str, list[Need | None]] = {}
        """By architecture and job; None: it cannot run there. Without architectures where none can."""
        self.smallest: dict[str, Need] = {}
        """By architecture: the least of each that any of the jobs needs."""
        tables: dict[str, Any] = {}
        for name in there:
            needs = [job.demand.get(name) for job in jobs]
            rows = np.array(
                [
                    (0, 0, 0, 0.0) if need is None else (need.compute, need.memory, need.cores, need.seconds)
                    for need in needs
                ],
                dtype=float,
            )
            known = rows if None not in needs else rows[[need is not None for need in needs]]
            if len(known):
                compute, memory, cores, seconds = known.min(axis=0).tolist()
                least = Need(compute=int(compute), memory=int(memory), cores=int(cores), seconds=seconds)
                self.needs[name], self.smallest[name], tables[name] = needs, least, rows
                rows[:, 3] = np.maximum(rows[:, 3], _LEAST_SECONDS)
        times = {
            name: (rows[:, :3] * rows[:, 3:]).sum(axis=0) / np.maximum(there[name], 1.0)
            for name, rows in tables.items()
        }
        total = np.maximum(sum(times.values(), np.zeros(3)), 1e-9)
        prices = (total / total.max()) ** SHARPNESS
        self.whole = float(prices.sum())
        """Size of all of a device."""
        left = 1 / sum((1 / max(time.max(), 1e-9) for time in times.values()), 0.0) if times else 0.0
        taken = 1 - sum(room.compute) / max(1, sum(device.oversubscribe for device in room.devices))
        self.sizes: dict[str, list[float]] = {}
        """By architecture and job: the parts of a mean device that it takes, each times its price."""
        self.values: dict[str, list[float]] = {}
        """By architecture and job: what it is worth that the job begins now rather than later."""
        most = np.zeros(len(jobs))
        for name, rows in tables.items():
            seconds = rows[:, 3]
            rates = prices * devices[name] / np.maximum(there[name], 1.0)
            sizes = _rounded(rows[:, 0] * rates[0] + rows[:, 1] * rates[1] + rows[:, 2] * rates[2])
            haste = (
                HASTE * (seconds / (left + max(taken, 0.0) * seconds / 2)) ** 2
            )  # half of what runs is still to come
            values = _rounded(sizes * sizes * seconds * np.exp(np.minimum(haste, _MOST_HASTE)))
            self.sizes[name], self.values[name] = sizes.tolist(), values.tolist()
            most = np.maximum(most, values)
        self.order: list[int] = np.argsort(-most, kind="stable").tolist()
        """Places of the jobs, the one that is worth most on any device first; the older one among equals."""


def _rounded(amounts: Any) -> Any:
    """To nine digits: processors differ in the last ones, and equal jobs must be equal on all of them."""
    mantissa, exponent = np.frexp(amounts)
    return np.ldexp(np.round(mantissa, 9), exponent)
