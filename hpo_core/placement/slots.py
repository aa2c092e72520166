"""The slots of an inventory: which are free, which are taken."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from hpo_core.model.devices.inventory import EMPTY, Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Report
from hpo_core.placement.placer import JobKey, Placement


class Slots:
    """One job on each slot: the oldest job gets the first free slot in the inventory's order.

    A device that leaves takes its slots along; a job that holds one of them keeps it until it is released.

    >>> slots = Slots()
    >>> slots.update(Inventory.of(2, "gpu-0"))
    >>> [slot.number for slot in slots.free(3)]
    [0, 1]
    >>> slots.take((7, 0), slots.free(1)[0])
    >>> [slot.number for slot in slots.free(3)]
    [1]
    >>> slots.release((7, 0))
    >>> len(slots.free(3))
    2
    >>> from hpo_core.model.stage import Rung
    >>> jobs = [Job(trial, 0, Rung(0, 0), 1, {}) for trial in (4, 5, 6)]
    >>> [(job.trial, slot.number) for job, slot in slots.place(jobs)]
    [(4, 0), (5, 1)]
    """

    def __init__(self) -> None:
        self.inventory = EMPTY
        self._held: dict[JobKey, Slot] = {}
        self._free: list[Slot] = []
        """A heap of slots that are there."""
        self._places: dict[str, int] = {}
        """By device that is there: its place in the inventory."""
        self._sizes: dict[str, int] = {}
        """By device that is there: its slots."""

    def __len__(self) -> int:
        """Slots that jobs hold."""
        return len(self._held)

    def update(self, inventory: Inventory, usages: Mapping[JobKey, Usage] = {}) -> None:
        """The devices that are there now. Names tell devices apart."""
        if inventory == self.inventory:
            return
        self.inventory = inventory
        self._places = {device.name: place for place, device in enumerate(inventory.devices)}
        self._sizes = {device.name: device.slots for device in inventory.devices}
        held = {(slot.name, slot.number) for slot in self._held.values()}
        self._free = [
            Slot(place, number, device.name)
            for place, device in enumerate(inventory.devices)
            for number in range(device.slots)
            if (device.name, number) not in held
        ]  # in order, so it is a heap

    def capacity(self) -> Inventory:
        return self.inventory

    def lowered(self) -> list[tuple[JobKey, int]]:
        return []

    def homeless(self) -> list[JobKey]:
        return []  # the executor reports them

    def place(self, jobs: Sequence[Job], *, now: float | None = None) -> list[Placement]:
        placements = list(zip(jobs, self.free(len(jobs)), strict=False))
        for job, slot in placements:
            self.take((job.trial, job.attempt), slot)
        return placements

    def judge(self, report: Report) -> Report:
        return report

    def is_doubtful(self, report: Report) -> bool:
        return False

    def refused(self, jobs: Sequence[Job]) -> list[Report]:
        return []

    def free(self, most: int) -> list[Slot]:
        """At most ``most`` free slots, the first ones in order. They stay free until taken."""
        if most == 1:
            return self._free[:1]
        found = [heapq.heappop(self._free) for _ in range(min(most, len(self._free)))]
        for slot in found:
            heapq.heappush(self._free, slot)
        return found

    def take(self, job: JobKey, slot: Slot) -> None:
        """``job`` holds ``slot``, which :meth:`free` gave first."""
        if self._free and self._free[0] == slot:
            heapq.heappop(self._free)
        else:
            self._free.remove(slot)
            heapq.heapify(self._free)
        self._held[job] = slot

    def release(self, job: JobKey) -> None:
        """The job ended; nothing happens where it holds no slot."""
        slot = self._held.pop(job, None)
        if slot is not None and slot.number < self._sizes.get(slot.name, 0):
            heapq.heappush(self._free, Slot(self._places[slot.name], slot.number, slot.name))
