"""The slots of an inventory: which are free, which are taken."""

from __future__ import annotations

import heapq

from hpo_core.model.inventory import EMPTY, Inventory, Slot

JobKey = tuple[int, int]
"""(trial, attempt)."""


class Slots:
    """Slots of the devices that are there now, in the inventory's order.

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
    """

    def __init__(self) -> None:
        self.inventory = EMPTY
        self._held: dict[JobKey, Slot] = {}
        self._free: list[Slot] = []
        """A heap; slots of devices that left are dropped when they come up."""
        self._present: dict[str, int] = {}
        """By device: its slots."""
        self._known: set[tuple[str, int]] = set()
        """(device, number) of all slots that are free or held."""
        self._order: dict[str, int] = {}

    def __len__(self) -> int:
        """Slots that jobs hold."""
        return len(self._held)

    def update(self, inventory: Inventory) -> None:
        """The devices that are there now. Names tell devices apart."""
        if inventory == self.inventory:
            return
        self.inventory = inventory
        self._present = {device.name: device.slots for device in inventory.devices}
        for device in inventory.devices:
            place = self._order.setdefault(device.name, len(self._order))
            for number in range(device.slots):
                if (device.name, number) not in self._known:
                    self._known.add((device.name, number))
                    heapq.heappush(self._free, Slot(place, number, device.name))

    def free(self, most: int) -> list[Slot]:
        """At most ``most`` free slots, the first ones in order. They stay free until taken."""
        heap = self._free
        if most == 1 and heap and self._is_there(heap[0]):
            return heap[:1]
        found: list[Slot] = []
        while heap and len(found) < most:
            slot = heapq.heappop(heap)
            if self._is_there(slot):
                found.append(slot)
            else:
                self._known.discard((slot.name, slot.number))
        for slot in found:
            heapq.heappush(heap, slot)
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
        if slot is None:
            return
        if slot.number < self._present.get(slot.name, 0):
            heapq.heappush(self._free, slot)
        else:
            self._known.discard((slot.name, slot.number))

    def of(self, job: JobKey) -> Slot | None:
        """The slot a job holds."""
        return self._held.get(job)

    def _is_there(self, slot: Slot) -> bool:
        return slot.number < self._present.get(slot.name, 0)
