"""PooledExecutor: an executor that offers what its study holds in a pool, over any other executor.

It lies below the placer, so that each slot counts once, whatever runs there. What differs between studies whose jobs
take slots, share devices or hop from worker to worker is in :class:`Places`: what the names of the pool are here.
"""

from __future__ import annotations

import hashlib
import itertools
import math
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
from hpo_core.pool.arbiter import longest_asking, slot_name, worker_of
from hpo_core.pool.seat import (
    COUNTED,
    DEVICES,
    EXCHANGE_SECONDS,
    WHOLE_WORKERS,
    WORKER_SLOTS,
    Claimant,
    Kind,
    PoolSeat,
    Terms,
    Use,
)
from hpo_core.pool.store import Pools
from hpo_core.study import Study

HANDOVER_SECONDS = 1.0
"""Lead time in seconds with which a name whose job is about to end is promised to another study."""
MOST_JOBS = 10_000
"""Largest number of jobs of a packed study that are counted for its demand."""


class Places:
    """Slots of workers that the study has for itself: each counts, and has no name."""

    kind: Kind = COUNTED

    def see(self, inventory: Inventory) -> int:
        """Note what is there; returns how many slots, or devices, that is."""
        return inventory.slots

    def there(self) -> Sequence[str]:
        """Names of all that is there; none where slots are only counted."""
        return ()

    def usable(self, held: Collection[str], wanted: Collection[str]) -> Sequence[str]:
        """Names that the study could use now, preferred ones first.

        Args:
            held: names that it holds.
            wanted: names that other studies could use.
        """
        return self.there()

    def of(self, slot: Slot) -> tuple[str, ...] | None:
        """Names of a placed job; None: they are chosen when it begins."""
        return None

    def chosen(self, slot: Slot, free: Collection[str], used: Collection[str], count: int) -> tuple[Slot, list[str]]:
        """The slot on which a job begins, and the names that it takes."""
        return slot, sorted(free)[:count]

    def offered(self, inventory: Inventory, begin: Collection[str], busy: Collection[str]) -> Inventory:
        """The inventory as far as jobs may run there.

        Args:
            begin: names on which jobs may begin.
            busy: names on which jobs run.
        """
        return _first_slots(inventory, len(begin))


class SlotPlaces(Places):
    """Slots of workers that all studies of the pool use. Which one a job gets is chosen when it begins.

    Args:
        threads: by name of a worker that is there: its slots.
    """

    kind = WORKER_SLOTS

    def __init__(self, threads: Callable[[], Mapping[str, int]]) -> None:
        self._threads = threads

    def see(self, inventory: Inventory) -> int:
        return sum(self._threads().values())

    def there(self) -> Sequence[str]:
        threads = self._threads()
        return [slot_name(worker, number) for worker in sorted(threads) for number in range(threads[worker])]

    def usable(self, held: Collection[str], wanted: Collection[str]) -> Sequence[str]:
        return nearest_first(self.there(), held)

    def offered(self, inventory: Inventory, begin: Collection[str], busy: Collection[str]) -> Inventory:
        return _first_slots(inventory, len({*begin, *busy}))

    def chosen(self, slot: Slot, free: Collection[str], used: Collection[str], count: int) -> tuple[Slot, list[str]]:
        names = nearest_first(free, used)[:count]
        ranks = [Slot(slot.device, int(name.rpartition("#")[2]), worker_of(name), slot.portion) for name in names]
        return ranks[0]._replace(others=tuple(ranks[1:])), names


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

    def there(self) -> Sequence[str]:
        return self._there

    def of(self, slot: Slot) -> tuple[str, ...] | None:
        return tuple({self._names.get(rank.name, rank.name): None for rank in slot.ranks})

    def offered(self, inventory: Inventory, begin: Collection[str], busy: Collection[str]) -> Inventory:
        return _without_slots(inventory, lambda device: self._names[device.name] in begin)


