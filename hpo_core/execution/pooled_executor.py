"""PooledExecutor: an executor that offers no more slots than its study may use in a pool.

It lies below the placer, so that each slot counts once, whatever runs there. The rules of pools are in
:mod:`hpo_core.placement.shares.members`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from hpo_core.execution.executor import Executor, Inbox, OnReport
from hpo_core.execution.pool_seat import EXCHANGE_SECONDS, PoolSeat
from hpo_core.model.devices.inventory import Device, Inventory, Slot
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.shares.members import Position, should_preempt


class Submitted(NamedTuple):
    """A job as it was submitted."""

    job: Job
    slot: Slot
    on_report: OnReport


class PooledExecutor:
    """Runs jobs on another executor, on slots that the study holds in a pool.

    Args:
        inner: runs the jobs; its clock tells the time.
        seat: of the study in its pool.
    """

    def __init__(self, inner: Executor, seat: PoolSeat) -> None:
        self.poll_seconds = min(inner.poll_seconds, EXCHANGE_SECONDS)
        self.seat = seat
        self._inner = inner
        self._lock = threading.RLock()
        self._running: dict[tuple[int, int], Submitted] = {}
        """By (trial, attempt) that the executor runs. The oldest first."""
        self._waiting: list[Submitted] = []
        """Submitted when no slot was held for them any more."""
        self._preempted: dict[tuple[int, int], str] = {}
        """By (trial, attempt) that is ended for another study: why."""
        self._spared: set[int] = set()
        """Trials of which an attempt was ended for another study, until one completes: else two studies that may
        preempt, with jobs longer than they wait, would end each other's for ever."""
        self._seen = 0
        self._busiest = 0
        """Slots that were used or waited for at once since the last exchange, at most."""

    @property
    def used(self) -> int:
        """Slots that jobs use now."""
        with self._lock:
            return sum(each.job.demand.slots for each in self._running.values())

    def inventory(self) -> Inventory:
        """As many of the executor's slots as the study may use; jobs that run beyond them go on."""
        inventory = self._inner.inventory()
        self._seen = inventory.slots
        self._exchange()
        return _first_slots(inventory, self._allowed())

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job, or keep it until a slot is held for it: the share may have shrunk since it was granted."""
        self._exchange()
        with self._lock:
            self._waiting.append(Submitted(job, slot, on_report))
            self._busiest = max(self._busiest, self._busy())
        self._start_waiting()

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys = set(attempts)
        keys -= self._drop(keys, "The attempt was ended while it waited for a slot of the pool.")
        self._inner.cancel(sorted(keys))

    def _drop(self, attempts: Collection[tuple[int, int]], message: str) -> set[tuple[int, int]]:
        """Report those of them that have not begun; returns them."""
        with self._lock:
            dropped = [each for each in self._waiting if each.job.key in attempts]
            self._waiting = [each for each in self._waiting if each.job.key not in attempts]
        for job, _, on_report in dropped:
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED, message=message))
        return {each.job.key for each in dropped}

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        """What a job left that has ended is for the next one that waits, or for another study: now, and not at the
        next look. Else a study to which a slot is due leaves it idle for a second."""
        if self.seat.is_due(self.now(), self._seen):
            self._exchange()
        self._start_waiting()
        return self._inner.wait(inbox, until)

    def _allowed(self) -> int:
        """Slots that its jobs may use."""
        return self.seat.allowed(self.now())

    def _busy(self) -> int:
        """Slots that submitted jobs use or wait for."""
        return self.used + sum(each.job.demand.slots for each in self._waiting)

    def _exchange(self) -> None:
        with self._lock:
            used, busy = self.used, max(self._busiest, self._busy())
        if self.seat.exchange(self.now(), seen=self._seen, used=used, busy=busy):
            with self._lock:
                self._busiest = self._busy()
            self._start_waiting()
            self._give_up_oversized()
            self._preempt()

    def _start_waiting(self) -> None:
        while True:
            with self._lock:
                room = self.seat.allowed(self.now()) - self.used
                if not self._waiting or self._waiting[0].job.demand.slots > room:
                    return
                each = self._waiting.pop(0)
                self._running[each.job.key] = each
            self._start(each)

    def _give_up_oversized(self) -> None:
        """Report those that wait for more slots than the study may use: their study sizes them anew.

        A trial that grew when it was granted would wait for ever, and those behind it, where the share is small from
        then on. Studies whose jobs are all as large get that many slots in turn.
        """
        allowed = self.seat.allowed(self.now())
        if not allowed:
            return
        most = max(allowed, self.seat.mine.job_slots)
        with self._lock:
            keys = [each.job.key for each in self._waiting if each.job.demand.slots > most]
        if keys:
            self._drop(keys, "Other studies of the pool took its slots before it began; its size is decided again.")

    def _start(self, each: Submitted) -> None:
        key = each.job.key

        def reported(job: Job, report: Report) -> None:
            with self._lock:
                self._running.pop(key, None)
                why = self._preempted.pop(key, None)
                if report.outcome is Outcome.COMPLETED:
                    self._spared.discard(job.trial)
                self._ended(each)
            if why is not None and report.outcome is Outcome.PREEMPTED:
                report = msgspec.structs.replace(report, message=why)
            each.on_report(job, report)

        try:
            self._inner.submit(each.job, each.slot, reported)
        except BaseException:
            with self._lock:
                self._running.pop(key, None)
            raise

    def _ended(self, each: Submitted) -> None:
        """A job has ended; where the study holds more than it may use, it gives back at once."""
        position = self.seat.position
        if position is not None and self.seat.mine.held > position.share + position.lent:
            self.seat.look_soon()

    def _preempt(self) -> None:
        """End the youngest attempt where another study has waited too long for a slot; one at a time."""
        seat = self.seat
        with self._lock:
            if self._preempted or not self._running or seat.position is None:
                return
            study, keys = self._preemption(seat.position)
            if study is None or not keys:
                return
            why = (
                f"Ended for study {study!r}, which waited for a {seat.mine.kind or 'slot'} of pool {seat.terms.pool}; "
                "this study had more than its share. It goes on from its checkpoint."
            )
            self._preempted |= dict.fromkeys(keys, why)
            self._spared |= {trial for trial, _ in keys}
        self._inner.cancel(keys)

    def _preemption(self, position: Position) -> tuple[str | None, list[tuple[int, int]]]:
        """For which study attempts are ended, if for any, and which."""
        study = should_preempt(self.seat.mine, self.seat.others, capacity=position.capacity)
        return study, [key for key in reversed(self._running) if key[0] not in self._spared][:1]


def _first_slots(inventory: Inventory, most: int) -> Inventory:
    """The same devices with so many slots in all, the first ones in order."""
    if most >= inventory.slots:
        return inventory
    devices: list[Device] = []
    for device in inventory.devices:
        slots = min(device.slots, most)
        if slots:
            devices.append(device if slots == device.slots else msgspec.structs.replace(device, slots=slots))
        most -= slots
    return Inventory(tuple(devices))
