"""PooledExecutor: an executor that offers what its study holds in a pool, over any other executor.

It lies below the placer, so that each slot counts once, whatever runs there. :class:`SlotPlaces` says what the names of
the pool are.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpo_core.execution.executor import Executor, Inbox, OnReport, RunParts
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.pool.seat import EXCHANGE_SECONDS, Claimant, PoolSeat, terms_of
from hpo_core.pool.store import pools_of
from hpo_core.pool.words import standing_of


class Submitted(NamedTuple):
    """A job as it was submitted, with the names that it takes; none while it waits for any that will do."""

    job: Job
    slot: Slot
    on_report: OnReport
    names: Collection[str] = ()


class SlotPlaces:
    """Workers whose slots are all alike to the study. Which of them a job gets is chosen when it begins.

    Args:
        study: says how many slots it could use.
        threads: by name of a worker that all studies of the pool use: its slots. None: the study has workers of its
            own, each slot counts, and its name is a number.
    """

    def __init__(self, study: Claimant, threads: Callable[[], Mapping[str, int]] | None = None) -> None:
        self.study = study
        self._workers = threads
        self._threads: Mapping[str, int] = {}

    def count(self, slots: int) -> int:
        """Number of workers that hold so many slots, whichever they are; no more than there are."""
        sums = itertools.accumulate(sorted(self._threads.values()))
        return min(len(self._threads), sum(below < slots for below in sums) + 1) if slots else 0

    @property
    def job_slots(self) -> int:
        return max(1, self.count(self.study.job_slots))

    def demand(self, most: int) -> int:
        return min(most, self.count(self.study.demand(sum(self._threads.values()))))

    def spare(self, most: int) -> int:
        return min(most, self.count(self.study.spare(sum(self._threads.values()))))

    def see(self, inventory: Inventory) -> Sequence[str]:
        """Note what is there; returns names that the study could use."""
        own = {str(number): 1 for number in range(inventory.slots)}
        self._threads = own if self._workers is None else dict(self._workers())
        return sorted(self._threads)

    def chosen(self, each: Submitted, begin: Collection[str], running: Collection[Submitted]) -> Submitted | None:
        """The job with its slot and names; None: there is no room for it.

        Args:
            begin: names on which jobs may begin.
            running: jobs that run.
        """
        slots = each.job.demand.slots
        if self._workers is None:
            free_names = sorted(set(begin).difference(*(one.names for one in running)))[:slots]
            return each._replace(names=free_names) if len(free_names) == slots else None
        taken = {(rank.name, rank.number) for one in running for rank in one.slot.ranks}
        load = Counter(worker for worker, _ in taken)
        free = [
            (worker, number)
            for worker in sorted(begin, key=lambda worker: (-load[worker], worker))
            for number in range(self._threads.get(worker, 0))
            if (worker, number) not in taken
        ][:slots]
        if len(free) < slots:
            return None
        ranks = [Slot(each.slot.device, number, worker, each.slot.portion) for worker, number in free]
        names = list(dict.fromkeys(worker for worker, _ in free))
        return each._replace(slot=ranks[0]._replace(others=tuple(ranks[1:])), names=names)

    def offered(self, inventory: Inventory, begin: Collection[str], running: Collection[Submitted]) -> Inventory:
        if self._workers is None:
            most = len(begin)
        else:
            leaving = [rank for one in running for rank in one.slot.ranks if rank.name not in begin]
            most = sum(self._threads.get(worker, 0) for worker in begin) + len(leaving)
        devices = []
        for device in inventory.devices:
            devices.append(msgspec.structs.replace(device, slots=min(device.slots, most)))
            most -= devices[-1].slots
        return Inventory(tuple(device for device in devices if device.slots))


class PooledExecutor:
    """Runs jobs on another executor, on what the study holds in a pool.

    A job waits until a slot is held for it: the share may have shrunk since it was granted.

    Args:
        inner: runs the jobs; its clock tells the time.
        seat: the study's place in its pool.
        places: what the names of the pool are here.
    """

    def __init__(self, inner: Executor, seat: PoolSeat, places: SlotPlaces) -> None:
        self.poll_seconds = min(inner.poll_seconds, EXCHANGE_SECONDS)
        self.seat = seat
        self.places = places
        self._inner = inner
        self._lock = threading.RLock()
        """Held while the pool is looked at: no job begins meanwhile on what may be given back."""
        self._numbers = itertools.count()
        self._running: dict[int, Submitted] = {}
        """By number of its submission: what the executor runs. The oldest first."""
        self._waiting: dict[int, Submitted] = {}
        """By number of its submission: what waits until something is held for it."""
        self._usable: Sequence[str] = ()
        self._inbox: Inbox | None = None

    # What the loop asks.

    def inventory(self) -> Inventory:
        """The inner executor's devices, as far as jobs of the study may run there."""
        inventory = self._inner.inventory()
        self._usable = self.places.see(inventory)
        self._exchange()
        now = self.now()
        with self._lock:
            running = list(self._running.values()) if self.seat.is_fresh(now) else []
        return self.places.offered(inventory, self.seat.open(now), running)

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        with self._lock:
            self._waiting[next(self._numbers)] = Submitted(job, slot, on_report)
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
        self._exchange()
        self._start_waiting()
        return self._inner.wait(inbox, until)

    # The pool.

    def _exchange(self) -> None:
        seat, now = self.seat, self.now()
        if not seat.is_due(now, len(self._usable)):
            return
        with self._lock:
            names = dict.fromkeys(name for each in self._running.values() for name in each.names)
            has_row = seat.exchange(now, self._usable, list(names))
        if has_row:
            self._start_waiting()
            if allowed := len(seat.open(now)):
                # who waits for more slots than the study may use from now on would wait for ever, and those behind it;
                # studies whose jobs are all as large get that many slots in turn
                most = max(allowed, seat.mine.job_slots)
                self._drop(
                    lambda each: self.places.count(each.job.demand.slots) > most,
                    "Other studies of the pool took its slots before it began; its size is decided again.",
                )

    def _start_waiting(self) -> None:
        now = self.now()
        if not self._waiting or not self.seat.is_fresh(now):
            return  # until the pool can be read again
        ready: list[int] = []
        with self._lock:
            begin = self.seat.open(now)
            for number, each in list(self._waiting.items()):
                begins = self.places.chosen(each, begin, self._running.values())
                if begins is None:
                    break  # those behind one without room wait, too
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

    def _start(self, number: int) -> None:
        each = self._running[number]

        def reported(job: Job, report: Report) -> None:
            with self._lock:
                self._running.pop(number, None)
                if self.seat.closing:  # others wait for what it leaves
                    self.seat.look_soon()
                    if self._inbox is not None:
                        self._inbox.wake()  # the end of a unit is no report to the loop
            each.on_report(job, report)

        try:
            self._inner.submit(each.job, each.slot, reported)
        except BaseException:
            with self._lock:
                self._running.pop(number, None)
            raise


def sharing(parts: RunParts) -> None:
    terms = terms_of(parts.study.spec, parts.owner)
    places = SlotPlaces(parts.study, parts.threads if terms.unit == "worker" else None)
    seat = PoolSeat(pools_of(parts.journal), terms, places)
    parts.executor = PooledExecutor(parts.executor, seat, places)
    parts.closing.append(seat.leave)
    parts.news(pool_news(seat))


def pool_news(seat: PoolSeat) -> Callable[[], str]:
    """The function that says how a study stands in its pool, when others have come or gone there."""
    known: set[str] = set()

    def news() -> str:
        nonlocal known
        if not seat.mine.beat or (found := {row.study for row in seat.others}) == known:
            return ""
        known = found
        return standing_of(seat.row, seat.others).words

    return news
