"""The jobs that run on shared devices: what each holds, and what it gives back once it is measured."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpo_core.model.devices.inventory import Portion, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.events import JobPlaced
from hpo_core.model.trial import Job, JobKey
from hpo_core.placement.job_needs import JobNeeds
from hpo_core.placement.neighbours import Neighbours
from hpo_core.placement.packing.need import Need
from hpo_core.placement.packing.room import Room
from hpo_core.placement.shared_room import SharedRoom


class RunningJob(msgspec.Struct, frozen=True):
    """What a running job holds."""

    job: Job
    slot: Slot
    need: Need
    is_guess: bool
    """Whether it was placed before its need was known."""
    began: float
    """Seconds of the study's clock; 0: not known."""
    usage: Usage | None = None
    """What it was seen to use so far."""

    @property
    def portion(self) -> Portion:
        """As it was given when it began."""
        assert self.slot.portion is not None
        return self.slot.portion


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
        self._new: dict[JobKey, JobPlaced] = {}
        """Placements that nobody asked for yet."""

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
        held = RunningJob(job, slot, need, is_guess, 0.0 if now is None else now)
        self._held[job.key] = held
        self._note(held, held.portion.memory)
        self.neighbours.begin(job, slot.name, compute=need.compute, now=now)
        if is_guess:
            self._needs.estimates.profile_begins(self._needs.parameters(job), held.portion.architecture)

    def end(self, key: JobKey) -> bool:
        """It ended; returns whether it held anything."""
        held = self._held.pop(key, None)
        self._new.pop(key, None)
        self.neighbours.end(key)
        if held is not None and held.is_guess:
            self._needs.estimates.profile_ends(self._needs.parameters(held.job), held.portion.architecture)
        return held is not None

    def left_of(self, empty: Room) -> Room:
        """The room that running jobs leave."""
        room = empty.keep_apart(self._needs.apart())
        places = {device.name: place for place, device in enumerate(empty.devices)}
        for held in self:
            if (place := places.get(held.slot.name)) is not None:
                need = held.need
                if room.apart:  # maybe since it began
                    need = msgspec.structs.replace(need, kind=self._needs.kind(held.job, held.portion.architecture))
                room.take(need, place)
            else:  # it is to be given back, or is gone: of its computer the job still has the cores
                room.take_cores(held.need.cores, self._room.node_of(held.slot.name))
        return room

    def see(self, key: JobKey, usage: Usage) -> int | None:
        """A running attempt was measured: it holds what it needs from now on, instead of what was guessed.

        Returns:
            The bytes that it may use from now on, where these are fewer than before.
        """
        held = self._held.get(key)
        if held is None:
            return None
        held = self._held[key] = msgspec.structs.replace(held, usage=usage)
        share, estimates = held.portion, self._needs.estimates
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
                    self._note(held, need.memory)
                    return need.memory
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self._held[key] = msgspec.structs.replace(held, need=need)
        return None

    def _note(self, held: RunningJob, memory: int) -> None:
        share = held.portion
        amounts = share.compute, memory, share.cores
        self._new[held.job.key] = JobPlaced(
            *held.job.key, share.device, share.architecture, share=amounts, began=held.began
        )

    def new_placements(self) -> list[JobPlaced]:
        """Placements since this was asked last, of jobs that still run: others are told by their reports."""
        found, self._new = list(self._new.values()), {}
        return found
