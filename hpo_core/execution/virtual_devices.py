"""Virtual devices: several jobs at once on each, slower where they claim more compute than it has."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.virtual import END, VirtualAttempt, VirtualClock, VirtualExecutor, Worker
from hpo_core.model.devices.inventory import Device, Slot
from hpo_core.model.trial import Job, Report

WHOLE = 1000
"""Compute of one device in permille."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one job is to a device."""

    seconds: float
    """Seconds that the job takes alone on the device."""
    compute: int
    """Permille of the device that it keeps busy while it runs; more than all of it counts as all."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the jobs of a device claim from one moment to the next."""

    time: float
    jobs: int
    compute: int
    """Permille that they keep busy, or would: above 1000 they slow each other down."""
    share: int
    """Permille that they were given."""
    memory: int
    """Bytes that they were given."""


@dataclass(slots=True)
class _Running:
    attempt: VirtualAttempt
    load: Load
    slot: Slot
    left: float
    """Seconds of it that are left, at full speed."""


@dataclass(slots=True)
class _DeviceState:
    running: dict[tuple[int, int], _Running] = field(default_factory=dict)
    since: float = 0.0
    """Until then, what its jobs have done is counted."""
    rate: float = 1.0
    """Speed of its jobs, as part of their speed alone."""
    compute: int = 0


class VirtualDevices(VirtualExecutor):
    """Runs jobs on virtual devices that they share.

    The rule: jobs that claim together no more compute than the device has run as fast as alone. Where they claim more
    (oversubscription), each runs at the device's compute over the sum of the claims. Memory and cores are the
    placement's concern: what it gives is not exceeded here, and no attempt runs out of memory.

    Args:
        clock: moved forward by :meth:`wait`; the study's own.
        devices: each with its capacity.
        load: what a job is to the device of its slot.
        train: what training a job gives, as for :class:`~hpo_core.execution.virtual.VirtualExecutor`.
        poll_seconds: how often the loop looks how many jobs may wait, in virtual time.
        workers: when each device joins and leaves; default: all are there from the beginning to the end.
        more: ``objectives``, ``curve``, ``checkpoints``, ``faults`` of the virtual executor.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        devices: Sequence[Device],
        load: Callable[[Job, Slot], Load],
        train: Callable[[Job], Any],
        poll_seconds: float,
        workers: Sequence[Worker] | None = None,
        **more: Any,
    ) -> None:
        workers = [Worker() for _ in devices] if workers is None else workers
        super().__init__(clock, workers=workers, train=train, seconds=lambda job: 0.0, **more)
        self._devices = list(devices)
        self._numbers = {device.name: number for number, device in enumerate(devices)}
        self._load = load
        self.poll_seconds = poll_seconds
        self._states = [_DeviceState(since=clock.now) for _ in devices]
        self._loads: dict[tuple[int, int], Load] = {}
        self.history: list[list[Claimed]] = [[] for _ in devices]
        """By device: what is claimed of it from each change on."""
        self.used_seconds = 0.0
        """Device time with at least one job, until the last change."""
        self.claimed_seconds = 0.0
        """Device time weighted with the compute claimed, likewise."""

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self._loads[job.key] = self._load(job, slot)
        super().submit(job, slot, on_report)

    def wait(self, inbox: Inbox, until: float) -> bool:
        heap = self._heap
        while heap and heap[0][1] == END and heap[0][3].end != heap[0][0]:  # it ends at another moment by now
            heapq.heappop(heap)
        if not inbox.reports and not heap:
            return False  # nothing runs, and no device will join, however often the loop looks
        return super().wait(inbox, until)

    def _duration(self, job: Job, slot: Slot) -> float:
        return self._loads[job.key].seconds

    def _begin(self, attempt: VirtualAttempt, slot: Slot, seconds: float) -> None:
        state = self._count_until_now(attempt.worker)
        state.running[attempt.job.key] = _Running(attempt, self._loads[attempt.job.key], slot, seconds)
        self._changed(attempt.worker, new=attempt.job.key)

    def _report(self, attempt: VirtualAttempt, report: Report) -> None:
        state = self._count_until_now(attempt.worker)
        del state.running[attempt.job.key], self._loads[attempt.job.key]
        attempt.end = math.nan
        self._changed(attempt.worker)
        super()._report(attempt, report)

    def _count_until_now(self, number: int) -> _DeviceState:
        """Advance the work done by a device's jobs to the present moment."""
        state = self._states[number]
        passed, state.since = self.clock.now - state.since, self.clock.now
        if state.running and passed > 0:
            self.used_seconds += passed
            self.claimed_seconds += passed * state.compute / WHOLE
            for running in state.running.values():
                running.left = max(0.0, running.left - passed * state.rate)
        return state

    def _changed(self, number: int, new: tuple[int, int] | None = None) -> None:
        """A job began (``new``) or ended: the others may run at another speed from now on."""
        state = self._states[number]
        state.compute = sum(min(running.load.compute, WHOLE) for running in state.running.values())
        rate = min(1.0, WHOLE / state.compute) if state.compute else 1.0
        is_other, state.rate = rate != state.rate, rate
        for key, running in state.running.items():
            if is_other or key == new:
                self._end_at(running.attempt, self.clock.now + running.left / rate)
        shares = [running.slot.portion for running in state.running.values() if running.slot.portion is not None]
        claimed = Claimed(
            self.clock.now,
            len(state.running),
            state.compute,
            sum(share.compute for share in shares),
            sum(share.memory for share in shares),
        )
        history = self.history[number]
        if history and history[-1].time == claimed.time:
            history.pop()
        history.append(claimed)

    @property
    def utilization(self) -> float:
        """Share of the devices' time so far in which at least one job ran."""
        for number in range(len(self._states)):
            self._count_until_now(number)
        return self.used_seconds / self.offered_seconds if self.offered_seconds else 0.0

    @property
    def occupancy(self) -> float:
        """Compute claimed, over the compute that was there so far; above 1 with oversubscription."""
        for number in range(len(self._states)):
            self._count_until_now(number)
        return self.claimed_seconds / self.offered_seconds if self.offered_seconds else 0.0


def mean_claims(history: Sequence[Claimed], end: float, parts: int) -> list[float]:
    """Mean compute claimed (1: the whole device) in each of ``parts`` equal parts of ``end`` seconds."""
    if end <= 0:
        return [0.0] * parts
    found = [0.0] * parts
    width = end / parts
    for number, one in enumerate(history):
        until = min(history[number + 1].time if number + 1 < len(history) else end, end)
        begin = one.time
        for part in range(int(begin / width), min(math.ceil(until / width), parts)):
            low, high = max(begin, part * width), min(until, (part + 1) * width)
            found[part] += max(0.0, high - low) * one.compute / WHOLE / width
    return found
