"""The devices of an inventory that jobs share, as rooms for a packing policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import EMPTY, Capacity, Demand, Inventory, Portion, Slot, memory_words
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import JobPlaced
from hpo_core.model.trial import Job, JobKey, Outcome, Report
from hpo_core.placement.estimates import Estimate, Estimates
from hpo_core.placement.room import WHOLE, Room, SharedDevice
from hpo_core.spec import PackingSpec


class SharedRoom:
    """The devices that are there now, within the limits that a study sets.

    Args:
        packing: settings of the study.
    """

    def __init__(self, packing: PackingSpec) -> None:
        self._packing = packing
        self.learned: dict[str, float] = {}
        """Oversubscription by architecture, as attempts showed it to be best; what is stated or was tuned wins."""
        self.inventory = EMPTY
        self.capacities: dict[str, Capacity] = {}
        """By device that is there, also those without slots: jobs may run there, and none begins."""
        self.empty = Room(())
        """What jobs of this study may use, where none runs."""
        self.whole = Room(())
        """The same if nobody else used the devices."""
        self.everything = Room(())
        """The same with the devices without slots, which other studies may hold now."""

    def ratio(self, architecture: str) -> float:
        """How many times the compute of a device jobs may claim."""
        first = self._packing.ratio(architecture)
        return self.learned.get(architecture, first) if self._packing.finds_ratio(architecture) else first

    def update(self, inventory: Inventory, learned: Mapping[str, float] = {}) -> bool:
        """These devices are there now; returns whether anything changed.

        Args:
            learned: see :attr:`learned`.
        """
        if inventory == self.inventory and learned == self.learned:
            return False
        self.inventory, self.learned = inventory, dict(learned)
        self.capacities = {
            device.name: device.capacity for device in inventory.devices if isinstance(device.capacity, Capacity)
        }
        begin = {device.name: self.capacities[device.name] for device in inventory.devices
                 if device.slots and device.name in self.capacities}  # fmt: skip
        self.empty = self._room_of(begin, lambda capacity: capacity.free)
        self.whole = self._room_of(begin, lambda capacity: capacity.memory)
        self.everything = self._room_of(self.capacities, lambda capacity: capacity.memory)
        return True

    def _room_of(self, capacities: Mapping[str, Capacity], memory: Callable[[Capacity], int]) -> Room:
        limit = self._packing.memory_limit
        devices = [
            SharedDevice(
                name=name,
                node=capacity.node,
                architecture=capacity.architecture,
                memory=min(memory(capacity), limit(capacity.architecture) or memory(capacity)),
                oversubscribe=round(WHOLE * self.ratio(capacity.architecture)),
            )
            for name, capacity in capacities.items()
        ]
        cores = {}
        for capacity in capacities.values():
            ratio = 1.0 if capacity.gpu else self.ratio(capacity.architecture)  # of processors, cores are compute
            cores[capacity.node] = round(ratio * capacity.cores)
        return Room(devices, cores)

    def device(self, name: str) -> SharedDevice | None:
        """The whole device of this name; None where it is gone."""
        return next((one for one in self.everything.devices if one.name == name), None)

    def node_of(self, name: str) -> str | None:
        """The computer of a device; None where it is gone."""
        capacity = self.capacities.get(name)
        return None if capacity is None else capacity.node

    def largest(self) -> Iterator[SharedDevice]:
        """The device with the most memory of each architecture, taken whole."""
        found: dict[str, SharedDevice] = {}
        for device in self.everything.devices:
            known = found.get(device.architecture)
            if known is None or device.memory > known.memory:
                found[device.architecture] = device
        yield from found.values()

    def lacking(self, need_on: Callable[[SharedDevice], int]) -> list[str]:
        """In words, by device, how much memory a job needs and how much is free.

        Args:
            need_on: bytes that it needs on a whole device.
        """
        found = []
        for device, whole in zip(self.empty.devices, self.whole.devices, strict=True):
            amounts = need_on(whole), device.memory, whole.memory
            needed, free, all_of_it = (memory_words(amount, beside=amounts) for amount in amounts)
            found.append(f"{device.name} ({device.architecture}): it needs {needed}, {free} of {all_of_it} are free")
        return found


class JobNeeds:
    """Needs of one study's jobs.

    Args:
        packing: settings of the study.
        estimates: what each job will need.
        room: the devices that are there.
        constants: of the study; expressions of stated demands may read them.
        alone: trials whose last attempt ran out of memory, as the journal says.
    """

    def __init__(
        self,
        packing: PackingSpec,
        estimates: Estimates,
        room: SharedRoom,
        *,
        constants: Mapping[str, Any],
        alone: Iterable[int],
    ) -> None:
        self.estimates = estimates
        self.alone = set(alone)
        """Trials whose next attempt has its device to itself."""
        self._packing = packing
        self._room = room
        self._constants = dict(constants)

    def parameters(self, job: Job) -> dict[str, Any]:
        """Parameters of a job and the study's constants."""
        return {**self._constants, **job.params}

    def demand(self, job: Job) -> dict[str, Demand]:
        """By architecture, whatever others use of the devices now."""
        return {device.architecture: self.need(job, device) for device in self._room.largest()}

    def need(self, job: Job, device: SharedDevice) -> Demand:
        """What it is placed by on this device."""
        estimate = self.estimate(job, device)
        need = estimate.need
        least = device.oversubscribe // (self._packing.most + 1) + 1  # so that one more than most has no room
        compute = device.oversubscribe if job.trial in self.alone else max(need.compute, least)
        # what was measured did fit; a limit is not met to the byte
        memory = need.memory if estimate.source == "stated" else min(need.memory, device.memory)
        return msgspec.structs.replace(need, compute=compute, memory=memory)

    def estimate(self, job: Job, device: SharedDevice) -> Estimate:
        """What it will need there, as far as that is known."""
        begun = job.checkpoint.resource if job.checkpoint is not None else 0
        capacity = self._room.capacities[device.name]
        beside = sum(other.node == capacity.node for other in self._room.capacities.values())
        return self.estimates.of(
            self.parameters(job),
            units=job.target - begun,
            device=device,
            node_cores=capacity.cores,
            devices_on_node=beside,
        )

    def unknown_once(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Jobs, those last of whose kind one is being measured: what it shows would tell their needs."""
        first: list[Job] = []
        later: list[Job] = []
        begun: set[str] = set()
        architectures = {capacity.architecture for capacity in self._room.capacities.values()}
        for job in jobs:
            params = self.parameters(job)
            if all(self.estimates.is_known(params, name) for name in architectures):
                first.append(job)
                continue
            key = self.estimates.key(params)
            measured_now = key in begun or any(self.estimates.is_profiling(params, name) for name in architectures)
            (later if measured_now else first).append(job)
            begun.add(key)
        return first, later


class HeldJob(msgspec.Struct, frozen=True):
    """What a running job holds."""

    job: Job
    slot: Slot
    need: Demand
    is_guess: bool
    """Whether it was placed before its need was known."""
    began: float
    """Seconds of the study's clock; 0: not known."""
    ended: float = math.inf
    """As its report says."""
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
        self._held: dict[JobKey, HeldJob] = {}
        self._ended: list[HeldJob] = []
        """Jobs that ended while one ran that is still there."""
        self._new: dict[JobKey, JobPlaced] = {}
        """Placements that nobody asked for yet."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(self._held.values())

    def get(self, key: JobKey) -> HeldJob | None:
        """None where it does not run here."""
        return self._held.get(key)

    def beside(self, held: HeldJob) -> list[HeldJob]:
        """The other jobs on its device."""
        return [other for other in self if other.slot.name == held.slot.name and other is not held]

    def free_number(self, device: str) -> int:
        """The smallest number that no job on a device has."""
        used = {held.slot.number for held in self if held.slot.name == device}
        return next(number for number in range(len(used) + 1) if number not in used)

    def begin(self, job: Job, slot: Slot, need: Demand, *, is_guess: bool, now: float | None) -> None:
        """A job begins with this share; one that is a guess is being measured."""
        held = HeldJob(job, slot, need, is_guess, 0.0 if now is None else now)
        self._held[job.key] = held
        self._note(held, held.portion.memory)
        if is_guess:
            self._needs.estimates.profile_begins(self._needs.parameters(job), held.portion.architecture)

    def end(self, key: JobKey) -> bool:
        """It ended; returns whether it held anything."""
        held = self._held.pop(key, None)
        self._new.pop(key, None)
        if held is not None and held.is_guess:
            self._needs.estimates.profile_ends(self._needs.parameters(held.job), held.portion.architecture)
        if held is not None and held.ended < math.inf:
            self._ended.append(held)
        since: dict[str, float] = {}
        for one in self:
            since[one.slot.name] = min(since.get(one.slot.name, math.inf), one.began)
        self._ended = [one for one in self._ended if one.ended > since.get(one.slot.name, math.inf)]
        return held is not None

    def with_load(self, report: Report, usage: Usage) -> Usage:
        """The usage of an attempt that ended, with what was on its device while it trained.

        Nothing is said of an attempt whose times are not known, nor of one that had its device to itself on purpose.
        """
        key = report.trial, report.attempt
        held = self._held[key]
        if not report.ended > report.started > 0:
            return usage
        self._held[key] = msgspec.structs.replace(held, began=report.started, ended=report.ended)
        begin, end = report.started + usage.startup_seconds, report.ended
        if not end > begin or held.portion.alone:
            return usage
        load, jobs = float(held.need.compute), 1.0
        for one in (*self._ended, *self):
            if one.slot.name == held.slot.name and one.job.key != key:
                part = max(0.0, min(one.ended, end) - max(one.began, begin)) / (end - begin)
                load, jobs = load + part * one.need.compute, jobs + part
        return msgspec.structs.replace(usage, load=round(load), jobs=round(jobs, 3))

    def left_of(self, empty: Room) -> Room:
        """The room that running jobs leave."""
        room = empty.copy()
        places = {device.name: place for place, device in enumerate(empty.devices)}
        for held in self:
            if (place := places.get(held.slot.name)) is not None:
                room.take(held.need, place)
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
                if need.memory < share.memory:
                    self._note(held, need.memory)
                    return need.memory
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self._held[key] = msgspec.structs.replace(held, need=need)
        return None

    def _note(self, held: HeldJob, memory: int) -> None:
        share = held.portion
        amounts = share.compute, memory, share.cores
        self._new[held.job.key] = JobPlaced(
            *held.job.key, share.device, share.architecture, share=amounts, began=held.began
        )

    def new_placements(self) -> list[JobPlaced]:
        """Placements since this was asked last, of jobs that still run: others are told by their reports."""
        found, self._new = list(self._new.values()), {}
        return found


BLAME_SECONDS = 1.0
"""Attempts that die beside one that ran out of memory, within this time of it, are not to blame."""
FAIR = 0.9
"""Share of a device's memory that counts as the device: a job that runs out of so much alone needs a larger one."""
MOST_BLAMELESS = 3
"""How often that is said of one trial: one that dies whoever is beside it must not be trained for ever."""
_MAY_BE_COLLATERAL = {Outcome.CRASHED, Outcome.ERROR, Outcome.OUT_OF_MEMORY}


class AttemptJudge:
    """Learns from attempts that end; a neighbour of one that ran out of memory is not blamed.

    Args:
        needs: of the study's jobs, which learn.
        running: the jobs that run, with those that are judged.
        room: the devices that are there.
    """

    def __init__(self, needs: JobNeeds, running: RunningJobs, room: SharedRoom) -> None:
        self._needs = needs
        self._running = running
        self._room = room
        self._blameless: dict[int, int] = {}
        self._last_out_of_memory: dict[str, Report] = {}
        """By device: of the attempt that ran out of memory there last."""

    def judge(self, report: Report) -> Report:
        """What the study is told of how an attempt ended."""
        held = self._running.get((report.trial, report.attempt))
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
        usage = self._running.with_load(report, usage)
        report = msgspec.structs.replace(report, usage=usage)
        if report.outcome is not Outcome.OUT_OF_MEMORY:  # what it used then is not what it needs
            self._needs.estimates.learn(
                self._needs.parameters(held.job),
                self._uncontended(held, usage),
                at=report.ended,
                architecture=share.architecture,
            )
        if self._is_collateral(report, share, usage):
            self._blameless[report.trial] = self._blameless.get(report.trial, 0) + 1
            return msgspec.structs.replace(
                report,
                outcome=Outcome.PREEMPTED,
                message=f"Another job on {share.device} ran out of memory in the same second, and this one ended "
                f"with: {report.message}",
            )
        if report.outcome is Outcome.OUT_OF_MEMORY:
            return self._judge_out_of_memory(report, held, usage)
        if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            self._needs.alone.discard(report.trial)
        return report

    def is_doubtful(self, report: Report) -> bool:
        """Whether a neighbour, whose report is on its way, may be why this attempt failed."""
        held = self._running.get((report.trial, report.attempt))
        if held is None or held.portion.alone:
            return False
        usage = report.usage if isinstance(report.usage, Usage) else Usage()
        return bool(self._running.beside(held)) and self._may_be_collateral(report, held.portion, usage)

    def _judge_out_of_memory(self, report: Report, held: HeldJob, usage: Usage) -> Report:
        """Raise the need of the job's key; the job is tried again alone, or once others leave more of the device."""
        share, device = held.portion, self._room.device(held.portion.device)
        whole = share.capacity if device is None else device.memory
        used = (usage.device_memory if share.gpu else usage.memory) or 0
        self._needs.estimates.raise_after_out_of_memory(
            self._needs.parameters(held.job), share.architecture, had=share.allowed, at=report.ended, measured=used
        )
        self._last_out_of_memory[share.device] = report
        had_all_that_others_left = share.allowed >= share.capacity and share.capacity < FAIR * whole
        if had_all_that_others_left:
            words = f"Others used {memory_words(whole - share.capacity)} of {share.device}. It waits for more"
            message = f"{words}. {report.message}"
            return msgspec.structs.replace(report, outcome=Outcome.PREEMPTED, message=message)
        self._needs.alone.add(report.trial)
        return report

    def _uncontended(self, held: HeldJob, usage: Usage) -> Usage:
        """What an attempt would use if it did not have to wait for others, as far as that is known.

        Where jobs claim more compute than there is, each gets less than it would use. Were that learned, the next ones
        would be placed by it: still more of them, each of which gets still less.
        """
        device = self._room.device(held.slot.name)
        if device is None or held.portion.alone or held.is_guess:
            return usage
        if usage.load is not None and usage.load <= WHOLE:
            return usage
        together = [held, *self._running.beside(held)]
        if sum(self._needs.estimate(one.job, device).need.compute for one in together) <= WHOLE:
            return usage
        known = self._needs.estimate(held.job, device).need
        compute = None if usage.compute is None else max(usage.compute, known.compute / WHOLE)
        cores = usage.cores if held.portion.gpu else max(usage.cores, known.cores / WHOLE)
        return msgspec.structs.replace(usage, compute=compute, cores=cores)

    def _is_collateral(self, report: Report, share: Portion, usage: Usage) -> bool:
        other = self._last_out_of_memory.get(share.device)
        if other is None or other.trial == report.trial or abs(report.ended - other.ended) > BLAME_SECONDS:
            return False
        if report.started >= other.ended or other.started >= report.ended:  # one after the other
            return False
        enough = self._blameless.get(report.trial, 0) >= MOST_BLAMELESS
        return not enough and self._may_be_collateral(report, share, usage)

    @staticmethod
    def _may_be_collateral(report: Report, share: Portion, usage: Usage) -> bool:
        """Whether somebody else's memory may be why it died."""
        if report.outcome not in _MAY_BE_COLLATERAL or share.alone:
            return False
        if report.outcome is Outcome.ERROR and not (share.gpu and "CUDA" in report.message):
            return False
        return ((usage.device_memory if share.gpu else usage.memory) or 0) <= share.memory
