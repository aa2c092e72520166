"""An executor without threads, processes or waiting: jobs end when the virtual clock says so."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpo_core.execution.faults import NO_FAULTS, Faults
from hpo_core.execution.virtual_workers import Worker, make_workers
from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Point, Report
from hpo_core.study import Study

_END, _JOIN, _LEAVE, _TICK = range(4)


class VirtualClock:
    """Time as data; give it to :class:`~hpo_core.study.Study` as its clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Attempt:
    """A job on a worker."""

    __slots__ = ("begin", "dropped", "job", "worker")

    def __init__(self, job: Job, worker: int, begin: float, dropped: bool) -> None:
        self.job = job
        self.worker = worker
        self.begin = begin
        self.dropped = dropped


class SimulatedExecutor:
    """Runs a study's jobs on virtual workers.

    What happens at one moment happens in this order: jobs end (in the order in which they began), workers join,
    workers leave, the study's own stop rules look at the clock. A granted job goes to the free worker with the
    lowest number. When a worker leaves, the study first learns of the smaller capacity, then of the lost job.

    Args:
        study: its clock must be ``clock``.
        clock: moved forward by :meth:`run`.
        workers: how many of speed 1, or each one.
        train: what training a job gives: metrics at its target, or an outcome other than completed.
        seconds: virtual duration of a job on a worker of speed 1.
        curve: metrics on the way to the target, for methods that read curves (``study.method.reads_curves``).
        checkpoints: whether results carry a (made up) checkpoint, so that later jobs resume.
        faults: stragglers and drops.
    """

    def __init__(
        self,
        study: Study,
        clock: VirtualClock,
        *,
        workers: int | Sequence[Worker],
        train: Callable[[Job], Metrics | Outcome],
        seconds: Callable[[Job], float],
        curve: Callable[[Job], Sequence[Point]] | None = None,
        checkpoints: bool = True,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.study = study
        self.clock = clock
        self.workers = make_workers(workers) if isinstance(workers, int) else tuple(workers)
        self._train = train
        self._seconds = seconds
        self._curve = curve
        self._checkpoints = checkpoints
        self._faults = faults
        self._faulty = faults.stragglers > 0 or faults.drops > 0
        self._names = [f"worker-{number}" for number in range(len(self.workers))]
        self._objectives = [metric.name for metric in study.spec.objectives]
        self._heap: list[tuple[float, int, int, Any]] = []
        self._count = 0
        self._present: set[int] = set()
        self._idle: list[int] = []
        self._attempts: dict[int, _Attempt] = {}  # by worker
        self._queue: deque[Job] = deque()
        self._ticks = False
        self._since = clock.now
        self._offered = 0.0
        self.busy_seconds = 0.0
        """Time in which workers ran attempts, good or bad."""
        self.lost_seconds = 0.0
        """Part of it that ended without a result."""
        for number, worker in enumerate(self.workers):
            if worker.joins <= clock.now < worker.leaves:
                self._enter(number)
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
        running = math.fsum(self.clock.now - attempt.begin for attempt in self._attempts.values())
        return (self.busy_seconds + running) / self.offered_seconds if self.offered_seconds else 0.0

    def run(self, until: float = math.inf, max_reports: int | None = None) -> None:
        """Go on until the study has nothing to run, ``until`` virtual seconds, or so many reports.

        Ends early, with the study open, where the last worker left.
        """
        self._reconcile()
        heap = self._heap
        reports = 0
        while heap and heap[0][0] <= until and (max_reports is None or reports < max_reports):
            if not self._attempts and (self.study.state.halted is not None or self.study.finished):
                return
            time, kind, _, what = heapq.heappop(heap)
            if kind == _END:
                attempt: _Attempt = what
                if self._attempts.get(attempt.worker) is attempt:  # else it was lost or cancelled
                    self.clock.now = time
                    self._end(attempt)
                    reports += 1
            elif kind == _TICK:
                self.clock.now = time
                self._ticks = False
                self.study.tick()
                self._cancel()
                self._plan_tick()
            else:
                self._advance(time)
                numbers = [what]
                while heap and heap[0][0] == time and heap[0][1] == kind:
                    numbers.append(heapq.heappop(heap)[3])
                if kind == _JOIN:
                    for number in numbers:
                        self._enter(number)
                    self._start(self.study.set_capacity(len(self._present)))
                else:
                    self._leave(numbers)

    # The cluster.

    def _push(self, time: float, kind: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, kind, self._count, what))

    def _advance(self, time: float) -> None:
        """Time passed, and the number of workers changes now."""
        self._offered += len(self._present) * (time - self._since)
        self._since = self.clock.now = time

    def _enter(self, number: int) -> None:
        self._present.add(number)
        heapq.heappush(self._idle, number)

    def _leave(self, numbers: Sequence[int]) -> None:
        self._present.difference_update(numbers)
        self._start(self.study.set_capacity(len(self._present)))
        for number in numbers:
            attempt = self._attempts.get(number)
            if attempt is not None:
                self._tell(attempt, self._failure(attempt.job, Outcome.LOST, f"{self._names[number]} left", attempt))

    def _free(self) -> int | None:
        """The free worker with the lowest number."""
        while self._idle:
            number = heapq.heappop(self._idle)
            if number in self._present:
                return number
        return None

    # Jobs.

    def _reconcile(self) -> None:
        """Make the workers do what the study wants, whatever happened to it since the last run."""
        state = self.study.state
        self.study.set_capacity(len(self._present))
        current = {(grant.trial, grant.attempt) for grant in state.running.values()}
        for attempt in list(self._attempts.values()):
            key = attempt.job.trial, attempt.job.attempt
            if key in current:
                current.remove(key)
            else:  # a report by hand, or a new controller, was quicker
                self._release(attempt)
        self._queue.clear()
        if current:
            self._start(job for job in state.wanted() if (job.trial, job.attempt) in current)
        self._plan_tick()

    def _start(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            number = self._free()
            if number is None:  # the study was handed over with more jobs than there are workers
                self._queue.append(job)
                continue
            begin = self.clock.now
            seconds = self._seconds(job) / self.workers[number].speed
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
            attempt = self._attempts[number] = _Attempt(job, number, begin, dropped)
            self._count += 1
            heapq.heappush(self._heap, (begin + seconds, _END, self._count, attempt))

    def _end(self, attempt: _Attempt) -> None:
        if attempt.dropped:
            outcome = Outcome.LOST if self._faults.drop == "retry" else Outcome.ERROR
            self._tell(attempt, self._failure(attempt.job, outcome, "dropped", attempt))
        else:
            self._tell(attempt, self._result(attempt))

    def _release(self, attempt: _Attempt, *, lost: bool = True) -> None:
        del self._attempts[attempt.worker]
        seconds = self.clock.now - attempt.begin
        self.busy_seconds += seconds
        if lost:
            self.lost_seconds += seconds
        if attempt.worker in self._present:
            heapq.heappush(self._idle, attempt.worker)

    def _tell(self, attempt: _Attempt, report: Report) -> None:
        self._release(attempt, lost=report.outcome not in (Outcome.COMPLETED, Outcome.DIVERGED))
        if self._queue:
            self._start([self._queue.popleft()])
        self._start(self.study.tell_report(report))
        self._cancel()

    def _cancel(self) -> None:
        """Running jobs end where a stop rule is met and the study wants that."""
        halted = self.study.state.halted
        if halted is None or not self.study.to_cancel():
            return
        running = {attempt.job.trial: attempt for attempt in self._attempts.values()}
        self._queue.clear()
        for job in self.study.state.wanted():
            attempt = running.get(job.trial)
            if attempt is not None:  # else it waited for a worker
                self._release(attempt)
            self.study.tell_report(self._failure(job, Outcome.PREEMPTED, halted.reason, attempt))

    def _plan_tick(self) -> None:
        """Look at the clock when ``stop.seconds`` are over."""
        limit = self.study.spec.stop.seconds
        if limit is None or self._ticks or self.study.state.halted is not None:
            return
        left = limit - self.study.rules.seconds_at(self.clock.now)
        self._ticks = True
        self._push(max(self.clock.now + left, math.nextafter(self.clock.now, math.inf)), _TICK, None)

    # Reports.

    def _result(self, attempt: _Attempt) -> Report:
        job = attempt.job
        metrics = self._train(job)
        if isinstance(metrics, Outcome):
            return self._failure(job, metrics, "simulated", attempt)
        finite = all(math.isfinite(metrics[name]) for name in self._objectives)
        checkpoint = None
        if self._checkpoints:
            uri = f"checkpoints/trial-{job.trial:05d}/rung-{job.rung}-attempt-{job.attempt}"
            checkpoint = Checkpoint(uri, "", job.target, 0, job.checkpoint.uri if job.checkpoint else None)
        return Report(
            trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED if finite else Outcome.DIVERGED,
            metrics=metrics, curve=tuple(self._curve(job)) if self._curve else (), checkpoint=checkpoint,
            worker=self._names[attempt.worker], started=attempt.begin, ended=self.clock.now,
        )  # fmt: skip

    def _failure(self, job: Job, outcome: Outcome, message: str, attempt: _Attempt | None) -> Report:
        return Report(
            trial=job.trial, attempt=job.attempt, outcome=outcome, message=message,
            worker="" if attempt is None else self._names[attempt.worker],
            started=self.clock.now if attempt is None else attempt.begin, ended=self.clock.now,
        )  # fmt: skip
