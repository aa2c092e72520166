"""The jobs that run on shared devices: what each holds, and what it gives back once it is measured."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpo_core.model.devices.inventory import Slot
from hpo_core.model.devices.share import Share
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job
from hpo_core.placement.job_needs import JobNeeds
from hpo_core.placement.neighbours import Neighbours
from hpo_core.placement.packing.need import Need
from hpo_core.placement.packing.room import Room
from hpo_core.placement.placer import JobKey
from hpo_core.placement.shared_room import SharedRoom


class RunningJob(msgspec.Struct, frozen=True):
    """What a running job holds."""

    job: Job
    slot: Slot
    need: Need
    is_guess: bool
    """Whether it was placed before its need was known."""

    @property
    def share(self) -> Share:
        """As it was given when it began."""
        assert self.slot.share is not None
        return self.slot.share


class RunningJobs:
    """Jobs and their shares, which shrink to what jobs are measured to need.

    Args:
        needs: of the study's jobs.
        room: the devices that are there.
    """

    def __init__(self, needs: JobNeeds, room: SharedRoom) -> None:
        self._needs = needs
        self._room = room
        self._held: dict[JobKey, RunningJob] = {}
        self.neighbours = Neighbours()
        self._lowered: list[tuple[JobKey, int]] = []
        """Running jobs that hold less than they began with, and the bytes that they may use from now on."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(self._held.values())

    def get(self, key: JobKey) -> RunningJob | None:
        """None where it does not run here."""
        return self._held.get(key)

    def beside(self, held: RunningJob) -> list[RunningJob]:
        """The other jobs on its device."""
        return [other for other in self if other.slot.name == held.slot.name and other is not held]

    def free_number(self, device: str) -> int:
        """The smallest number that no job on a device has."""
        used = {held.slot.number for held in self if held.slot.name == device}
        return next(number for number in range(len(used) + 1) if number not in used)

    def begin(self, job: Job, slot: Slot, need: Need, *, is_guess: bool, now: float | None) -> None:
        """A job begins with this share; one that is a guess is being measured."""
        held = RunningJob(job, slot, need, is_guess)
        self._held[job.key] = held
        self.neighbours.begin(job, slot.name, compute=need.compute, now=now)
        if is_guess:
            self._needs.estimates.profile_begins(self._needs.parameters(job), held.share.architecture)

    def end(self, key: JobKey) -> bool:
        """It ended; returns whether it held anything."""
        held = self._held.pop(key, None)
        self.neighbours.end(key)
        if held is not None and held.is_guess:
            self._needs.estimates.profile_ends(self._needs.parameters(held.job), held.share.architecture)
        return held is not None

    def left_of(self, empty: Room) -> Room:
        """The room that running jobs leave."""
        room = empty.keep_apart(self._needs.apart())
        places = {device.name: place for place, device in enumerate(empty.devices)}
        for held in self:
            if (place := places.get(held.slot.name)) is not None:
                need = held.need
                if room.apart:  # maybe since it began
                    need = msgspec.structs.replace(need, kind=self._needs.kind(held.job, held.share.architecture))
                room.take(need, place)
            else:  # it is to be given back, or is gone: of its computer the job still has the cores
                room.take_cores(held.need.cores, self._room.node_of(held.slot.name))
        return room

    def see(self, key: JobKey, usage: Usage) -> None:
        """A running attempt was measured: it holds what it needs from now on, instead of what was guessed."""
        held = self._held.get(key)
        if held is None:
            return
        share, estimates = held.share, self._needs.estimates
        measured = (usage.device_memory if share.gpu else usage.memory) or 0
        params = self._needs.parameters(held.job)
        if held.is_guess and not share.alone and estimates.observe(params, usage, architecture=share.architecture):
            estimates.profile_ends(params, share.architecture)
            device = self._room.device(held.slot.name)
            if device is not None:
                need = self._needs.need(held.job, device)
                self._held[key] = msgspec.structs.replace(held, need=need, is_guess=False)
                self.neighbours.claims(key, need.compute)
                if need.memory < share.memory:
                    self._lowered.append((key, need.memory))
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self._held[key] = msgspec.structs.replace(held, need=need)

    def lowered(self) -> list[tuple[JobKey, int]]:
        """Jobs whose memory is limited to so many bytes from now on; each is told once."""
        found, self._lowered = self._lowered, []
        return found
