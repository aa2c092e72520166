"""Virtual executor: no threads, processes or waiting; jobs end when the virtual clock says so."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpo_core.checkpoints.storage import checkpoint_path
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.faults import NO_FAULTS, Faults
from hpo_core.execution.virtual_workers import Worker, make_workers
from hpo_core.model.devices.inventory import Device, Inventory, Slot
from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Point, Report

END, _JOIN, _LEAVE = range(3)


class VirtualClock:
    """Time as data; give it to :class:`~hpo_core.study.Study` as its clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Attempt:
    """A job on a worker."""

    __slots__ = ("begin", "dropped", "end", "job", "on_report", "others", "worker")

    def __init__(self, job: Job, on_report: OnReport, worker: int, *, begin: float, dropped: bool) -> None:
        self.job = job
        self.on_report = on_report
        self.worker = worker
        self.others: tuple[int, ...] = ()
        """Workers of the other ranks of a gang."""
        self.begin = begin
        self.dropped = dropped
        self.end = math.inf
        """When it ends, as far as is known now."""


class VirtualExecutor:
    """Runs jobs on virtual workers.

    What happens at one moment happens in this order: jobs end (in the order in which they began), workers join,
    workers leave. When a worker leaves, the loop first learns of the smaller inventory, then of the lost job.

    Args:
        clock: moved forward by :meth:`wait`; the study's own.
        workers: how many of speed 1, or each one.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job on a worker of speed 1.
        speedup: how many times as fast a gang trains as one worker; default: as many times as it has ranks.
        objectives: names of the metrics that must be finite for a completed attempt.
        curve: metrics on the way to the target, for methods that read curves.
        checkpoints: whether results carry a (made up) checkpoint, so that later jobs resume.
        faults: stragglers and drops.
    """

    poll_seconds = math.inf

    def __init__(
        self,
        clock: VirtualClock,
        *,
        workers: int | Sequence[Worker],
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        speedup: Callable[[Job], float] | None = None,
        objectives: Sequence[str] = (),
        curve: Callable[[Job], Sequence[Point]] | None = None,
        checkpoints: bool = True,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.clock = clock
        self.workers = make_workers(workers) if isinstance(workers, int) else tuple(workers)
        self._train = train
        self._seconds = seconds
        self._speedup = speedup
        self._curve = curve
        self._checkpoints = checkpoints
        self._faults = faults
        self._faulty = faults.stragglers > 0 or faults.drops > 0
        self._devices = [Device(f"worker-{number}") for number in range(len(self.workers))]
        self._numbers = {device.name: number for number, device in enumerate(self._devices)}
        self._objectives = list(objectives)
        self._heap: list[tuple[float, int, int, Any]] = []
        self._count = 0
        self._present: set[int] = set()
        self._inventory: Inventory | None = None
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._since = clock.now
        self._offered = 0.0
        self.busy_seconds = 0.0
        """Time in which workers ran attempts, good or bad."""
        self.lost_seconds = 0.0
        """Part of it that ended without a result."""
        for number, worker in enumerate(self.workers):
            if worker.joins <= clock.now < worker.leaves:
                self._present.add(number)
            elif worker.joins > clock.now:
                self._push(worker.joins, _JOIN, number)
            if clock.now < worker.leaves < math.inf:
                self._push(worker.leaves, _LEAVE, number)

    @property
    def offered_seconds(self) -> float:
        """Time in which workers were there, until now."""
        return self._offered + len(self._present) * (self.clock.now - self._since)

    @property
    def utilization(self) -> float:
        """Share of the workers' time so far in which they ran something."""
        running = math.fsum(
            (self.clock.now - attempt.begin) * (1 + len(attempt.others)) for attempt in self._attempts.values()
        )
        return (self.busy_seconds + running) / self.offered_seconds if self.offered_seconds else 0.0

    # What the loop asks.

    def inventory(self) -> Inventory:
        """The workers that are there, by number; one slot each."""
        if self._inventory is None:
            self._inventory = Inventory(tuple(self._devices[number] for number in sorted(self._present)))
        return self._inventory

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        number = self._numbers[slot.name]
        seconds = self._duration(job, slot) / self.workers[number].speed
        others: tuple[int, ...] = ()
        if slot.others:
            others = tuple(self._numbers[other.name] for other in slot.others)
            seconds = self._gang_seconds(job, (number, *others), self._duration(job, slot))
        if not 0 <= seconds < math.inf:
            raise HpoError(
                f"Simulation: trial {job.trial} to {job.target} takes {seconds} seconds; durations must be finite "
                "numbers from 0 on. Mend the workload."
            )
        dropped = False
        if self._faulty:
            seconds = self._faults.stretched(job, seconds)
            moment = self._faults.dropped_after(job)
            dropped = moment < seconds
            seconds = min(seconds, moment)
        attempt = Attempt(job, on_report, number, begin=self.clock.now, dropped=dropped)
        attempt.others = others
        self._attempts[job.trial, job.attempt] = attempt
        self._begin(attempt, slot, seconds)

    def _duration(self, job: Job, slot: Slot) -> float:
        """Seconds at speed 1."""
        return self._seconds(job)

    def _gang_seconds(self, job: Job, workers: Sequence[int], alone: float) -> float:
        """A gang is as fast as its slowest worker lets it be."""
        speedup = len(workers) if self._speedup is None else self._speedup(job)
        return alone / (speedup * min(self.workers[number].speed for number in workers))

    def _begin(self, attempt: Attempt, slot: Slot, seconds: float) -> None:
        self._end_at(attempt, self.clock.now + seconds)

    def _end_at(self, attempt: Attempt, time: float) -> None:
        attempt.end = time
        self._push(time, END, attempt)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        for key in attempts:
            if (attempt := self._attempts.get(key)) is not None:
                self._report(attempt, self._failure(attempt, Outcome.PREEMPTED, "cancelled"))

    def now(self) -> float:
        return self.clock.now

    def wait(self, inbox: Inbox, until: float) -> bool:
        if inbox.reports:
            return True
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, kind, _, what = heapq.heappop(heap)
            if kind == END:
                attempt: Attempt = what
                if time == attempt.end and self._attempts.get(attempt.job.key) is attempt:  # else lost or cancelled
                    self.clock.now = time
                    self._end(attempt)
                    return True
            else:
                self._advance(time)
                numbers = [what]
                while heap and heap[0][0] == time and heap[0][1] == kind:
                    numbers.append(heapq.heappop(heap)[3])
                self._change(kind, numbers)
                return True
        if until == math.inf:
            return False
        self.clock.now = max(self.clock.now, until)
        return True

    # Workers.

    def _push(self, time: float, kind: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, kind, self._count, what))

    def _advance(self, time: float) -> None:
        """Time passed, and the number of workers changes now."""
        self._offered += len(self._present) * (time - self._since)
        self._since = self.clock.now = time

    def _change(self, kind: int, numbers: Sequence[int]) -> None:
        self._inventory = None
        if kind == _JOIN:
            self._present.update(numbers)
            return
        self._present.difference_update(numbers)
        left = set(numbers)
        lost = [
            attempt for attempt in self._attempts.values() if not left.isdisjoint((attempt.worker, *attempt.others))
        ]
        for attempt in sorted(lost, key=lambda attempt: attempt.worker):
            name = self._devices[next(n for n in (attempt.worker, *attempt.others) if n in left)].name
            self._report(attempt, self._failure(attempt, Outcome.LOST, f"{name} left"))

    # Reports.

    def _end(self, attempt: Attempt) -> None:
        if attempt.dropped:
            outcome = Outcome.LOST if self._faults.drop == "retry" else Outcome.ERROR
            self._report(attempt, self._failure(attempt, outcome, "dropped"))
        else:
            self._report(attempt, self._result(attempt))

    def _report(self, attempt: Attempt, report: Report) -> None:
        del self._attempts[attempt.job.trial, attempt.job.attempt]
        seconds = (self.clock.now - attempt.begin) * (1 + len(attempt.others))
        self.busy_seconds += seconds
        if report.outcome not in (Outcome.COMPLETED, Outcome.DIVERGED):
            self.lost_seconds += seconds
        attempt.on_report(attempt.job, report)

    def _result(self, attempt: Attempt) -> Report:
        job = attempt.job
        metrics = self._train(job)
        if isinstance(metrics, Outcome):
            return self._failure(attempt, metrics, "simulated")
        finite = all(math.isfinite(metrics[name]) for name in self._objectives)
        checkpoint = None
        if self._checkpoints:
            parent = job.checkpoint.uri if job.checkpoint else None
            checkpoint = Checkpoint(checkpoint_path(job), "", job.target, 0, parent)
        return Report(
            trial=job.trial,
            attempt=job.attempt,
            outcome=Outcome.COMPLETED if finite else Outcome.DIVERGED,
            metrics=metrics,
            curve=tuple(self._curve(job)) if self._curve else (),
            checkpoint=checkpoint,
            worker=self._devices[attempt.worker].name,
            started=attempt.begin,
            ended=self.clock.now,
        )

    def _failure(self, attempt: Attempt, outcome: Outcome, message: str) -> Report:
        return Report(
            trial=attempt.job.trial,
            attempt=attempt.job.attempt,
            outcome=outcome,
            message=message,
            worker=self._devices[attempt.worker].name,
            started=attempt.begin,
            ended=self.clock.now,
        )
