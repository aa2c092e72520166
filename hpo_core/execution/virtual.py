"""Virtual executor: no threads, processes or waiting; jobs end when the virtual clock says so."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpo_core.checkpoints.storage import checkpoint_path
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.model import limits
from hpo_core.model.devices.inventory import Device, Inventory, Slot
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import shown
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Point, Report


class Worker(msgspec.Struct, frozen=True):
    """One job at a time."""

    speed: float = 1.0
    """A job of ``t`` seconds takes ``t / speed`` here."""
    joins: float = 0.0
    leaves: float = math.inf
    """Virtual seconds; a job that runs then is lost."""

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise SpecError(f"Simulated worker: speed = {self.speed} must be a number above 0.")
        if not 0 <= self.joins < self.leaves:
            raise SpecError(
                f"Simulated worker: joins = {self.joins} and leaves = {self.leaves} must ascend from 0; swap them, or "
                "drop one."
            )


def make_workers(
    count: int,
    *,
    speeds: Sequence[float] = (1.0,),
    joins: Sequence[tuple[int, float]] = (),
    leaves: Sequence[tuple[int, float]] = (),
) -> tuple[Worker, ...]:
    """A cluster of ``count`` workers that changes with time.

    Args:
        speeds: given to the workers in turn, by number.
        joins: (how many more, at which second).
        leaves: (how many fewer, at which second); those with the highest numbers go.

    Raises:
        SpecError: a number is out of range, or more leave than are there.

    >>> [w.speed for w in make_workers(3, speeds=[1, 2])]
    [1, 2, 1]
    >>> [(w.joins, w.leaves) for w in make_workers(1, joins=[(1, 5.0)], leaves=[(1, 9.0)])]
    [(0.0, inf), (5.0, 9.0)]
    """
    if count < 1:
        raise SpecError(f"Simulated cluster: workers = {count}; give at least 1.")
    if not speeds:
        raise SpecError("Simulated cluster: speeds is empty; give at least one number, or leave it out.")
    total = count + sum(many for many, _ in joins)
    if total > limits.SIMULATED_WORKERS:
        raise SpecError(
            f"Simulated cluster: {shown(total)} workers, and at most {limits.SIMULATED_WORKERS:,} are simulated; "
            "give fewer."
        )
    comes = [0.0] * count
    goes = [math.inf] * count
    changes = [(at, 0, many) for many, at in joins] + [(at, 1, many) for many, at in leaves]
    for at, leaving, many in sorted(changes):
        if many < 1 or not 0 <= at < math.inf:
            raise SpecError(f"Simulated cluster: {many} workers at second {at}; give at least 1, from second 0 on.")
        if not leaving:
            comes += [at] * many
            goes += [math.inf] * many
            continue
        there = [n for n in range(len(comes)) if comes[n] < at and goes[n] == math.inf]
        if many > len(there):
            raise SpecError(f"Simulated cluster: {many} workers leave at second {at}, and only {len(there)} are there.")
        for n in there[-many:]:
            goes[n] = at
    return tuple(Worker(speeds[n % len(speeds)], comes[n], goes[n]) for n in range(len(comes)))


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults to inject. All draws are keyed by (seed, trial, attempt), so a run repeats exactly.

    The paper does not say what becomes of a dropped job. ``retry`` is what this system does with a worker that dies:
    noticed at that moment (:attr:`~hpo_core.model.trial.Outcome.LOST`), the job is granted again before all others and
    starts from its last checkpoint. ``abandon`` is the harsher reading: the trial is abandoned with its job
    (:attr:`~hpo_core.model.trial.Outcome.ERROR`), and ranks last in the rung it was heading for.
    """

    stragglers: float = 0.0
    """Durations are multiplied by ``1 + |z|``, ``z`` normal with this standard deviation."""
    drops: float = 0.0
    """Probability that a job is dropped, in each time unit that it runs."""
    time_unit: float = 1.0
    """Seconds of a time unit; in the paper, what one unit of resource takes."""
    drop: str = "retry"
    """``retry`` or ``abandon``."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, rule, good in (
            ("stragglers", self.stragglers, "be a standard deviation, 0 or more", 0 <= self.stragglers < math.inf),
            ("drops", self.drops, "be a probability from 0 to below 1", 0 <= self.drops < 1),
            ("time_unit", self.time_unit, "be a number of seconds above 0", 0 < self.time_unit < math.inf),
            ("drop", self.drop, "be 'retry' or 'abandon'", self.drop in ("retry", "abandon")),
        ):
            if not good:
                raise SpecError(f"Simulated faults: {name} = {value!r} must {rule}.")

    def stretched(self, job: Job, seconds: float) -> float:
        if not self.stragglers:
            return seconds
        z = Stream(self.seed, f"straggler/{job.trial}", job.attempt).normal()
        return seconds * (1.0 + abs(self.stragglers * z))

    def dropped_after(self, job: Job) -> float:
        """Seconds after its start at which the attempt is dropped, if it still runs then.

        Exponential: a job that runs ``t`` time units survives with probability ``(1 - drops) ** t``, whole or not.
        """
        if not self.drops:
            return math.inf
        u = Stream(self.seed, f"drop/{job.trial}", job.attempt).uniform()
        return self.time_unit * math.log1p(-u) / math.log1p(-self.drops)


NO_FAULTS = Faults()


END, _JOIN, _LEAVE = range(3)


class VirtualClock:
    """Time as data; give it to :class:`~hpo_core.study.Study` as its clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True, eq=False)
