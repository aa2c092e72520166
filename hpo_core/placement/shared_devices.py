"""SharedDevices: several jobs on one device, by what each needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import EMPTY, Capacity, Inventory, Slot
from hpo_core.model.devices.share import Share
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.demands import Estimate, Estimates
from hpo_core.placement.packing.need import WHOLE, Need, WaitingJob
from hpo_core.placement.packing.packing_policy import PackingPolicy
from hpo_core.placement.packing.reservations import WithReservations
from hpo_core.placement.packing.room import Room, SharedDevice, too_much, why_nowhere
from hpo_core.placement.placer import JobKey, Placement
from hpo_core.spec import PackingSpec

BLAME_SECONDS = 1.0
"""Attempts that die on a device within this time of one that ran out of memory there are not to blame."""
FAIR = 0.9
"""Share of a device's memory that counts as the device: a job that runs out of so much alone needs a larger one."""
TELL_AFTER = 30
"""Updates, one a second, without a job that runs, after which a person is told what the waiting ones wait for."""
MOST_BLAMELESS = 3
"""How often that is said of one trial: one that dies whoever is beside it must not be trained for ever."""
_MAY_BE_COLLATERAL = {Outcome.CRASHED, Outcome.ERROR, Outcome.OUT_OF_MEMORY}


class _Held(msgspec.Struct, frozen=True):
    """What a running job holds."""

    job: Job
    slot: Slot
    need: Need
    is_guess: bool
    """Whether it was placed before its need was known."""


