"""Reservations: a job that many younger ones have overtaken gets the next device that can hold it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hpo_core.model.devices.inventory import Demand
from hpo_core.model.errors import HpoError
from hpo_core.placement.packing.policies import Assignment, PackingPolicy
from hpo_core.placement.packing.room import Room, WaitingJob


class WithReservations:
    """A packing policy under which no job that fits on some device waits for ever.

    The rule: a job has been overtaken once for each younger job that was placed while it waited. Overtaken
    ``patience`` times it gets a reservation, the oldest such job first, one on a device: on the device, of those that
    could hold it if nothing else ran, that lacks least of what it needs. From then on the policy sees that device
    without what the job needs, so what ends there is kept for the job, which begins as soon as all of it is free.
    Cores are kept on the device's node likewise.

    The job begins at the latest when all jobs that ran on the node at the time of the reservation have ended, unless
    the cluster shrinks meanwhile: a reservation on a device that can no longer hold the job ends.

    Args:
        policy: places the other jobs.
        empty: the whole cluster, nothing placed; :meth:`resize` tells of another.
        patience: how often a job may be overtaken; at least 1.

    Raises:
        ValueError: ``patience`` is below 1.
    """

    def __init__(self, policy: PackingPolicy, empty: Room, *, patience: int = 32) -> None:
        if patience < 1:
            raise ValueError(f"reservations: patience = {patience} must be 1 or more.")
        self.policy = policy
        self.patience = patience
        self._overtaken: dict[Hashable, int] = {}
        self._reserved: dict[Hashable, str] = {}
        """By key of the job: name of its device."""
        self.resize(empty)

    def resize(self, empty: Room) -> None:
        """The cluster is this one now; reservations on devices that left are made anew."""
        self._empty = empty
        self._places = {device.name: place for place, device in enumerate(empty.devices)}
        self._reserved = {key: name for key, name in self._reserved.items() if name in self._places}

    @property
    def reserved(self) -> dict[Hashable, str]:
        """By key of the job that has one: the device that is kept for it."""
        return dict(self._reserved)

    def choose(self, jobs: Sequence[WaitingJob], room: Room, *, last: int = 0) -> list[Assignment]:
        """As any policy.

        Args:
            last: so many jobs at the end of ``jobs`` get what the others leave.

        Raises:
            HpoError: the policy places nothing, though a job fits on an idle device: it might wait for ever.
        """
        room = room.copy()
        self._forget_all_but(jobs)
        chosen = self._place_or_reserve(jobs, room)
        begun = {job for job, _ in chosen}
        for some in (range(len(jobs) - last), range(len(jobs) - last, len(jobs))):
            rest = [job for job in some if job not in begun and jobs[job].key not in self._reserved]
            begin = self.policy.choose([jobs[job] for job in rest], room) if rest else []
            if not begin:
                self._check_idle([jobs[job] for job in rest], room)
            for number, place in begin:
                room.take(jobs[rest[number]].demand[room.devices[place].architecture], place)
                chosen.append((rest[number], place))
        self._count_overtaken(jobs, {job for job, _ in chosen})
        return chosen

    def _check_idle(self, jobs: Sequence[WaitingJob], room: Room) -> None:
        """Once a job that fitted to the byte waited for ever, because a policy rounded."""
        for place, device in enumerate(room.devices):
            at = self._places.get(device.name)
            if at is None or room.compute[place] < self._empty.compute[at]:
                continue
            for job in jobs:
                need = job.demand.get(device.architecture)
                if need is not None and room.fits(need, place):
                    raise HpoError(
                        f"The packing policy {type(self.policy).__name__} placed nothing, though job {job.key} fits on "
                        f"{device.name}, which is idle. This is an error of the program: please report it. A study "
                        "with another packing.policy, such as first_fit, is not affected."
                    )

    def _forget_all_but(self, jobs: Sequence[WaitingJob]) -> None:
        waiting = {job.key for job in jobs}
        self._overtaken = {key: count for key, count in self._overtaken.items() if key in waiting}
        self._reserved = {key: name for key, name in self._reserved.items() if key in waiting}

    def _place_or_reserve(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        """Begins starving jobs that fit now; for the others keeps, in ``room``, what their devices have for them."""
        chosen = []
        kept = set(self._reserved.values())
        places = {device.name: place for place, device in enumerate(room.devices)}
        for number, job in enumerate(jobs):
            if self._overtaken.get(job.key, 0) < self.patience:
                continue
            name = self._reserved.get(job.key)
            if name is not None and not self._could_hold_job(job, name):  # others use of it what the job needs
                del self._reserved[job.key]
                name = None
            place = places.get(name) if name is not None else self._nearest(job, room, kept)
            if place is None:
                continue  # it fits nowhere, or each device is kept for an older job
            device = room.devices[place]
            need = job.demand[device.architecture]
            if room.fits(need, place):
                chosen.append((number, place))
                self._reserved.pop(job.key, None)
            else:
                self._reserved[job.key] = device.name
                kept.add(device.name)
            room.take(need, place)  # below zero where it is kept: nobody else fits there
        return chosen

    def _nearest(self, job: WaitingJob, room: Room, kept: set[str]) -> int | None:
        best, least = None, float("inf")
        for place, device in enumerate(room.devices):
            need = job.demand.get(device.architecture)
            if need is None or device.name in kept or not self._could_hold(need, device.name):
                continue
            node = room.node_of[place]
            lacking = max(
                (need.compute - room.compute[place]) / max(need.compute, 1),
                (need.memory - room.memory[place]) / max(need.memory, 1),
                (need.cores - room.cores[node]) / max(need.cores, 1),
            )
            if lacking < least:
                best, least = place, lacking
        return best

    def _could_hold_job(self, job: WaitingJob, name: str) -> bool:
        place = self._places.get(name)
        need = None if place is None else job.demand.get(self._empty.devices[place].architecture)
        return need is not None and self._could_hold(need, name)

    def _could_hold(self, need: Demand, name: str) -> bool:
        place = self._places.get(name)
        return place is not None and self._empty.fits(need, place)

    def _count_overtaken(self, jobs: Sequence[WaitingJob], begun: set[int]) -> None:
        younger = 0
        for number in range(len(jobs) - 1, -1, -1):
            if number in begun:
                younger += 1
            elif younger:
                key = jobs[number].key
                self._overtaken[key] = self._overtaken.get(key, 0) + younger
