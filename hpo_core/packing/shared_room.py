"""The devices that jobs of one study share: what is there, what the jobs need and hold, what those that end teach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import EMPTY, Capacity, Demand, Inventory, Portion, Slot, memory_words
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import JobPlaced
from hpo_core.model.trial import Job, JobKey, Outcome, Report
from hpo_core.packing.estimates import Estimate, Estimates
from hpo_core.packing.room import WHOLE, Room, SharedDevice
from hpo_core.spec.packing import PackingSpec


class HeldJob(msgspec.Struct, frozen=True):
    """A running job with its slot and need."""

    job: Job
    slot: Slot
    need: Demand
    is_guess: bool
    """True if it was placed before its need was known."""
    began: float
    """Seconds of the study's clock; 0: not known."""
    ended: float = math.inf
    """As its report says."""

    @property
    def portion(self) -> Portion:
        assert self.slot.portion is not None
        return self.slot.portion


def all_of(device: SharedDevice, need: Demand) -> Demand:
    return msgspec.structs.replace(need, slots=device.most, compute=device.oversubscribe)


class SharedRoom:
    """The devices that are there now, within a study's limits; its jobs, and what each needs and holds of a device.

    Args:
        packing: settings of the study.
        estimates: what each job will need.
        constants: of the study; expressions of stated demands may read them.
        alone: trials whose last attempt ran out of memory, as the journal says.
    """

    def __init__(
        self, packing: PackingSpec, estimates: Estimates, *, constants: Mapping[str, Any], alone: Iterable[int]
    ) -> None:
        self.estimates = estimates
        self.alone = set(alone)
        """Trials whose next attempt has its device to itself."""
        self._packing = packing
        self._constants = dict(constants)
        self._learned: dict[str, float] = {}
        """Oversubscription by architecture, as attempts showed it to be best; what is stated or was tuned wins."""
        self.inventory = EMPTY
        self.capacities: dict[str, Capacity] = {}
        """By device that is there."""
        self.empty = Room(())
        """The room that jobs of this study may use, where none runs."""
        self.everything = Room(())
        """All devices, if nobody else used them."""
        self.whole: dict[str, SharedDevice] = {}
        """The devices of :attr:`everything` by name."""
        self.largest: dict[str, SharedDevice] = {}
        """By architecture: the device with the most memory, taken whole."""
        self._smallest: dict[str, SharedDevice] = {}
        """By architecture: the device with the least memory: a job that is measured on a whole one may have any."""
        self.held: dict[JobKey, HeldJob] = {}
        """Jobs that run."""
        self._ended: list[HeldJob] = []
        """Jobs that ended while one ran that is still there."""
        self._new: dict[JobKey, JobPlaced] = {}
        """Placements that nobody asked for yet."""

    # Devices.

    def ratio(self, architecture: str) -> float:
        """The multiple of a device's compute that jobs may claim."""
        first = self._packing.ratio(architecture)
        return self._learned.get(architecture, first) if self._packing.finds_ratio(architecture) else first

    def update(self, inventory: Inventory) -> bool:
        """These devices are there now; returns whether anything changed."""
        learned = self.estimates.ratios.ratios()
        if inventory == self.inventory and learned == self._learned:
            return False
        self.inventory, self._learned = inventory, learned
        self.capacities = {
            device.name: device.capacity for device in inventory.devices if isinstance(device.capacity, Capacity)
        }
        self.empty = self._room_of(self.capacities, {name: one.free for name, one in self.capacities.items()})
        amounts = {name: capacity.memory for name, capacity in self.capacities.items()}
        self.everything = self._room_of(self.capacities, amounts)
        self.whole = {device.name: device for device in self.everything.devices}
        self.largest = {}
        for device in sorted(self.everything.devices, key=lambda device: -device.memory):
            self.largest.setdefault(device.architecture, device)
            self._smallest[device.architecture] = device
        return True

    def _room_of(self, capacities: Mapping[str, Capacity], memory: Mapping[str, int]) -> Room:
        limit = self._packing.memory_limit
        devices = [
            SharedDevice(
                name=name,
                node=capacity.node,
                architecture=capacity.architecture,
                memory=min(memory[name], limit(capacity.architecture) or memory[name]),
                oversubscribe=round(WHOLE * self.ratio(capacity.architecture)),
                most=self._packing.most,
            )
            for name, capacity in capacities.items()
        ]
        cores = {}
        for capacity in capacities.values():
            ratio = 1.0 if capacity.gpu else self.ratio(capacity.architecture)  # of processors, cores are compute
            cores[capacity.node] = round(ratio * capacity.cores)
        return Room(devices, cores)

    def left(self) -> Room:
        room = self.empty.copy()
        places = {device.name: place for place, device in enumerate(self.empty.devices)}
        for held in self.held.values():
            if (place := places.get(held.slot.name)) is not None:
                room.take(held.need, place)
        return room

    # Needs.

    def parameters(self, job: Job) -> dict[str, Any]:
        """Parameters of a job and the study's constants."""
        return {**self._constants, **job.params}

    def demand(self, job: Job) -> dict[str, Demand]:
        """By architecture, whatever others use of the devices now."""
        return {name: self.need(job, self._typical(job, device)) for name, device in self.largest.items()}

    def _typical(self, job: Job, largest: SharedDevice) -> SharedDevice:
        if self.estimate(job, largest).source == "profile":
            return self._smallest[largest.architecture]
        return largest

    def need(self, job: Job, device: SharedDevice) -> Demand:
        estimate = self.estimate(job, device)
        need = estimate.need
        # what was measured did fit; a limit is not met to the byte
        memory = need.memory if estimate.source == "stated" else min(need.memory, device.memory)
        need = msgspec.structs.replace(need, memory=memory)
        return all_of(device, need) if job.trial in self.alone else need

    def estimate(self, job: Job, device: SharedDevice) -> Estimate:
        """The expected need there, as far as that is known."""
        begun = job.checkpoint.resource if job.checkpoint is not None else 0
        capacity = self.capacities[device.name]
        return self.estimates.of(
            self.parameters(job),
            units=job.target - begun,
            device=device,
            node_cores=capacity.cores,
            devices_on_node=sum(other.node == capacity.node for other in self.capacities.values()),
        )

    def unknown_once(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Jobs, those last of whose kind one is being measured: what it shows would tell their needs."""
        first: list[Job] = []
        later: list[Job] = []
        begun: set[str] = set()
        for job in jobs:
            params = self.parameters(job)
            if all(self.estimates.is_known(params, name) for name in self.largest):
                first.append(job)
                continue
            key = self.estimates.key(params)
            measured_now = key in begun or any(self.estimates.is_profiling(params, name) for name in self.largest)
            (later if measured_now else first).append(job)
            begun.add(key)
        return first, later

    # Jobs that run.

    def beside(self, held: HeldJob) -> list[HeldJob]:
        return [other for other in self.held.values() if other.slot.name == held.slot.name and other is not held]

    def begin(self, job: Job, need: Demand, place: int, *, now: float | None) -> Slot:
        """Give a job so much of the device at ``place``; a job whose need is a guess is measured there."""
        device = self.empty.devices[place]
        share = Portion(
            device=device.name,
            architecture=device.architecture,
            compute=need.compute,
            memory=need.memory,
            cores=need.cores,
            capacity=device.memory,
            gpu=self.capacities[device.name].gpu,
            alone=job.trial in self.alone,
        )
        used = {held.slot.number for held in self.held.values() if held.slot.name == device.name}
        slot = Slot(place, min({*range(len(used) + 1)} - used), device.name, share)
        is_guess = self.estimate(job, self.whole[device.name]).source == "profile"
        self.held[job.key] = held = HeldJob(job, slot, need, is_guess, now or 0.0)
        self._note(held)
        if is_guess:
            self.estimates.profile_begins(self.parameters(job), share.architecture)
        return slot

    def end(self, key: JobKey) -> bool:
        """A job ended; returns whether it held anything."""
        held = self.held.pop(key, None)
        self._new.pop(key, None)
        if held is None:
            return False
        if held.is_guess:
            self.estimates.profile_ends(self.parameters(held.job), held.portion.architecture)
        if held.ended < math.inf:
            self._ended.append(held)
        since: dict[str, float] = {}
        for one in self.held.values():
            since[one.slot.name] = min(since.get(one.slot.name, math.inf), one.began)
        self._ended = [one for one in self._ended if one.ended > since.get(one.slot.name, math.inf)]
        return True

    def with_load(self, report: Report, usage: Usage) -> Usage:
        """The usage of an attempt that ended, with what was on its device while it trained.

        Nothing is said of an attempt whose times are not known, nor of one that had its device to itself on purpose.
        """
        key = report.trial, report.attempt
        held = self.held[key]
        if not report.ended > report.started > 0:
            return usage
        self.held[key] = msgspec.structs.replace(held, began=report.started, ended=report.ended)
        begin, end = report.started + usage.startup_seconds, report.ended
        if not end > begin or held.portion.alone:
            return usage
        load, jobs = float(held.need.compute), 1.0
        for one in (*self._ended, *self.held.values()):
            if one.slot.name == held.slot.name and one.job.key != key:
                part = max(0.0, min(one.ended, end) - max(one.began, begin)) / (end - begin)
                load, jobs = load + part * one.need.compute, jobs + part
        return msgspec.structs.replace(usage, load=round(load), jobs=round(jobs, 3))

    def see(self, key: JobKey, usage: Usage) -> int | None:
        """A running attempt was measured: it holds what it needs from now on, instead of what was guessed.

        Returns:
            The bytes that it may use from now on, where these are fewer than before.
        """
        held = self.held.get(key)
        if held is None:
            return None
        share = held.portion
        measured = (usage.device_memory if share.gpu else usage.memory) or 0
        params = self.parameters(held.job)
        if held.is_guess and not share.alone and self.estimates.observe(params, usage, architecture=share.architecture):
            self.estimates.profile_ends(params, share.architecture)
            if (device := self.whole.get(held.slot.name)) is not None:
                need = self.need(held.job, device)
                self.held[key] = held = msgspec.structs.replace(held, need=need, is_guess=False)
                self._note(held)
                if need.memory < share.memory:
                    return need.memory
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self.held[key] = msgspec.structs.replace(held, need=need)
        return None

    def _note(self, held: HeldJob) -> None:
        on, need = held.portion, held.need
        self._new[held.job.key] = JobPlaced(
            *held.job.key, on.device, on.architecture, share=(need.compute, need.memory, need.cores), began=held.began
        )

    def new_placements(self) -> list[JobPlaced]:
        """Placements since this was asked last, of jobs that still run: others are told by their reports."""
        found, self._new = list(self._new.values()), {}
        return found


FAIR = 0.9
"""Share of a device's memory that counts as the device: a job that runs out of so much alone needs a larger one."""


class AttemptJudge:
    """Learns from attempts that end. Each is judged by itself, whoever died beside it.

    Args:
        room: the devices, and the jobs that run there, with those that are judged.
    """

    def __init__(self, room: SharedRoom) -> None:
        self._room = room

    def judge(self, report: Report) -> Report:
        """The report that the study is told of an attempt."""
        held = self._room.held.get((report.trial, report.attempt))
        if held is None:
            return report
        share = held.portion
        measured = report.usage if isinstance(report.usage, Usage) else Usage()
        usage = msgspec.structs.replace(
            measured,
            device=share.device,
            architecture=share.architecture,
            share=(held.need.compute, held.need.memory, held.need.cores),  # smaller by now where it began as a guess
        )
        usage = self._room.with_load(report, usage)
        report = msgspec.structs.replace(report, usage=usage)
        if report.outcome is not Outcome.OUT_OF_MEMORY:  # what it used then is not what it needs
            self._room.estimates.learn(
                self._room.parameters(held.job),
                self._uncontended(held, usage),
                at=report.ended,
                architecture=share.architecture,
            )
        if report.outcome is Outcome.OUT_OF_MEMORY:
            return self._judge_out_of_memory(report, held, usage)
        if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            self._room.alone.discard(report.trial)
        return report

    def _judge_out_of_memory(self, report: Report, held: HeldJob, usage: Usage) -> Report:
        # Raise the need of the job's key; the job is tried again alone, or once others leave more of the device.
        share, device = held.portion, self._room.whole.get(held.portion.device)
        whole = share.capacity if device is None else device.memory
        used = (usage.device_memory if share.gpu else usage.memory) or 0
        self._room.estimates.raise_after_out_of_memory(
            self._room.parameters(held.job), share.architecture, had=share.allowed, at=report.ended, measured=used
        )
        had_all_that_others_left = share.allowed >= share.capacity and share.capacity < FAIR * whole
        if had_all_that_others_left:
            words = f"Others used {memory_words(whole - share.capacity)} of {share.device}. It waits for more"
            message = f"{words}. {report.message}"
            return msgspec.structs.replace(report, outcome=Outcome.PREEMPTED, message=message)
        self._room.alone.add(report.trial)
        return report

    def _uncontended(self, held: HeldJob, usage: Usage) -> Usage:
        # Estimate of an attempt's use without waiting for others.
        # Where jobs claim more compute than there is, each gets less than it would use. Were that learned, the next
        # ones would be placed by it: still more of them, each of which gets still less.
        device = self._room.whole.get(held.slot.name)
        if device is None or held.portion.alone or held.is_guess:
            return usage
        if usage.load is not None and usage.load <= WHOLE:
            return usage
        together = [held, *self._room.beside(held)]
        if sum(self._room.estimate(one.job, device).need.compute for one in together) <= WHOLE:
            return usage
        known = self._room.estimate(held.job, device).need
        compute = None if usage.compute is None else max(usage.compute, known.compute / WHOLE)
        cores = usage.cores if held.portion.gpu else max(usage.cores, known.cores / WHOLE)
        return msgspec.structs.replace(usage, compute=compute, cores=cores)