class SharedDevices:
    """Places jobs on shared devices with a packing policy (HyperSack, Section III).

    A job whose attempt ran out of memory is placed alone the next time: no other job runs on its device meanwhile.

    Args:
        packing: settings of the study.
        policy: chooses among the jobs that wait.
        estimates: what each job will need.
        constants: of the study; expressions of stated demands may read them.
        free_choice: whether the search grants jobs without waiting for results, so that many may wait.
        alone: trials whose last attempt ran out of memory, as the journal says.
    """

    def __init__(
        self,
        packing: PackingSpec,
        policy: PackingPolicy,
        estimates: Estimates,
        *,
        constants: Mapping[str, Any] = {},
        free_choice: bool = False,
        alone: Iterable[int] = (),
    ) -> None:
        self.estimates = estimates
        self._packing = packing
        self._constants = dict(constants)
        self._ahead = packing.look_ahead or (8 if free_choice else 1)
        self._ahead_is_total = packing.look_ahead is not None
        self._inventory = EMPTY
        self._capacities: dict[str, Capacity] = {}
        """By device that is there."""
        self._empty = self._whole = self._room = Room(())
        self._policy = WithReservations(policy, self._empty, patience=packing.patience)
        self._held: dict[JobKey, _Held] = {}
        self._alone = set(alone)
        self._blameless: dict[int, int] = {}
        self._last_out_of_memory: dict[str, tuple[float, int]] = {}
        """By device: when an attempt last ran out of memory there, and of which trial."""
        self._fitting: set[JobKey] = set()
        """Waiting jobs that were asked about since the last :meth:`update`: some device can hold them."""
        self._lowered: list[tuple[JobKey, int]] = []
        """Running jobs that hold less than they began with, and the bytes that they may use from now on."""
        self._waiting: list[Job] = []
        """What :meth:`place` left."""
        self._idle_updates = 0
        """Updates in a row at which jobs waited and none ran."""
        self._granted = 0
        """Jobs that the study was told it may have under way."""

    @property
    def inventory(self) -> Inventory:
        return self._inventory

    def __len__(self) -> int:
        """Jobs that run."""
        return len(self._held)

    # Devices.

    def update(self, inventory: Inventory, usages: Mapping[JobKey, Usage] = {}) -> None:
        for key, usage in usages.items():
            self._seen(key, usage)
        if inventory != self._inventory:
            self._inventory = inventory
            self._capacities = {
                device.name: device.capacity for device in inventory.devices if isinstance(device.capacity, Capacity)
            }
            self._empty = self._room_of(lambda capacity: capacity.free)
            self._whole = self._room_of(lambda capacity: capacity.memory)
            self._policy.resize(self._empty)
        self._refill()
        self._fitting.clear()
        self._granted = self._wanted()
        self._idle_updates = self._idle_updates + 1 if self._waiting and not self._held else 0

    def news(self) -> str:
        """What a person should know and was not told before: that all jobs wait, and for what; empty: nothing."""
        if self._idle_updates != TELL_AFTER or not self._empty.devices:
            return ""
        job = self._waiting[0]
        lacking = [
            f"{device.name} ({device.architecture}): it needs {self._need(job, whole).memory / 1e9:.1f} GB, "
            f"{device.memory / 1e9:.1f} of {whole.memory / 1e9:.1f} GB are free"
            for device, whole in zip(self._empty.devices, self._whole.devices, strict=True)
        ]
        return (
            f"{len(self._waiting)} jobs wait for a device and none runs. Trial {job.trial}: {'; '.join(lacking[:4])}. "
            "They begin when others leave the devices; a smaller packing.demand helps where it is too large."
        )

    def _room_of(self, memory: Any) -> Room:
        limit = self._packing.memory_limit
        devices = [
            SharedDevice(
                name=name,
                node=capacity.node,
                architecture=capacity.architecture,
                memory=min(memory(capacity), limit(capacity.architecture) or memory(capacity)),
                oversubscribe=round(WHOLE * self._packing.ratio(capacity.architecture)),
            )
            for name, capacity in self._capacities.items()
        ]
        cores = {}
        for capacity in self._capacities.values():
            ratio = (
                1.0 if capacity.gpu else self._packing.ratio(capacity.architecture)
            )  # of processors, cores are compute
            cores[capacity.node] = round(ratio * capacity.cores)
        return Room(devices, cores)

    @property
    def ratios(self) -> dict[str, float]:
        """Oversubscription by architecture, as far as it is stated or was found."""
        return dict(self._packing.oversubscribe)

    def _refill(self) -> None:
        """The room that running jobs leave."""
        self._room = self._empty.copy()
        places = {device.name: place for place, device in enumerate(self._empty.devices)}
        for held in self._held.values():
            if (place := places.get(held.slot.name)) is not None:
                self._room.take(held.need, place)

    def capacity(self) -> Inventory:
        self._granted = max(self._granted, self._wanted())
        count = len(self._capacities)
        return Inventory.of(self._granted, f"{count} shared device{'' if count == 1 else 's'}")

    def _wanted(self) -> int:
        """The jobs that run, and a few to choose from. It falls with :meth:`update` alone, not after each job."""
        if not self._capacities:
            return 0
        return len(self._held) + (self._ahead if self._ahead_is_total else self._ahead * len(self._capacities))

    def lowered(self) -> list[tuple[JobKey, int]]:
        found, self._lowered = self._lowered, []
        return found

    def shares(self) -> dict[JobKey, Share]:
        """Of the jobs that run: the part of a device that each was given."""
        return {key: held.slot.share for key, held in self._held.items() if held.slot.share is not None}

    def lacking(self, job: Job) -> dict[str, str]:
        """By architecture, what each device has too little left of for this job, as ``memory 6.0 GB of 2.0 GB``.

        One that has room for it is left out.
        """
        demand = self._demand(job)
        found: dict[str, str] = {}
        for place, device in enumerate(self._room.devices):
            words = ", ".join(too_much(demand[device.architecture], self._room, place))
            if words:
                found.setdefault(device.architecture, words)
        return found

    def guessed(self, job: Job) -> dict[str, tuple[str, ...]]:
        """By architecture, the parts of a job's need (memory, compute, cores) of which nothing is known."""
        return {one.architecture: self._estimate(job, one).guessed for one in self._whole.devices}

    def homeless(self) -> list[JobKey]:
        return [key for key, held in self._held.items() if held.slot.name not in self._capacities]

    # Placing.

    def place(self, jobs: Sequence[Job]) -> list[Placement]:
        placements: list[Placement] = []
        if not self._capacities or not jobs:
            return placements
        first, later = self._unknown_once(jobs)
        ordered = [*first, *later]
        waiting = [WaitingJob(job.key, self._demand(job)) for job in ordered]
        for number, place in self._policy.choose(waiting, self._room, last=len(later)):
            job, device = ordered[number], self._empty.devices[place]
            placements.append((job, self._take(job, waiting[number].demand[device.architecture], place)))
        begun = {job.key for job, _ in placements}
        left = [job for job in ordered if job.key not in begun]
        placements += self._try_on_what_is_free(left)
        begun |= {job.key for job, _ in placements}
        self._waiting = [job for job in left if job.key not in begun]
        return placements

    def _try_on_what_is_free(self, jobs: Sequence[Job]) -> list[Placement]:
        """A device whose memory others use is given whole to one job that is estimated to need more than is left.

        Not to one that is known to need more: it waits.
        """
        placements: list[Placement] = []
        busy = {held.slot.name for held in self._held.values()} | set(self._policy.reserved.values())
        for place, device in enumerate(self._empty.devices):
            whole = self._whole.devices[place]
            if device.name in busy or not 0 < device.memory < whole.memory:
                continue
            for job in jobs:
                least = self.estimates.least_memory(self._parameters(job), device.architecture)
                need = self._need(job, whole)
                if least is None or not min(least, FAIR * whole.memory) <= device.memory < need.memory:
                    continue
                need = msgspec.structs.replace(need, compute=device.oversubscribe, memory=device.memory)
                if self._room.fits(need, place):
                    placements.append((job, self._take(job, need, place)))
                    jobs = [other for other in jobs if other.key != job.key]
                    break
        return placements

    def _unknown_once(self, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Jobs, those last of whose kind one is being measured: what it shows would tell their needs."""
        first: list[Job] = []
        later: list[Job] = []
        begun: set[str] = set()
        architectures = {capacity.architecture for capacity in self._capacities.values()}
        for job in jobs:
            params = self._parameters(job)
            if all(self.estimates.is_known(params, name) for name in architectures):
                first.append(job)
                continue
            key = self.estimates.key(params)
            measured_now = key in begun or any(self.estimates.is_profiling(params, name) for name in architectures)
            (later if measured_now else first).append(job)
            begun.add(key)
        return first, later

    def _take(self, job: Job, need: Need, place: int) -> Slot:
        device = self._empty.devices[place]
        capacity = self._capacities[device.name]
        used = {held.slot.number for held in self._held.values() if held.slot.name == device.name}
        number = next(number for number in range(len(used) + 1) if number not in used)
        estimate = self._estimate(job, self._whole.devices[place])
        share = Share(
            device=device.name,
            architecture=device.architecture,
            compute=need.compute,
            memory=need.memory,
            cores=need.cores,
            capacity=device.memory,
            gpu=capacity.gpu,
            alone=job.trial in self._alone,
        )
        slot = Slot(place, number, device.name, share)
        is_guess = estimate.source == "profile"
        self._held[job.key] = _Held(job, slot, need, is_guess)
        self._room.take(need, place)
        if is_guess:
            self.estimates.profile_begins(self._parameters(job), device.architecture)
        return slot

    def refused(self, jobs: Sequence[Job]) -> list[Report]:
        """Reports for jobs that fit nowhere; what others use of a device now is not held against them."""
        if not self._capacities:
            return []
        reports = []
        for job in jobs:
            if job.key in self._fitting:
                continue
            self._fitting.add(job.key)
            why = why_nowhere(self._demand(job), self._whole)
            if why is not None:
                message = (
                    f"It fits on no device, even alone: {why}. State a smaller demand (packing.demand), raise "
                    "packing.memory, or add a larger device."
                )
                outcome = Outcome.OUT_OF_MEMORY
                reports.append(Report(trial=job.trial, attempt=job.attempt, outcome=outcome, message=message))
        return reports

    def release(self, job: JobKey) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            if held.is_guess:
                self.estimates.profile_ends(self._parameters(held.job), self._architecture(held))
            self._refill()

    # Needs.

    def _parameters(self, job: Job) -> dict[str, Any]:
        return {**self._constants, **job.params}

    def _demand(self, job: Job) -> dict[str, Need]:
        """By architecture, whatever others use of the devices now."""
        largest: dict[str, SharedDevice] = {}
        for device in self._whole.devices:
            known = largest.get(device.architecture)
            if known is None or device.memory > known.memory:
                largest[device.architecture] = device
        return {name: self._need(job, device) for name, device in largest.items()}

    def _need(self, job: Job, device: SharedDevice) -> Need:
        estimate = self._estimate(job, device)
        need = estimate.need
        least = device.oversubscribe // (self._packing.most + 1) + 1  # so that one more than most has no room
        compute = device.oversubscribe if job.trial in self._alone else max(need.compute, least)
        # what was measured did fit; a limit is not met to the byte
        memory = need.memory if estimate.source == "stated" else min(need.memory, device.memory)
        return msgspec.structs.replace(need, compute=compute, memory=memory)

    def _estimate(self, job: Job, device: SharedDevice) -> Estimate:
        begun = job.checkpoint.resource if job.checkpoint is not None else 0
        capacity = self._capacities[device.name]
        beside = sum(other.node == capacity.node for other in self._capacities.values())
        return self.estimates.of(
            self._parameters(job),
            units=job.target - begun,
            device=device,
            node_cores=capacity.cores,
            devices_on_node=beside,
        )

    # What was seen.

    def _seen(self, key: JobKey, usage: Usage) -> None:
        """A running attempt was measured: it holds what it needs from now on, instead of what was guessed."""
        held = self._held.get(key)
        share = None if held is None else held.slot.share
        if held is None or share is None:
            return
        measured = (usage.device_memory if share.gpu else usage.memory) or 0
        params = self._parameters(held.job)
        if held.is_guess and not share.alone and self.estimates.observe(params, usage, architecture=share.architecture):
            self.estimates.profile_ends(params, share.architecture)
            device = next((one for one in self._whole.devices if one.name == held.slot.name), None)
            if device is not None:
                need = self._need(held.job, device)
                self._held[key] = msgspec.structs.replace(held, need=need, is_guess=False)
                if need.memory < share.memory:
                    self._lowered.append((key, need.memory))
        elif measured > held.need.memory:
            need = msgspec.structs.replace(held.need, memory=measured)
            self._held[key] = msgspec.structs.replace(held, need=need)

    def judge(self, report: Report) -> Report:
        """Learn from how an attempt ended; a neighbour of one that ran out of memory is not blamed."""
        held = self._held.get((report.trial, report.attempt))
        if held is None or held.slot.share is None:
            return report
        share = held.slot.share
        measured = report.usage if isinstance(report.usage, Usage) else Usage()
        usage = msgspec.structs.replace(
            measured,
            device=share.device,
            architecture=share.architecture,
            share=(held.need.compute, held.need.memory, held.need.cores),  # smaller by now where it began as a guess
        )
        report = msgspec.structs.replace(report, usage=usage)
        params = self._parameters(held.job)
        if report.outcome is not Outcome.OUT_OF_MEMORY:  # what it used then is not what it needs
            wanted = self._uncontended(held, usage)
            self.estimates.learn(params, wanted, at=report.ended, architecture=share.architecture)
        if self._is_collateral(report, share, usage):
            self._blameless[report.trial] = self._blameless.get(report.trial, 0) + 1
            return msgspec.structs.replace(
                report,
                outcome=Outcome.PREEMPTED,
                message=f"Another job on {share.device} ran out of memory in the same second, and this one ended "
                f"with: {report.message}",
            )
        if report.outcome is Outcome.OUT_OF_MEMORY:
            whole = next((one.memory for one in self._whole.devices if one.name == share.device), share.capacity)
            used = (usage.device_memory if share.gpu else usage.memory) or 0
            self.estimates.raise_after_out_of_memory(
                params, share.architecture, had=share.allowed, at=report.ended, measured=used
            )
            self._last_out_of_memory[share.device] = report.ended, report.trial
            if (
                share.allowed >= share.capacity and share.capacity < FAIR * whole
            ):  # it had all that others left of the device
                words = f"Others used {(whole - share.capacity) / 1e9:.1f} GB of {share.device}. It waits for more"
                message = f"{words}. {report.message}"
                return msgspec.structs.replace(report, outcome=Outcome.PREEMPTED, message=message)
            self._alone.add(report.trial)
        elif report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            self._alone.discard(report.trial)
        return report

    def _uncontended(self, held: _Held, usage: Usage) -> Usage:
        """What an attempt would use if it did not have to wait for others, as far as that is known.

        Where jobs claim more compute than there is, each gets less than it would use. Were that learned, the next ones
        would be placed by it: still more of them, each of which gets still less.
        """
        assert held.slot.share is not None
        device = next((one for one in self._whole.devices if one.name == held.slot.name), None)
        if device is None or device.oversubscribe <= WHOLE or held.slot.share.alone or held.is_guess:
            return usage
        beside = [one for one in self._held.values() if one.slot.name == held.slot.name]
        if sum(self._estimate(one.job, device).need.compute for one in beside) <= WHOLE:
            return usage
        known = self._estimate(held.job, device).need
        compute = None if usage.compute is None else max(usage.compute, known.compute / WHOLE)
        cores = usage.cores if held.slot.share.gpu else max(usage.cores, known.cores / WHOLE)
        return msgspec.structs.replace(usage, compute=compute, cores=cores)

    def is_doubtful(self, report: Report) -> bool:
        held = self._held.get((report.trial, report.attempt))
        if held is None or held.slot.share is None or held.slot.share.alone:
            return False
        share = held.slot.share
        usage = report.usage if isinstance(report.usage, Usage) else Usage()
        beside = any(other.slot.name == held.slot.name for other in self._held.values() if other is not held)
        return beside and self._may_be_collateral(report, share, usage)

    def _may_be_collateral(self, report: Report, share: Share, usage: Usage) -> bool:
        """Whether somebody else's memory may be why it died."""
        if report.outcome not in _MAY_BE_COLLATERAL or share.alone:
            return False
        if report.outcome is Outcome.ERROR and not (share.gpu and "CUDA" in report.message):
            return False
        return ((usage.device_memory if share.gpu else usage.memory) or 0) <= share.memory

    def _is_collateral(self, report: Report, share: Share, usage: Usage) -> bool:
        when, trial = self._last_out_of_memory.get(share.device, (float("-inf"), -1))
        near = trial != report.trial and abs(report.ended - when) <= BLAME_SECONDS
        enough = self._blameless.get(report.trial, 0) >= MOST_BLAMELESS
        return near and not enough and self._may_be_collateral(report, share, usage)

    @staticmethod
    def _architecture(held: _Held) -> str:
        assert held.slot.share is not None
        return held.slot.share.architecture