class WorkerPlaces(Places):
    """Workers on which models of the study train in turn: each with all of its slots, one unit at a time.

    Args:
        study: says how many models could train.
        concurrent: most models at once; None: as many as there are workers.
    """

    kind = WHOLE_WORKERS

    def __init__(self, study: Claimant, concurrent: int | None = None) -> None:
        self.study = study
        self._concurrent = concurrent
        self.useful: Callable[[Mapping[str, Iterable[str]]], list[str]] = lambda holdings: []
        """Says which workers have work for the study now."""
        self._holdings: dict[str, frozenset[str]] = {}
        """By worker that is there: names of the partitions that lie there; not those without any."""
        self._slots: dict[str, tuple[str, ...]] = {}
        """By worker that is there: names of its slots."""
        self._sizes: list[int] = []
        """Slots of each worker that holds some partition of the study, the largest first."""

    @property
    def job_slots(self) -> int:
        """Slots of a worker; of the largest, where they differ."""
        return max(self._sizes, default=1)

    def demand(self, most: int) -> int:
        models = self.study.demand(len(self._sizes))
        if self._concurrent is not None:
            models = min(models, self._concurrent)
        return min(most, sum(self._sizes[:models]))

    def spare(self, most: int) -> int:
        return 0

    def due(self, seat: PoolSeat) -> int:
        """Number of workers that the study's share gives it, rounded up, whichever it holds now."""
        all_slots, slots = sum(self._sizes), 0 if seat.position is None else seat.position.share
        return -(-slots * len(self._sizes) // all_slots) if all_slots else 0

    def see(self, inventory: Inventory) -> int:
        self._slots = {
            device.name: tuple(slot_name(device.name, number) for number in range(device.slots))
            for device in inventory.devices
        }
        self._holdings = {
            device.name: device.partitions.names for device in inventory.devices if device.partitions.names
        }
        self._sizes = sorted((len(self._slots[worker]) for worker in self._holdings), reverse=True)
        return inventory.slots

    def there(self) -> Sequence[str]:
        return [name for slots in self._slots.values() for name in slots]

    def usable(self, held: Collection[str], wanted: Collection[str]) -> Sequence[str]:
        workers = self.useful(self._holdings) or [
            worker for worker in self._holdings
            if set(self._slots[worker]).issubset(held) and not set(self._slots[worker]).intersection(wanted)
        ]  # fmt: skip
        return [name for worker in workers for name in self._slots[worker]]

    def of(self, slot: Slot) -> tuple[str, ...] | None:
        workers = [rank.name for rank in slot.ranks]
        return tuple(name for worker in workers for name in self._slots.get(worker, (slot_name(worker, 0),)))

    def offered(self, inventory: Inventory, begin: Collection[str], busy: Collection[str]) -> Inventory:
        return _without_slots(inventory, lambda device: set(self._slots[device.name]).issubset(begin))


class _Submitted(NamedTuple):
    """A job as it was submitted, with the names that it takes."""

    job: Job
    slot: Slot
    on_report: OnReport
    names: Collection[str] = ()
    began: float = 0.0


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
        self._running: dict[int, _Submitted] = {}
        """By number of its submission: what the executor runs. The oldest first."""
        self._waiting: dict[int, _Submitted] = {}
        """By number of its submission: what waits until something is held for it."""
        self._preempted: dict[int, str] = {}
        """By number of a submission that is ended for another study: why."""
        self._spared: set[int] = set()
        """Trials of which an attempt was ended for another study, until one completes: else two studies that may
        preempt, with jobs longer than they wait, would end each other's for ever."""
        self._seen = 0
        self._most = 0
        """Largest number of names that were used or waited for at once since the last look."""
        self._lasts = math.inf
        """Seconds of a job, the latest ones above all; infinite: none has ended yet."""
        self._kept: frozenset[str] | None = None
        """While the pool is looked at: names on which jobs run. On others none begins, for they may be given back."""
        self._inbox: Inbox | None = None

    def _count(self, submitted: Iterable[_Submitted]) -> int:
        if self.places.kind.several_jobs:
            return len(_names_of(submitted))
        return sum(len(each.names) or each.job.demand.slots for each in submitted)

    # What the loop asks.

    def inventory(self) -> Inventory:
        """What the inner executor has, as far as jobs of the study may run there."""
        inventory = self._inner.inventory()
        self._seen = self.places.see(inventory)
        self._exchange()
        now = self.now()
        with self._lock:
            busy = self._busy() if self.seat.is_fresh(now) else ()
        return self.places.offered(inventory, self.seat.open(now), busy)

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job, or keep it until something is held for it."""
        with self._lock:
            self._waiting[next(self._numbers)] = _Submitted(job, slot, on_report, self.places.of(slot) or ())
            self._most = max(self._most, self._count(self._submitted()))
        self._start_waiting()

    def _submitted(self) -> list[_Submitted]:
        return [*self._running.values(), *self._waiting.values()]

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys = set(attempts)
        dropped = self._drop(
            lambda each: each.job.key in keys, "The attempt was ended while it waited for a slot of the pool."
        )
        self._inner.cancel(sorted(keys.difference(dropped)))

    def _drop(self, goes: Callable[[_Submitted], bool], message: str) -> set[tuple[int, int]]:
        """Report those that wait and are to go; returns their attempts."""
        with self._lock:
            dropped = [number for number, each in self._waiting.items() if goes(each)]
            gone = [self._waiting.pop(number) for number in dropped]
        for job, _, on_report, *_ in gone:
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED, message=message))
        return {each.job.key for each in gone}

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        """What a job left that has ended is for the next one that waits, or for another study: now, and not at the
        next look. Else a study to which a slot is due leaves it idle for a second."""
        self._inbox = inbox
        if not self.places.kind.whole and self.seat.is_due(self.now(), self._seen):
            self._exchange()
        self._start_waiting()
        return self._inner.wait(inbox, until)

    # The pool.

    def _exchange(self) -> None:
        seat, places, now = self.seat, self.places, self.now()
        if not seat.is_due(now, self._seen):
            return
        wanted = {name for row in seat.others if row.member is not None for name in row.member.usable}
        wanted.difference_update(*(row.grant.held for row in seat.others))
        usable = places.usable(seat.grant.held, wanted)  # outside of the lock: the caller's is taken first
        with self._lock:
            running = list(self._running.values())
            busy = _names_of(self._submitted() if places.kind.several_jobs else running)
            used = self._count(running)
            # what models that hop could use is known: an idle worker is no sign that the study claims too much
            most = (
                max(used, len(seat.open(now))) if places.kind.whole else max(self._most, self._count(self._submitted()))
            )
            soon = now + HANDOVER_SECONDS
            ending = [name for each in running if each.began + self._lasts <= soon for name in each.names]
            self._kept = frozenset(busy)
        try:
            has_row = seat.exchange(now, Use(self._seen, used, most, usable, busy, ending, places.there()))
        finally:
            with self._lock:
                self._kept = None
        if has_row:
            with self._lock:
                self._most = self._count(self._submitted())
            self._start_waiting()
            if allowed := len(seat.open(now)):
                # who waits for more slots than the study may use from now on would wait for ever, and those behind it;
                # studies whose jobs are all as large get that many slots in turn
                most = max(allowed, seat.mine.job_slots)
                self._drop(
                    lambda each: not each.names and each.job.demand.slots > most,
                    "Other studies of the pool took its slots before it began; its size is decided again.",
                )
            self._preempt()

    def _busy(self) -> set[str]:
        """Names on which jobs run; of slots that are counted, as many of those that the study holds."""
        if self.places.kind.word:
            return set(_names_of(self._running.values()))
        grant = self.seat.grant
        opened = sorted(self.seat.open(self.now()))
        return set([*opened, *grant.closing][: self._count(self._running.values())])

    def _start_waiting(self) -> None:
        """Start what has a place; report what has lost the one that the placer chose for it."""
        now = self.now()
        if not self._waiting or not self.seat.is_fresh(now):
            return  # until the pool can be read again
        ready: list[int] = []
        gone: list[_Submitted] = []
        with self._lock:
            busy, held = self._busy(), set(self.seat.grant.held)
            free = self.seat.open(now) - busy if self._kept is None else set()
            is_first = True
            for number, each in self._waiting.items():
                if each.names and not held.issuperset(each.names):
                    gone.append(each)
                    begins = False
                elif each.names:
                    begins = self._kept is None or self._kept.issuperset(each.names)
                elif begins := is_first and each.job.demand.slots <= len(free):
                    slot, names = self.places.chosen(each.slot, free, busy, each.job.demand.slots)
                    free.difference_update(names)
                    each = each._replace(slot=slot, names=names if self.places.kind.word else ())
                else:
                    is_first = False  # those behind it wait, too
                if begins:
                    self._running[number] = each._replace(began=now)
                    ready.append(number)
            for number in ready:
                del self._waiting[number]
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
                    seconds = max(0.0, report.ended - report.started)
                    self._lasts = seconds if self._lasts == math.inf else (self._lasts + seconds) / 2
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
        """Numbers of the jobs on the name with the youngest one of those that are to be given back; none was ended."""
        closing, running = set(self.seat.grant.closing), self._running
        if not self.places.kind.word:
            found = [number for number, each in running.items() if each.job.trial not in self._spared]
            return found[-1:] if self._busy() & closing else []
        for name in reversed(_names_of(running.values())):
            found = [number for number, each in running.items() if name in each.names]
            if name in closing and self._spared.isdisjoint(running[number].job.trial for number in found):
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
    places = Places()
    claimant: Claimant = study
    if isinstance(placer, SharedDevices):
        places = claimant = DevicePlaces(study, placer.devices_for, study.spec.jobs_on_device)
    elif terms.shared_cluster:
        places = SlotPlaces(threads)
    return PooledExecutor(executor, PoolSeat(pools, terms, claimant, places.kind), places)


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


def nearest_first(free: Iterable[str], held: Iterable[str]) -> list[str]:
    """Slots in the order in which a study takes them: those of workers where it holds most already come first."""
    count = Counter(map(worker_of, held))
    return sorted(free, key=lambda name: (-count[worker_of(name)], name))


def _names_of(submitted: Iterable[_Submitted]) -> list[str]:
    """Names on which jobs run; the one with the youngest job last."""
    names = [name for each in submitted for name in each.names]
    return list(dict.fromkeys(reversed(names)))[::-1]


def _first_slots(inventory: Inventory, most: int) -> Inventory:
    """The same devices with so many slots in all, the first ones in order."""
    if most >= inventory.slots:
        return inventory
    devices = []
    for device in inventory.devices:
        devices.append(msgspec.structs.replace(device, slots=min(device.slots, most)))
        most -= devices[-1].slots
    return Inventory(tuple(device for device in devices if device.slots))


def _without_slots(inventory: Inventory, may_begin: Callable[[Device], bool]) -> Inventory:
    """The same devices; of those on which no job may begin, without slots."""
    return Inventory(
        tuple(device if may_begin(device) else msgspec.structs.replace(device, slots=0) for device in inventory.devices)
    )
