"""Virtual executor of devices that several jobs share: crowded ones train slower."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core import MemoryJournal, Study
from hpo_core.execution.executor import Inbox
from hpo_core.execution.loop import Loop
from hpo_core.execution.placing import PlacementWriter
from hpo_core.execution.virtual import END, VirtualAttempt, VirtualClock, VirtualExecutor, Worker
from hpo_core.model.devices.inventory import Capacity, Device, Slot
from hpo_core.model.devices.stated_demand import StatedDemand
from hpo_core.model.trial import Job, Report
from hpo_core.placement.estimates import Estimates
from hpo_core.placement.policies import POLICIES
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.spec.packing import PackingSpec
from tests.conftest import make_spec

WHOLE = 1000
"""Compute of one device in permille."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one job is to a device."""

    seconds: float
    """Seconds that the job takes alone on the device."""
    compute: int
    """Permille of the device that it keeps busy while it runs; more than all of it counts as all."""


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
        self._left: dict[VirtualAttempt, float] = {}
        """Seconds of an attempt that are left, at full speed."""
        self._compute: dict[VirtualAttempt, int] = {}
        """Permille that it keeps busy."""
        self._placed = Load(0.0, 0)
        """What the job that is being submitted is to its device."""
        self.poll_seconds = poll_seconds
        self._running: list[list[VirtualAttempt]] = [[] for _ in devices]
        """By device: its attempts."""
        self._counted = [clock.now for _ in devices]
        """By device: until then, what its jobs have done is counted."""
        self._claims = [0 for _ in devices]
        """By device: permille that its jobs claim together; above 1000 they slow each other down."""
        self.history: list[list[tuple[float, int]]] = [[] for _ in devices]
        """By device: (moment, permille claimed from then on)."""
        self.used_seconds = 0.0
        """Device time with at least one job, until the last change."""
        self.claimed_seconds = 0.0
        """Device time weighted with the compute claimed, likewise."""

    def wait(self, inbox: Inbox, until: float) -> bool:
        heap = self._heap
        while heap and heap[0][1] == END and heap[0][3].end != heap[0][0]:  # it ends at another moment by now
            heapq.heappop(heap)
        if not inbox.reports and not heap:
            return False  # nothing runs, and no device will join, however often the loop looks
        return super().wait(inbox, until)

    def _duration(self, job: Job, slot: Slot) -> float:
        self._placed = self._load(job, slot)
        return self._placed.seconds

    def _begin(self, attempt: VirtualAttempt, slot: Slot, seconds: float) -> None:
        self._count_until_now(attempt.worker)
        self._left[attempt], self._compute[attempt] = seconds, min(self._placed.compute, WHOLE)
        self._running[attempt.worker].append(attempt)
        self._changed(attempt.worker, new=attempt)

    def _report(self, attempt: VirtualAttempt, report: Report) -> None:
        self._count_until_now(attempt.worker)
        self._running[attempt.worker].remove(attempt)
        attempt.end = math.nan
        self._changed(attempt.worker)
        super()._report(attempt, report)

    def _count_until_now(self, number: int) -> None:
        """Advance the work done by a device's jobs to the present moment."""
        passed, self._counted[number] = self.clock.now - self._counted[number], self.clock.now
        if self._running[number] and passed > 0:
            self.used_seconds += passed
            self.claimed_seconds += passed * self._claims[number] / WHOLE
            for attempt in self._running[number]:
                self._left[attempt] = max(0.0, self._left[attempt] - passed * self._rate(number))

    def _rate(self, number: int) -> float:
        """Speed of a device's jobs, as part of their speed alone."""
        return WHOLE / max(self._claims[number], WHOLE)

    def _changed(self, number: int, new: VirtualAttempt | None = None) -> None:
        """A job began (``new``) or ended: the others may run at another speed from now on."""
        before = self._rate(number)
        self._claims[number] = sum(self._compute[attempt] for attempt in self._running[number])
        rate = self._rate(number)
        for attempt in self._running[number]:
            if rate != before or attempt is new:
                self._end_at(attempt, self.clock.now + self._left[attempt] / rate)
        history = self.history[number]
        if history and history[-1][0] == self.clock.now:
            history.pop()
        history.append((self.clock.now, self._claims[number]))

    @property
    def utilization(self) -> float:
        """Share of the devices' time so far in which at least one job ran."""
        return self._part_of_time(lambda: self.used_seconds)

    @property
    def occupancy(self) -> float:
        """Compute claimed, over the compute that was there so far; above 1 with oversubscription."""
        return self._part_of_time(lambda: self.claimed_seconds)

    def _part_of_time(self, seconds: Callable[[], float]) -> float:
        for number in range(len(self._devices)):
            self._count_until_now(number)
        return seconds() / self.offered_seconds if self.offered_seconds else 0.0


GB = 1_000_000_000
SPACE: dict[str, Any] = {
    "m": {"type": "int", "low": 1, "high": 12},
    "c": {"type": "int", "low": 5, "high": 70},
    "d": {"type": "int", "low": 1, "high": 30},
}


def _demand(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"memory": GB * params["m"], "compute": params["c"], "cores": 0.001}


def gpus(count: int, kind: str = "A100", memory: int = 16) -> list[Device]:
    """GPUs of one computer whose cores limit nothing."""
    capacity = Capacity(node=kind, architecture=kind, memory=memory * GB, free=memory * GB, cores=10**9, gpu=True)
    return [Device(f"{kind}-{number}", 16, capacity) for number in range(count)]


def _seconds(job: Job) -> float:
    return float(job.params["d"])


class Played:
    """A random search of jobs that need what their parameters say, on shared devices."""

    def __init__(self, devices: Sequence[Device], policy: str, configs: int, *, seed: int = 0, **packing: Any) -> None:
        spec = make_spec(space=SPACE, seed=seed, search={"method": "random", "configs": configs, "max_resource": 1})
        settings = PackingSpec.model_validate({"policy": policy} | packing)
        self.devices = devices
        self.clock = VirtualClock()
        self.journal = MemoryJournal()
        self.study = Study.create(spec, self.journal, clock=self.clock)
        needs = Estimates(objective="", code="", study="world", by=("m", "c", "d"), stated=StatedDemand({}, _demand))
        placer = SharedDevices(settings, POLICIES[policy](), needs, free_choice=True)
        self.executor = VirtualDevices(
            self.clock,
            devices=devices,
            load=lambda job, slot: Load(_seconds(job), 10 * job.params["c"]),
            train=lambda job: {"loss": job.params["c"]},
            poll_seconds=1.0,
            objectives=["loss"],
        )
        Loop(self.study, self.executor, placer=placer, observers=[PlacementWriter(self.study, placer)]).run()
        self.study.check()

    @property
    def entries(self) -> list[Any]:
        return list(self.journal.entries("world"))
