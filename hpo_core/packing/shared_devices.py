"""SharedDevices: several jobs on one device, by what each needs of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import Demand, Inventory, Slot, memory_words
from hpo_core.model.events import JobPlaced
from hpo_core.model.trial import Job, JobKey, Outcome, Report
from hpo_core.packing.estimates import Estimates
from hpo_core.packing.policies import PackingPolicy
from hpo_core.packing.room import Assignment, Room, WaitingJob, why_nowhere
from hpo_core.packing.shared_room import FAIR, AttemptJudge, SharedRoom, all_of
from hpo_core.placement.placer import Placed, Placement, Placer, UsageMeter
from hpo_core.spec.packing import PackingSpec


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
        self.reserved: dict[Hashable, str] = {}
        """By key of the job that has one: name of the device that is kept for it."""
        self.resize(empty)

    def resize(self, empty: Room) -> None:
        self._empty = empty
        self._places = {device.name: place for place, device in enumerate(empty.devices)}
        self.reserved = {key: name for key, name in self.reserved.items() if name in self._places}

    def choose(self, jobs: Sequence[WaitingJob], room: Room, *, last: int = 0) -> list[Assignment]:
        """As any policy.

        Args:
            last: so many jobs at the end of ``jobs`` get what the others leave.
        """
        room = room.copy()
        waiting = {job.key for job in jobs}
        self._overtaken = {key: count for key, count in self._overtaken.items() if key in waiting}
        self.reserved = {key: name for key, name in self.reserved.items() if key in waiting}
        chosen = self._place_or_reserve(jobs, room)
        begun = {job for job, _ in chosen}
        for some in (range(len(jobs) - last), range(len(jobs) - last, len(jobs))):
            rest = [job for job in some if job not in begun and jobs[job].key not in self.reserved]
            begin = self.policy.choose([jobs[job] for job in rest], room) if rest else []
            for number, place in begin:
                room.take(jobs[rest[number]].demand[room.devices[place].architecture], place)
                chosen.append((rest[number], place))
        self._count_overtaken(jobs, {job for job, _ in chosen})
        return chosen

    def _place_or_reserve(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        # Begins starving jobs that fit now; for the others keeps, in `room`, what their devices have for them.
        chosen = []
        kept = set(self.reserved.values())
        places = {device.name: place for place, device in enumerate(room.devices)}
        for number, job in enumerate(jobs):
            if self._overtaken.get(job.key, 0) < self.patience:
                continue
            name = self.reserved.get(job.key)
            if name is not None and not self._could_hold(job, name):  # others use of it what the job needs
                del self.reserved[job.key]
                name = None
            place = places.get(name) if name is not None else self._nearest(job, room, kept)
            if place is None:
                continue  # it fits nowhere, or each device is kept for an older job
            device = room.devices[place]
            need = job.demand[device.architecture]
            if room.fits(need, place):
                chosen.append((number, place))
                self.reserved.pop(job.key, None)
            else:
                self.reserved[job.key] = device.name
                kept.add(device.name)
            room.take(need, place)  # below zero where it is kept: nobody else fits there
        return chosen

    def _nearest(self, job: WaitingJob, room: Room, kept: set[str]) -> int | None:
        best, least = None, float("inf")
        for place, device in enumerate(room.devices):
            need = job.demand.get(device.architecture)
            if need is None or device.name in kept or not self._could_hold(job, device.name):
                continue
            node = room.node_of[place]
            lacking = max(
                (need.compute - room.compute[place]) / max(need.compute, 1),
                (need.memory - room.memory[place]) / max(need.memory, 1),
                (need.cores - room.cores[node]) / max(need.cores, 1),
                (need.slots - room.slots[place]) / need.slots,
            )
            if lacking < least:
                best, least = place, lacking
        return best

    def _could_hold(self, job: WaitingJob, name: str) -> bool:
        place = self._places.get(name)
        need = None if place is None else job.demand.get(self._empty.devices[place].architecture)
        return place is not None and need is not None and self._empty.fits(need, place)

    def _count_overtaken(self, jobs: Sequence[WaitingJob], begun: set[int]) -> None:
        younger = 0
        for number in range(len(jobs) - 1, -1, -1):
            if number in begun:
                younger += 1
            elif younger:
                key = jobs[number].key
                self._overtaken[key] = self._overtaken.get(key, 0) + younger


TELL_AFTER = 30
"""Updates, one a second, without a job that runs, after which a person is told what the waiting ones wait for."""


def ratio_words(ratios: Mapping[str, float]) -> str:
    """Which ratios a study tries or uses, in words.

    >>> ratio_words({"A100": 1.5})
    'Jobs may claim the compute 1.5 times on A100 from now on: whether more at once do more work is measured.'
    """
    each = ", ".join(f"{ratio:g} times on {name}" for name, ratio in sorted(ratios.items()))
    return f"Jobs may claim the compute {each} from now on: whether more at once do more work is measured."


class SharedDevices(Placer):
    """Places jobs on shared devices with a packing policy (HyperSack, Section III).

    A job whose attempt ran out of memory is placed alone the next time: no other job runs on its device meanwhile.

    Args:
        packing: settings of the study.
        policy: chooses among the jobs that wait.
        estimates: what each job will need.
        constants: of the study; expressions of stated demands may read them.
        free_choice: whether the search grants jobs without waiting for results, so that many may wait.
        alone: trials whose last attempt ran out of memory, as the journal says.
        meter: measures running jobs; None: nobody does.
        patience: how often a waiting job may be overtaken by younger ones before a device is kept free for it.
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
        meter: UsageMeter | None = None,
        patience: int = 32,
    ) -> None:
        super().__init__()
        self.estimates = estimates
        self._meter = meter
        self._packing = packing
        self._ahead = 8 if free_choice else 1
        self.room = SharedRoom(packing, estimates, constants=constants, alone=alone)
        self._judge = AttemptJudge(self.room)
        self._left = self.room.left()
        """The room that running jobs leave."""
        self._policy = WithReservations(policy, self.room.empty, patience=patience)
        self._fitting: set[JobKey] = set()
        """Waiting jobs that were asked about since the last :meth:`update`: some device can hold them."""
        self._waiting: list[Job] = []
        """Jobs that :meth:`place` left."""
        self._idle_updates = 0
        """Updates in a row at which jobs waited and none ran."""
        self._told_ratios: dict[str, float] = {}
        self._granted = 0
        """Jobs that the study was told it may have under way."""

    def __len__(self) -> int:
        """Jobs that run."""
        return len(self.room.held)

    # Devices.

    def update(self, inventory: Inventory) -> list[JobKey]:
        if self._meter is not None:
            for key, usage in self._meter.usages().items():
                if (memory := self.room.see(key, usage)) is not None:
                    self._meter.limit(key, memory)
        if self.room.update(inventory):
            self.inventory = inventory
            self._policy.resize(self.room.empty)
        self._left = self.room.left()
        self._fitting.clear()
        self._granted = self._wanted()
        self._idle_updates = self._idle_updates + 1 if self._waiting and not self.room.held else 0
        return [key for key, held in self.room.held.items() if held.slot.name not in self.room.capacities]

    def news(self) -> str:
        """News for a person: that all jobs wait, or another ratio; empty: nothing new."""
        if (ratios := self.learned_ratios) != self._told_ratios:
            changed = {name: one for name, one in ratios.items() if self._told_ratios.get(name, 1.0) != one}
            self._told_ratios = ratios
            if changed:
                return ratio_words(changed)
        if self._idle_updates != TELL_AFTER or not self.room.empty.devices:
            return ""
        job, count = self._waiting[0], len(self._waiting)
        lacking = []
        for device in self.room.empty.devices[:4]:
            whole = self.room.whole[device.name]
            amounts = self.room.need(job, whole).memory, device.memory, whole.memory
            needed, free, all_of_it = (memory_words(amount, beside=amounts) for amount in amounts)
            lacking.append(f"{device.name} ({device.architecture}): it needs {needed}, {free} of {all_of_it} are free")
        return (
            f"{count} job{'s wait' if count > 1 else ' waits'} for a device and none runs. Trial {job.trial}: "
            f"{'; '.join(lacking)}. They begin when others leave the devices; a smaller packing.demand helps where "
            "it is too large."
        )

    @property
    def learned_ratios(self) -> dict[str, float]:
        names = sorted(self.room.largest)
        return {name: self.room.ratio(name) for name in names if self._packing.finds_ratio(name)}

    def capacity(self) -> Inventory:
        self._granted = max(self._granted, self._wanted())
        return Inventory.of_shared(self._granted, len(self.room.empty.devices))

    def _wanted(self) -> int:
        if not self.room.empty.devices:
            return 0
        return len(self) + self._ahead * len(self.room.empty.devices)

    def new_placements(self) -> list[JobPlaced]:
        """Placements that the journal does not hold yet: jobs that began or hold less, and run."""
        return self.room.new_placements()

    # Placing.

    def place(self, jobs: Sequence[Job], *, now: float | None = None) -> Placed:
        refused = self._refused(jobs)
        if refused:
            nowhere = {(report.trial, report.attempt) for report in refused}
            jobs = [job for job in jobs if job.key not in nowhere]
        if not self.room.empty.devices or not jobs:
            return Placed([], refused)
        placements: list[Placement] = []
        first, later = self.room.unknown_once(jobs)
        ordered = [*first, *later]
        waiting = [WaitingJob(job.key, self.room.demand(job)) for job in ordered]
        for number, place in self._policy.choose(waiting, self._left, last=len(later)):
            job, device = ordered[number], self.room.empty.devices[place]
            placements.append((job, self._take(job, waiting[number].demand[device.architecture], place, now)))
        begun = {job.key for job, _ in placements}
        left = [job for job in ordered if job.key not in begun]
        placements += self._try_on_what_is_free(left, now)
        begun |= {job.key for job, _ in placements}
        self._waiting = [job for job in left if job.key not in begun]
        return Placed(placements, refused)

    def _try_on_what_is_free(self, jobs: Sequence[Job], now: float | None) -> list[Placement]:
        # A device whose memory others use is given whole to one job that is estimated to need more than is left.
        # Not to one that is known to need more: it waits.
        placements: list[Placement] = []
        busy = {held.slot.name for held in self.room.held.values()} | set(self._policy.reserved.values())
        for place, device in enumerate(self.room.empty.devices):
            whole = self.room.whole[device.name]
            if device.name in busy or not 0 < device.memory < whole.memory:
                continue
            for job in jobs:
                least = self.estimates.least_memory(self.room.parameters(job), device.architecture)
                need = self.room.need(job, whole)
                if least is None or not min(least, FAIR * whole.memory) <= device.memory < need.memory:
                    continue
                need = all_of(device, msgspec.structs.replace(need, memory=device.memory))
                if self._left.fits(need, place):
                    placements.append((job, self._take(job, need, place, now)))
                    jobs = [other for other in jobs if other.key != job.key]
                    break
        return placements

    def _take(self, job: Job, need: Demand, place: int, now: float | None) -> Slot:
        self._left.take(need, place)
        return self.room.begin(job, need, place, now=now)

    def _refused(self, jobs: Sequence[Job]) -> list[Report]:
        if not self.room.capacities:
            return []
        reports = []
        for job in jobs:
            if job.key in self._fitting:
                continue
            self._fitting.add(job.key)
            why = why_nowhere(self.room.demand(job), self.room.everything)
            if why is not None:
                message = (
                    f"It fits on no device, even alone: {why}. State a smaller demand (packing.demand), raise "
                    "packing.memory, or add a larger device."
                )
                outcome = Outcome.OUT_OF_MEMORY
                reports.append(Report(trial=job.trial, attempt=job.attempt, outcome=outcome, message=message))
        return reports

    def release(self, job: JobKey) -> None:
        if self.room.end(job):
            self._left = self.room.left()

    # How attempts ended.

    def judge(self, report: Report) -> Report:
        """Learn from how an attempt ended, and say where it ran."""
        return self._judge.judge(report)
