"""Placer: which waiting job begins now, on which slot. The seam between the loop and the room that jobs fill."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from hpo_core.model.devices.inventory import EMPTY, Inventory, Slot
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import Job, JobKey, Report

Placement = tuple[Job, Slot]
"""A job on its slot."""


class Placed(NamedTuple):
    """Jobs that begin, and reports of those that cannot; the others wait on."""

    begun: list[Placement]
    """Jobs that hold their slots from now on."""
    refused: Sequence[Report] = ()
    """Reports of jobs that no device could hold, even if nothing else ran."""


class UsageMeter(Protocol):
    """Measures attempts while they run, and limits them: the workers of a cluster whose devices jobs share."""

    def usages(self) -> Mapping[JobKey, Usage]:
        """Usage of running attempts so far."""
        ...

    def limit(self, attempt: JobKey, memory: int) -> None:
        """Let a running attempt use at most so many bytes of its device from now on; returns at once."""
        ...


def gang_slots(free: Sequence[Slot], count: int) -> Slot:
    """The slots of a gang, rank 0 first.

    A device with just enough free slots is taken before one with more, so that large gaps stay for large gangs. Where
    none has enough, those with most free slots are taken first.

    Args:
        free: free slots in order; at least ``count``.

    >>> free = [Slot(0, 0, "a"), Slot(0, 1, "a"), Slot(1, 2, "b"), Slot(2, 0, "c"), Slot(2, 1, "c"), Slot(2, 2, "c")]
    >>> [slot.name for slot in gang_slots(free, 2).ranks], [slot.name for slot in gang_slots(free, 4).ranks]
    (['a', 'a'], ['c', 'c', 'c', 'a'])
    """
    by_device: dict[int, list[Slot]] = {}
    for slot in free:
        by_device.setdefault(slot.device, []).append(slot)
    devices = list(by_device.values())
    enough = [slots for slots in devices if len(slots) >= count]
    if enough:
        chosen = min(enough, key=len)[:count]
    else:
        devices.sort(key=len, reverse=True)
        chosen = [slot for slots in devices for slot in slots][:count]
    return chosen[0]._replace(others=tuple(chosen[1:]))


class Reservation:
    """A promise to the oldest waiting job.

    Args:
        slots: that it needs.
        free: slots that are free now.
        ends: (expected end, slots) of each running job; infinite where it is not known, and in the past where a job
            takes longer than expected.
        now: the present.

    >>> promised = Reservation(4, free=1, ends=[(10.0, 2), (30.0, 4)], now=0.0)
    >>> promised.begins, promised.spare
    (30.0, 3)
    >>> promised.admits(1, end=30.0), promised.admits(1, end=31.0), promised.admits(4, end=31.0)
    (True, True, False)
    """

    def __init__(self, slots: int, *, free: int, ends: Iterable[tuple[float, int]], now: float) -> None:
        self.begins = math.inf
        """When it begins at the latest; infinite: nobody knows."""
        self.spare = 0
        """Slots that will be free beside it then."""
        for end, count in sorted((max(end, now), count) for end, count in ends):
            if free >= slots and end > self.begins:
                break
            free += count
            if free >= slots:
                self.begins = end
        if self.begins < math.inf:
            self.spare = free - slots

    def admits(self, slots: int, *, end: float) -> bool:
        return self.begins < math.inf and (end <= self.begins or slots <= self.spare)


class Placer:
    """Gives waiting jobs slots, and knows which are free. It never waits or draws; it is told the time.

    This one gives each job a slot, the oldest job the first free slot in the inventory's order. A job that
    begins with a state takes the slot where the trial that saved it had its last job, if it is free: that
    computer may have the file in its cache. No job waits for that.
    :class:`~hpo_core.packing.shared_devices.SharedDevices` gives jobs parts of devices.

    A gang (a job of several slots) begins when all of them are free. The oldest job that finds too few reserves them
    (:class:`Reservation`); one that needs more than there are makes nobody wait.

    A device that leaves takes its slots along; a job that holds one of them keeps it until it is released.

    Args:
        seconds: expected duration of a job, or None where nobody knows; without it no younger job begins
            before one that waits for its slots.

    >>> placer = Placer()
    >>> _ = placer.update(Inventory.of(2, "gpu-0"))
    >>> from hpo_core.model.trial import Rung
    >>> jobs = [Job(trial, 0, Rung(0, 0), 1, {}) for trial in (4, 5, 6)]
    >>> {job.trial: slot.number for job, slot in placer.place(jobs).begun}
    {4: 0, 5: 1}
    >>> placer.release((4, 0))
    >>> {job.trial: slot.number for job, slot in placer.place(jobs[2:]).begun}
    {6: 0}
    """

    def __init__(self, seconds: Callable[[Job], float | None] | None = None) -> None:
        self.inventory = EMPTY
        self._seconds = seconds
        self._held: dict[JobKey, tuple[Slot, Job, float]] = {}
        """By job: the slot that it holds, the job, and when it began."""
        self._free: list[Slot] = []
        """A heap of slots that are there."""
        self._places: dict[str, int] = {}
        """By device that is there: its place in the inventory."""
        self._sizes: dict[str, int] = {}
        """By device that is there: its slots."""
        self._last: dict[Slot, int] = {}
        """By slot: the trial that held it last."""
        self._homes: dict[int, Slot] = {}
        """By trial: the slot that it held last, as long as no other trial did."""

    def __len__(self) -> int:
        """Slots that jobs hold."""
        return sum(len(slot.ranks) for slot, _, _ in self._held.values())

    def update(self, inventory: Inventory) -> Sequence[JobKey]:
        """Take these devices as those that are there now; names tell devices apart.

        Returns:
            Jobs to be cancelled: they run on a device that is gone, and the executor does not report them.
        """
        if inventory != self.inventory:
            self.inventory = inventory
            self._places = {device.name: place for place, device in enumerate(inventory.devices)}
            self._sizes = {device.name: device.slots for device in inventory.devices}
            held = {(rank.name, rank.number) for slot, _, _ in self._held.values() for rank in slot.ranks}
            self._free = [
                Slot(place, number, device.name)
                for place, device in enumerate(inventory.devices)
                for number in range(device.slots)
                if (device.name, number) not in held
            ]  # in order, so it is a heap
        return ()

    def capacity(self) -> Inventory:
        """Devices for which the study may grant jobs now, as the journal records it."""
        return self.inventory

    def place(self, jobs: Sequence[Job], *, now: float | None = None) -> Placed:
        """Give slots to some or all of ``jobs``, the oldest of which comes first.

        Args:
            now: seconds of the study's clock; None: not known.
        """
        now = 0.0 if now is None else now
        for job in jobs:
            if job.demand.slots > 1:
                return Placed(self._place_gangs(jobs, now))
        jobs = jobs[: len(self._free)]
        wanted: dict[Slot, JobKey] = {}
        """Homes of these jobs; of two that want the same one, the older gets it."""
        for job in jobs:
            home = self._homes.get(job.trial if job.parent is None else job.parent)
            if job.checkpoint is not None and home is not None:
                wanted.setdefault(home, job.key)
        homes = {wanted[slot]: slot for slot in self._free if slot in wanted}
        if homes:
            self._free = [slot for slot in self._free if slot not in wanted]
            heapq.heapify(self._free)
        placements = [(job, homes.get(job.key) or heapq.heappop(self._free)) for job in jobs]
        for job, slot in placements:
            self._held[job.trial, job.attempt] = slot, job, now
        return Placed(placements)

    def _place_gangs(self, jobs: Sequence[Job], now: float) -> list[Placement]:
        placements: list[Placement] = []
        present = self.inventory.slots
        reserved: Reservation | None = None
        for job in jobs:
            slots, end = job.demand.slots, self._end(job, now)
            if slots > present:
                continue  # it waits for devices to join, whatever the others do
            if slots > len(self._free):
                if reserved is None:
                    ends = [
                        (
                            self._end(held, began),
                            sum(rank.number < self._sizes.get(rank.name, 0) for rank in slot.ranks),
                        )
                        for slot, held, began in self._held.values()
                    ]
                    reserved = Reservation(slots, free=len(self._free), ends=ends, now=now)
            elif reserved is None or reserved.admits(slots, end=end):
                if slots == 1:
                    slot = heapq.heappop(self._free)
                else:
                    slot = gang_slots(sorted(self._free), slots)
                    self._free = sorted({*self._free}.difference(slot.ranks))
                self._held[job.key] = slot, job, now
                placements.append((job, slot))
                if reserved is not None and end > reserved.begins:
                    reserved.spare -= slots
        return placements

    def _end(self, job: Job, began: float) -> float:
        seconds = None if self._seconds is None else self._seconds(job)
        return math.inf if seconds is None else began + seconds

    def judge(self, report: Report) -> Report:
        """Return the report as the study is told it, and learn from it; called before :meth:`release`."""
        return report

    def release(self, job: JobKey) -> None:
        """Free what a job held that ended; nothing happens where it holds nothing."""
        if (held := self._held.pop(job, None)) is not None:
            for slot in held[0].ranks:
                if slot.number < self._sizes.get(slot.name, 0):
                    free = Slot(self._places[slot.name], slot.number, slot.name)
                    heapq.heappush(self._free, free)
                    before = self._last.get(free)
                    if before is not None and self._homes.get(before) == free:
                        del self._homes[before]
                    self._last[free] = job[0]
                    self._homes[job[0]] = free