class VirtualAttempt:
    """A job on a worker."""

    job: Job
    on_report: OnReport
    worker: int
    others: tuple[int, ...]
    """Workers of the other ranks of a gang."""
    begin: float
    dropped: bool
    end: float = math.inf
    """Time of its end, as far as is known now."""


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
        join_seconds: how long a worker takes to come that is asked for (:meth:`follow`).
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
        join_seconds: Callable[[], float] = lambda: 0.0,
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
        self._attempts: dict[tuple[int, int], VirtualAttempt] = {}
        self._join_seconds = join_seconds
        self._demand: Callable[[int], int] | None = None
        self._least = 0
        self._coming: set[int] = set()
        """Workers that were asked for."""
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

    def follow(self, demand: Callable[[int], int], least: int) -> None:
        """Have as many workers from now on as are of use: idle ones go at once, others come in their time.

        Args:
            demand: slots that the study could use now, counted up to a number.
            least: workers that stay.
        """
        self._demand, self._least = demand, least
        self._change(_LEAVE, sorted(self._present)[least:])

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
        if self._inventory is None:
            self._inventory = Inventory(tuple(self._devices[number] for number in sorted(self._present)))
        return self._inventory

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        number, *others = (self._numbers[rank.name] for rank in slot.ranks)
        seconds = self._duration(job, slot)
        if others:  # a gang is as fast as its slowest worker lets it be
            speedup = len(slot.ranks) if self._speedup is None else self._speedup(job)
            seconds /= speedup * min(self.workers[rank].speed for rank in (number, *others))
        else:
            seconds /= self.workers[number].speed
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
        attempt = VirtualAttempt(job, on_report, number, tuple(others), self.clock.now, dropped)
        self._attempts[job.trial, job.attempt] = attempt
        self._begin(attempt, slot, seconds)

    def _duration(self, job: Job, slot: Slot) -> float:
        return self._seconds(job)

    def _begin(self, attempt: VirtualAttempt, slot: Slot, seconds: float) -> None:
        attempt.end = self.clock.now + seconds
        self._push(attempt.end, END, attempt)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        for key in attempts:
            if (attempt := self._attempts.get(key)) is not None:
                self._report(attempt, self._failure(attempt, Outcome.PREEMPTED, "cancelled"))

    def now(self) -> float:
        return self.clock.now

    def wait(self, inbox: Inbox, until: float) -> bool:
        if inbox.reports:
            return True
        if self._demand is not None and self._fit_demand(self._demand(len(self.workers))):
            return True
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, kind, _, what = heapq.heappop(heap)
            if kind == END:
                attempt: VirtualAttempt = what
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
        self._offered += len(self._present) * (time - self._since)
        self._since = self.clock.now = time

    def _fit_demand(self, demand: int) -> bool:
        # Let idle workers go and ask for others; returns whether the workers that are there changed.
        wanted, there = max(self._least, demand), len(self._present)
        if there > wanted:
            busy = {attempt.worker for attempt in self._attempts.values()}
            idle = sorted(self._present - busy, reverse=True)[: there - wanted]
            self._advance(self.clock.now)
            self._change(_LEAVE, idle)
            return bool(idle)
        if (missing := wanted - there - len(self._coming)) > 0:
            known = self._present | self._coming
            away = (number for number in range(len(self.workers)) if number not in known)
            for number in list(itertools.islice(away, missing)):
                self._coming.add(number)
                self._push(self.clock.now + self._join_seconds(), _JOIN, number)
        return False

    def _change(self, kind: int, numbers: Sequence[int]) -> None:
        self._inventory = None
        if kind == _JOIN:
            self._present.update(numbers)
            self._coming.difference_update(numbers)
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

    def _end(self, attempt: VirtualAttempt) -> None:
        if attempt.dropped:
            outcome = Outcome.LOST if self._faults.drop == "retry" else Outcome.ERROR
            self._report(attempt, self._failure(attempt, outcome, "dropped"))
        else:
            self._report(attempt, self._result(attempt))

    def _report(self, attempt: VirtualAttempt, report: Report) -> None:
        del self._attempts[attempt.job.trial, attempt.job.attempt]
        seconds = (self.clock.now - attempt.begin) * (1 + len(attempt.others))
        self.busy_seconds += seconds
        if report.outcome not in (Outcome.COMPLETED, Outcome.DIVERGED):
            self.lost_seconds += seconds
        attempt.on_report(attempt.job, report)

    def _result(self, attempt: VirtualAttempt) -> Report:
        job = attempt.job
        metrics = self._train(job)
        if isinstance(metrics, Outcome):
            return self._failure(attempt, metrics, "simulated")
        finite = all(math.isfinite(metrics[name]) for name in self._objectives)
        checkpoint = None
        if self._checkpoints:
            parent = job.checkpoint.uri if job.checkpoint else None
            checkpoint = Checkpoint(checkpoint_path(job), "", job.target, 0, parent)
        return self._ended(
            attempt,
            Outcome.COMPLETED if finite else Outcome.DIVERGED,
            metrics=metrics,
            curve=tuple(self._curve(job)) if self._curve else (),
            checkpoint=checkpoint,
        )

    def _failure(self, attempt: VirtualAttempt, outcome: Outcome, message: str) -> Report:
        return self._ended(attempt, outcome, message=message)

    def _ended(self, attempt: VirtualAttempt, outcome: Outcome, **facts: Any) -> Report:
        return Report(
            trial=attempt.job.trial,
            attempt=attempt.job.attempt,
            outcome=outcome,
            worker=self._devices[attempt.worker].name,
            started=attempt.begin,
            ended=self.clock.now,
            **facts,
        )
