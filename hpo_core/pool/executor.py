"""PooledExecutor: an executor that offers what its study holds in a pool, over any other executor.

It lies below the placer, so that each slot counts once, whatever runs there. What differs between studies whose jobs
take slots, share devices or hop from worker to worker is in :class:`Places`: what the names of the pool are here.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpo_core.execution.executor import Executor, Inbox, OnReport
from hpo_core.model.devices.inventory import Capacity, Device, Inventory, Slot
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.placer import Placer
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.pool.arbiter import longest_asking
from hpo_core.pool.seat import (
    COUNTED,
    DEVICES,
    EXCHANGE_SECONDS,
    HOPPED_WORKERS,
    WORKERS,
    Claimant,
    Kind,
    PoolSeat,
    Terms,
    Use,
)
from hpo_core.pool.store import Pools
from hpo_core.study import Study

MOST_JOBS = 10_000
"""Largest number of jobs of a packed study that are counted for its demand."""


class Submitted(NamedTuple):
    """A job as it was submitted, with the names that it takes; none while it waits for any that will do."""

    job: Job
    slot: Slot
    on_report: OnReport
    names: Collection[str] = ()


class Places:
    """Slots of workers that the study has for itself: each counts, and its name is a number."""

    kind: Kind = COUNTED

    def see(self, inventory: Inventory) -> int:
        """Note what is there; returns how many names that is."""
        return inventory.slots

    def usable(self) -> Sequence[str]:
        """Names that the study could use now, preferred ones first; none where slots are only counted."""
        return ()

    def of(self, slot: Slot) -> tuple[str, ...]:
        """Names of a placed job; none: they are chosen when it begins."""
        return ()

    def count(self, slots: int) -> int:
        """Number of names that so many slots take."""
        return slots

    def chosen(self, each: Submitted, begin: Collection[str], running: Collection[Submitted]) -> Submitted | None:
        """The job with its slot and names; None: there is no room for it.

        Args:
            begin: names on which jobs may begin.
            running: jobs that run.
        """
        free = sorted(set(begin).difference(*(one.names for one in running)))
        slots = each.job.demand.slots
        return each._replace(names=free[:slots]) if slots <= len(free) else None

    def offered(self, inventory: Inventory, begin: Collection[str], running: Collection[Submitted]) -> Inventory:
        """The inventory as far as jobs may run there."""
        return _first_slots(inventory, len(begin))


class SlotPlaces(Places):
    """Workers that all studies of the pool use. Which of its slots a job gets is chosen when it begins.

    Args:
        study: says how many slots it could use.
        threads: by name of a worker that is there: its slots.
    """

    kind = WORKERS

    def __init__(self, study: Claimant, threads: Callable[[], Mapping[str, int]]) -> None:
        self.study = study
        self._threads = threads
        self._sizes: list[int] = []

    def count(self, slots: int) -> int:
        """Number of workers that hold so many slots, whichever they are; no more than there are."""
        sums = itertools.accumulate(self._sizes)
        return min(len(self._sizes), sum(below < slots for below in sums) + 1) if slots else 0

    @property
    def job_slots(self) -> int:
        return max(1, self.count(self.study.job_slots))

    def demand(self, most: int) -> int:
        return min(most, self.count(self.study.demand(sum(self._sizes))))

    def spare(self, most: int) -> int:
        return min(most, self.count(self.study.spare(sum(self._sizes))))

    def see(self, inventory: Inventory) -> int:
        self._sizes = sorted(self._threads().values())
        return len(self._sizes)

    def usable(self) -> Sequence[str]:
        return sorted(self._threads())

    def chosen(self, each: Submitted, begin: Collection[str], running: Collection[Submitted]) -> Submitted | None:
        taken = {(rank.name, rank.number) for one in running for rank in one.slot.ranks}
        load = Counter(worker for worker, _ in taken)
        threads, slots = self._threads(), each.job.demand.slots
        free = [
            (worker, number)
            for worker in sorted(begin, key=lambda worker: (-load[worker], worker))
            for number in range(threads.get(worker, 0))
            if (worker, number) not in taken
        ][:slots]
        if len(free) < slots:
            return None
        ranks = [Slot(each.slot.device, number, worker, each.slot.portion) for worker, number in free]
        names = list(dict.fromkeys(worker for worker, _ in free))
        return each._replace(slot=ranks[0]._replace(others=tuple(ranks[1:])), names=names)

    def offered(self, inventory: Inventory, begin: Collection[str], running: Collection[Submitted]) -> Inventory:
        threads = self._threads()
        leaving = [rank for one in running for rank in one.slot.ranks if rank.name not in begin]
        return _first_slots(inventory, sum(threads.get(worker, 0) for worker in begin) + len(leaving))


class DevicePlaces(Places):
    """Devices that the study holds whole, and on which it packs its jobs as it likes; says how many it claims.

    Args:
        study: says how many jobs it could run.
        devices_for: by number of jobs: the devices that these would fill, at most.
        jobs_each: largest number of jobs on a device.
    """

    kind = DEVICES
    job_slots = 1

    def __init__(self, study: Claimant, devices_for: Callable[[int], int], jobs_each: int) -> None:
        self.study = study
        self._devices_for = devices_for
        self._jobs_each = jobs_each
        self._names: dict[str, str] = {}
        """By name of a device here: what all studies of the pool know it by."""
        self._there: list[str] = []

    def demand(self, most: int) -> int:
        """Devices that it could use now, counted up to ``most``: an upper bound.

        Those on which jobs run, and those that all jobs would fill which it granted or could grant. Where fewer are
        used, for example because waiting jobs find room beside those that run, the pool notices that, and it claims
        less for a while.
        """
        jobs = self.study.demand(min(MOST_JOBS, most * self._jobs_each))
        return min(most, self._devices_for(jobs)) if jobs else 0

    def spare(self, most: int) -> int:
        return 0

    def see(self, inventory: Inventory) -> int:
        self._names |= {device.name: pool_name(device) for device in inventory.devices}
        self._there = [self._names[device.name] for device in inventory.devices]
        return len(self._there)

    def usable(self) -> Sequence[str]:
        return self._there

    def of(self, slot: Slot) -> tuple[str, ...]:
        return tuple({self._names.get(rank.name, rank.name): None for rank in slot.ranks})

    def offered(self, inventory: Inventory, begin: Collection[str], running: Collection[Submitted]) -> Inventory:
        return _without_slots(inventory, lambda device: self._names[device.name] in begin)


class WorkerPlaces(Places):
    """Workers on which models of the study train in turn: each with all of its slots, one unit at a time.

    Args:
        study: says how many models could train.
        concurrent: most models at once; None: as many as there are workers.
    """

    kind = HOPPED_WORKERS
    job_slots = 1

    def __init__(self, study: Claimant, concurrent: int | None = None) -> None:
        self.study = study
        self._concurrent = concurrent
        self.useful: Callable[[Mapping[str, Iterable[str]]], list[str]] = lambda holdings: []
        """Says which workers have work for the study now."""
        self._holdings: dict[str, frozenset[str]] = {}
        """By worker that is there: names of the partitions that lie there; not those without any."""

    def demand(self, most: int) -> int:
        models = self.study.demand(len(self._holdings))
        return min(most, models, len(self._holdings) if self._concurrent is None else self._concurrent)

    def spare(self, most: int) -> int:
        return 0

    def see(self, inventory: Inventory) -> int:
        self._holdings = {
            device.name: device.partitions.names for device in inventory.devices if device.partitions.names
        }
        return inventory.workers

    def usable(self) -> Sequence[str]:
        return self.useful(self._holdings) or list(self._holdings)

    def of(self, slot: Slot) -> tuple[str, ...]:
        return tuple(rank.name for rank in slot.ranks)

    def offered(self, inventory: Inventory, begin: Collection[str], running: Collection[Submitted]) -> Inventory:
        return _without_slots(inventory, lambda device: device.name in begin)


class PooledExecutor:
    """Runs jobs on another executor, on what the study holds in a pool.

    A job whose slot was chosen by the placer begins there, if the study still holds it; else it is reported PREEMPTED.
    Where any slot will do, a job waits until one is held: the share may have shrunk since it was granted.

    Args:
        inner: runs the jobs; its clock tells the time.
        seat: the study's place in its pool.
        places: what the names of the pool are here.
    """

    def __init__(self, inner: Executor, seat: PoolSeat, places: Places) -> None:
        self.poll_seconds = min(inner.poll_seconds, EXCHANGE_SECONDS)
        self.seat = seat
        self.places = places
        self._inner = inner
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._running: dict[int, Submitted] = {}
        """By number of its submission: what the executor runs. The oldest first."""
        self._waiting: dict[int, Submitted] = {}
        """By number of its submission: what waits until something is held for it."""
        self._preempted: dict[int, str] = {}
        """By number of a submission that is ended for another study: why."""
        self._spared: set[int] = set()
        """Trials of which an attempt was ended for another study, until one completes: else two studies that may
        preempt, with jobs longer than they wait, would end each other's for ever."""
        self._seen = 0
        self._most = 0
        """Largest number of names that were used or waited for at once since the last look."""
        self._kept: frozenset[str] | None = None
        """While the pool is looked at: names on which jobs run. On others none begins, for they may be given back."""
        self._inbox: Inbox | None = None

    def _count(self) -> int:
        submitted = [*self._running.values(), *self._waiting.values()]
        slots = sum(each.job.demand.slots for each in submitted if not self.places.of(each.slot))
        return max(len(_names_of(submitted)), self.places.count(slots))

    # What the loop asks.

    def inventory(self) -> Inventory:
        """The inner executor's devices, as far as jobs of the study may run there."""
        inventory = self._inner.inventory()
        self._seen = self.places.see(inventory)
        self._exchange()
        now = self.now()
        with self._lock:
            running = list(self._running.values()) if self.seat.is_fresh(now) else []
        return self.places.offered(inventory, self.seat.open(now), running)

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job, or keep it until something is held for it."""
        with self._lock:
            self._waiting[next(self._numbers)] = Submitted(job, slot, on_report, self.places.of(slot))
            self._most = max(self._most, self._count())
        self._start_waiting()

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys = set(attempts)
        dropped = self._drop(
            lambda each: each.job.key in keys, "The attempt was ended while it waited for a slot of the pool."
        )
        self._inner.cancel(sorted(keys.difference(dropped)))

    def _drop(self, goes: Callable[[Submitted], bool], message: str) -> set[tuple[int, int]]:
        with self._lock:
            dropped = [number for number, each in self._waiting.items() if goes(each)]
            gone = [self._waiting.pop(number) for number in dropped]
        for job, _, on_report, _ in gone:
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED, message=message))
        return {each.job.key for each in gone}

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Give what an ended job left to the next that waits, or to another study, at once: else it idles a second."""
        self._inbox = inbox
        if self.places.kind is not HOPPED_WORKERS and self.seat.is_due(self.now(), self._seen):
            self._exchange()
        self._start_waiting()
        return self._inner.wait(inbox, until)

    # The pool.

    def _exchange(self) -> None:
        seat, now = self.seat, self.now()
        if not seat.is_due(now, self._seen):
            return
        usable = self.places.usable()  # outside of the lock: the caller's is taken first
        with self._lock:
            busy = _names_of([*self._running.values(), *(self._waiting.values() if seat.kind.several_jobs else ())])
            # what models that hop could use is known: an idle worker is no sign that the study claims too much
            hops = seat.kind is HOPPED_WORKERS
            most = max(len(busy), len(seat.grant.held)) if hops else max(self._most, self._count())
            self._kept = frozenset(busy)
        try:
            has_row = seat.exchange(now, Use(self._seen, len(busy), most, usable, busy))
        finally:
            with self._lock:
                self._kept = None
        if has_row:
            with self._lock:
                self._most = self._count()
            self._start_waiting()
            if allowed := len(seat.open(now)):
                # who waits for more slots than the study may use from now on would wait for ever, and those behind it;
                # studies whose jobs are all as large get that many slots in turn
                most = max(allowed, seat.mine.job_slots)
                self._drop(
                    lambda each: not each.names and self.places.count(each.job.demand.slots) > most,
                    "Other studies of the pool took its slots before it began; its size is decided again.",
                )
            self._preempt()

    def _start_waiting(self) -> None:
        # Start what has a place; report what has lost the one that the placer chose for it.
        now = self.now()
        if not self._waiting or not self.seat.is_fresh(now):
            return  # until the pool can be read again
        ready: list[int] = []
        gone: list[Submitted] = []
        with self._lock:
            held, begin = set(self.seat.grant.held), self.seat.open(now) if self._kept is None else set()
            is_first = True
            for number, each in list(self._waiting.items()):
                begins: Submitted | None = None
                if each.names and not held.issuperset(each.names):
                    gone.append(each)
                elif each.names:
                    begins = each if self._kept is None or self._kept.issuperset(each.names) else None
                elif is_first:  # those behind one without room wait, too
                    begins = self.places.chosen(each, begin, self._running.values())
                    is_first = begins is not None
                if begins is not None:
                    self._running[number] = begins
                    del self._waiting[number]
                    ready.append(number)
        try:
            while ready:
                self._start(ready.pop(0))
        except BaseException:  # nobody would report the others
            with self._lock:
                for number in ready:
                    self._running.pop(number, None)
            raise
        self._drop(
            lambda each: any(each is one for one in gone),  # units of one model have the same attempt
            f"Its {self.places.kind.word} went to another study of pool {self.seat.terms.pool} before it began; it "
            "gets another one.",
        )

    def _start(self, number: int) -> None:
        each = self._running[number]

        def reported(job: Job, report: Report) -> None:
            with self._lock:
                self._running.pop(number, None)
                why = self._preempted.pop(number, None)
                if report.outcome is Outcome.COMPLETED:
                    self._spared.discard(job.trial)
                if self.seat.goes_back(each.names):  # others wait for what it leaves
                    self.seat.look_soon()
                    if self._inbox is not None:
                        self._inbox.wake()  # the end of a unit is no report to the loop
            if why is not None and report.outcome is Outcome.PREEMPTED:
                report = msgspec.structs.replace(report, message=why)
            each.on_report(job, report)

        try:
            self._inner.submit(each.job, each.slot, reported)
        except BaseException:
            with self._lock:
                self._running.pop(number, None)
            raise

    def _preempt(self) -> None:
        """End what runs on the name of the youngest attempt that is to be given back, where another study has waited
        too long; one name at a time."""
        seat, position = self.seat, self.seat.position
        with self._lock:
            if self._preempted or not self._running or position is None:
                return
            others = [row.member for row in seat.others if row.member is not None]
            study = longest_asking(seat.mine, others, len(seat.grant.held), position)
            ended = [] if study is None else self._youngest_closing()
            if not ended:
                return
            why = (
                f"Ended for study {study!r}, which waited for a {seat.kind.word or 'slot'} of pool {seat.terms.pool}; "
                "this study had more than its share. It goes on from its checkpoint."
            )
            self._preempted |= dict.fromkeys(ended, why)
            self._spared |= {self._running[number].job.trial for number in ended}
            keys = [self._running[number].job.key for number in ended]
        self._inner.cancel(keys)

    def _youngest_closing(self) -> list[int]:
        # Numbers of the jobs on the name with the youngest one of those that are to be given back; none was ended.
        for name in reversed(_names_of(self._running.values())):
            found = [number for number, each in self._running.items() if name in each.names]
            if name in self.seat.grant.closing and self._spared.isdisjoint(
                self._running[number].job.trial for number in found
            ):
                return found
        return []


