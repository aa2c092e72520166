"""PooledUnits: units of training on the workers that their study holds in a pool."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from hpo_core.execution.by_name.worker_holding import WorkerHolding
from hpo_core.execution.by_name.worker_slots import KIND, PATIENCE_SECONDS, slots_of
from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.hopping.unit_executor import UnitExecutor
from hpo_core.execution.pool_seat import EXCHANGE_SECONDS, Claimant, PoolSeat, Terms
from hpo_core.journal.pools import Pools
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.study import Study

HANDOVER_SECONDS = 1.0
"""So long before a unit ends its worker may be offered to others: until then they have begun to give up another one."""

_Key = tuple[int, int, int]
"""(trial, attempt, number of the unit)."""


class HoppingClaim:
    """What a study whose models hop could use: a worker for each model, of those where its partitions lie.

    Args:
        study: says how many models could train.
        concurrent: models at once, where the study says so.
    """

    def __init__(self, study: Claimant, concurrent: int | None = None) -> None:
        self._study = study
        self._concurrent = concurrent
        self.sizes: list[int] = []
        """Slots of each worker that holds some partition of the study, the largest first."""

    @property
    def job_slots(self) -> int:
        """Slots of a worker; of the largest, where they differ."""
        return max(self.sizes, default=1)

    def demand(self, most: int) -> int:
        models = self._study.demand(len(self.sizes))
        if self._concurrent is not None:
            models = min(models, self._concurrent)
        return min(most, sum(self.sizes[:models]))

    def spare(self, most: int) -> int:
        return 0


class _Running(NamedTuple):
    job: Job
    worker: str
    began: float


class PooledUnits:
    """Runs units on another executor, on workers that the study holds: all of their slots, one unit at a time.

    Workers that it does not hold, or is to give back, are there without partitions: a unit in flight there goes on, and
    none begins. A worker is held while a unit runs there.

    Args:
        inner: runs the units; its clock tells the time.
        seat: of the study in its pool.
        holding: of the seat.
        claim: of the seat.
        threads: by name of a worker that is there: its slots.
    """

    def __init__(
        self,
        inner: UnitExecutor,
        seat: PoolSeat,
        *,
        holding: WorkerHolding,
        claim: HoppingClaim,
        threads: Callable[[], Mapping[str, int]],
    ) -> None:
        self.poll_seconds = min(inner.poll_seconds, EXCHANGE_SECONDS)
        self.seat = seat
        self.useful: Callable[[Mapping[str, Iterable[str]]], list[str]] = lambda holdings: []
        self._inner = inner
        self._holding = holding
        self._claim = claim
        self._threads = threads
        self._lock = threading.RLock()
        self._slots: dict[str, tuple[str, ...]] = {}
        """By worker that is there."""
        self._running: dict[_Key, _Running] = {}
        """The oldest first."""
        self._withdrawn: set[_Key] = set()
        """Units that another study's claim ended, or kept from beginning, until they are reported."""
        self._spared: set[int] = set()
        """Trials of which a unit was ended for another study, until one completes: else two studies that may preempt
        could end each other's units for ever."""
        self._lasts: float | None = None
        """Seconds of a unit, the latest ones above all; None: none has ended yet."""
        self._inbox: Inbox | None = None
        self._kept: frozenset[str] | None = None
        """While the pool is looked at: workers that stay held, for a unit runs there."""
        self._deferred: list[tuple[Job, Slot, OnReport]] = []
        """Units for other workers meanwhile."""

    # What the hopping executor asks of a pool.

    def elsewhere(self) -> Collection[str]:
        absent = self._slots.keys() - self._open()
        holdings = self._inner.holdings()
        return {name for worker in absent for name in holdings.get(worker, ())}

    def workers_due(self) -> int:
        position, slots = self.seat.position, sum(self._claim.sizes)
        return 0 if position is None or not slots else -(-position.share * len(self._claim.sizes) // slots)

    def is_withdrawn(self, unit: Job) -> bool:
        with self._lock:
            key = _key(unit)
            is_so = key in self._withdrawn
            self._withdrawn.discard(key)
            return is_so

    # What it asks of its executor of units.

    def inventory(self) -> Inventory:
        """All workers that are there."""
        inventory = self._inner.inventory()
        threads = self._threads()
        self._slots = {device.name: slots_of(device.name, threads.get(device.name, 1)) for device in inventory.devices}
        self._exchange(sum(threads.values()))
        return inventory

    def holdings(self) -> Mapping[str, Iterable[str]]:
        """Partitions of the workers on which units may begin; of the others, none."""
        opened = self._open()
        return {worker: names if worker in opened else () for worker, names in self._inner.holdings().items()}

    def announcing(self) -> bool:
        return self._inner.announcing()

    def problems(self) -> Mapping[str, str]:
        return self._inner.problems()

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a unit, if its worker is held; else it is reported lost, and withdrawn."""
        with self._lock:
            if self._kept is not None and slot.name not in self._kept:
                self._deferred.append((job, slot, on_report))  # its worker may be given back at this moment
                return
            may_begin = slot.name in self._open()
            if may_begin:
                self._running[_key(job)] = _Running(job, slot.name, self.now())
            else:
                self._withdrawn.add(_key(job))
        if may_begin:
            self._start(job, slot, on_report)
        else:
            why = f"{slot.name} went to another study of pool {self.seat.terms.pool} before the unit began"
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.LOST, message=why))

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        self._inner.cancel(attempts)

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        self._inbox = inbox
        return self._inner.wait(inbox, until)

    # The pool.

    def _open(self) -> set[str]:
        """Workers on which units may begin."""
        if not self.seat.is_fresh(self.now()):
            return set()
        names = set(self._holding.open_of(self.seat.mine, self.now()))
        return {worker for worker, slots in self._slots.items() if names.issuperset(slots)}

    def _exchange(self, seen: int) -> None:
        holdings = {worker: tuple(names) for worker, names in self._inner.holdings().items() if worker in self._slots}
        self._claim.sizes = sorted(
            (len(self._slots[worker]) for worker, names in holdings.items() if names), reverse=True
        )
        useful = self.useful(holdings)  # outside of the lock: the caller's is taken first
        wanted_by_others = {name for other in self.seat.others for name in other.wants}
        mine = set(self.seat.mine.devices)
        with self._lock:
            used = list(dict.fromkeys(reversed([each.worker for each in self._running.values()])))[::-1]
            lasts, now = math.inf if self._lasts is None else self._lasts, self.now()
            ending = {each.worker for each in self._running.values() if each.began + lasts <= now + HANDOVER_SECONDS}
            self._kept = frozenset(used)
        try:
            usable = useful or [worker for worker in holdings if mine.issuperset(self._slots[worker])
                                and wanted_by_others.isdisjoint(self._slots[worker])]  # fmt: skip
            known = self._slots
            self._holding.note_workers(
                [known[worker] for worker in usable],
                there=known.values(),
                used=[known[worker] for worker in used if worker in known],
                ending=[known[worker] for worker in ending if worker in known],
            )
            busy = sum(len(known.get(worker, ())) for worker in used)
            # what it could use is known, so that an idle worker is no sign that it claims too much
            self.seat.exchange(self.now(), seen=seen, used=busy, busy=max(busy, self.seat.allowed(self.now())))
        finally:
            with self._lock:
                self._kept = None
                deferred, self._deferred = self._deferred, []
        for job, slot, on_report in deferred:
            self.submit(job, slot, on_report)
        self._preempt()

    def _start(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        key = _key(job)

        def reported(unit: Job, report: Report) -> None:
            with self._lock:
                self._running.pop(key, None)
                if report.outcome is Outcome.COMPLETED:
                    self._spared.discard(job.trial)
                    seconds = max(0.0, report.ended - report.started)
                    self._lasts = seconds if self._lasts is None else (self._lasts + seconds) / 2
                if report.outcome is not Outcome.PREEMPTED:
                    self._withdrawn.discard(key)  # it ended by itself before
                if slot.name not in self._open():
                    self.seat.look_soon()
                    if self._inbox is not None:
                        self._inbox.wake()  # the end of a unit is no report to the loop
            on_report(unit, report)

        try:
            self._inner.submit(job, slot, reported)
        except BaseException:
            with self._lock:
                self._running.pop(key, None)
            raise

    def _preempt(self) -> None:
        """End the youngest unit on a worker that is to be given back, where another study has waited long enough."""
        position = self.seat.position
        is_over = position is not None and self.seat.mine.held > position.share
        if not is_over or not any(other.asks for other in self.seat.others):
            return
        opened = self._open()
        with self._lock:
            if any(key in self._withdrawn for key in self._running):
                return
            for key, each in reversed(self._running.items()):
                if each.worker not in opened and each.job.trial not in self._spared:
                    self._withdrawn.add(key)
                    self._spared.add(each.job.trial)
                    break
            else:
                return
        self._inner.cancel([each.job.key])


def join_workers(
    inner: UnitExecutor, study: Study, *, pools: Pools, terms: Terms, threads: Callable[[], Mapping[str, int]]
) -> PooledUnits:
    """The executor of units, on the workers that the study holds in its pool from now on."""
    data = study.spec.data
    assert data is not None
    holding, claim = WorkerHolding(KIND, patience=PATIENCE_SECONDS), HoppingClaim(study, data.concurrent)
    return PooledUnits(inner, PoolSeat(pools, terms, claim, holding), holding=holding, claim=claim, threads=threads)


def _key(job: Job) -> _Key:
    assert job.unit is not None
    return job.trial, job.attempt, job.unit.number