def join_pool(
    executor: Executor,
    study: Study,
    placer: Placer,
    *,
    pools: Pools,
    terms: Terms,
    threads: Callable[[], Mapping[str, int]],
) -> PooledExecutor:
    """The executor, on what the study holds in its pool from now on.

    Args:
        placer: places the study's jobs.
        threads: by name of a worker that is there: its slots.
    """
    if isinstance(placer, SharedDevices):
        devices = DevicePlaces(study, placer.devices_for, study.spec.jobs_on_device)
        return PooledExecutor(executor, PoolSeat(pools, terms, devices, devices.kind), devices)
    if terms.shared_cluster:
        workers = SlotPlaces(study, threads)
        return PooledExecutor(executor, PoolSeat(pools, terms, workers, workers.kind), workers)
    return PooledExecutor(executor, PoolSeat(pools, terms, study), Places())


def join_workers(
    executor: Executor, study: Study, *, pools: Pools, terms: Terms
) -> tuple[PooledExecutor, WorkerPlaces]:
    """The executor of units, on the workers that the study holds in its pool from now on; and these workers."""
    places = WorkerPlaces(study, study.spec.partitioned.concurrent)
    return PooledExecutor(executor, PoolSeat(pools, terms, places, places.kind), places), places


def pool_name(device: Device) -> str:
    """Name by which all studies know a device: the processors of a computer may have another one in each study."""
    if not isinstance(device.capacity, Capacity) or device.capacity.gpu:
        return device.name
    computer = hashlib.sha256(device.capacity.node.encode()).hexdigest()[:6]
    return f"{device.name.partition('~')[0]}~{computer}"


def _names_of(submitted: Iterable[Submitted]) -> list[str]:
    names = [name for each in submitted for name in each.names]
    return list(dict.fromkeys(reversed(names)))[::-1]


def _first_slots(inventory: Inventory, most: int) -> Inventory:
    if most >= inventory.slots:
        return inventory
    devices = []
    for device in inventory.devices:
        devices.append(msgspec.structs.replace(device, slots=min(device.slots, most)))
        most -= devices[-1].slots
    return Inventory(tuple(device for device in devices if device.slots))


def _without_slots(inventory: Inventory, may_begin: Callable[[Device], bool]) -> Inventory:
    return Inventory(
        tuple(device if may_begin(device) else msgspec.structs.replace(device, slots=0) for device in inventory.devices)
    )
