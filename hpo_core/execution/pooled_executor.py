"""PooledExecutor: an executor that offers no more slots than its study holds in a pool.

It lies below placer and hopping, so each slot counts once, whatever runs there. About once a second it reads what the
other studies of the pool publish, and says what this one could use. The rules are in
:mod:`hpo_core.placement.shares.members`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hpo_core.execution.executor import Executor, Inbox, OnReport
from hpo_core.journal.pools import Change, PoolRow, Pools
from hpo_core.model.devices.inventory import Device, Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import JournalError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement.shares.members import (
    TURN_SECONDS,
    Member,
    Position,
    Wish,
    capacity_of,
    position_of,
    should_preempt,
)
from hpo_core.placement.shares.water_filling import JUST_BEGUN

EXCHANGE_SECONDS = 1.0
"""Between two looks at the pool while other studies are in it."""
ALONE_SECONDS = 2.0
"""The same while none is: so long a newcomer waits for its first slot, at most."""
BEAT_SECONDS = 5.0
"""Between two signs of life."""
LEASE_SECONDS = 20.0
"""A study without a sign of life for so long holds nothing any more. Each reader counts by its own clock."""
UNUSED_SECONDS = 3.0
"""So long a study may leave a slot unused before it claims no more than it uses."""
PROBE_SECONDS = 30.0
"""After that it claims more again, for what it could use may have changed."""

log = logging.getLogger("hpo.pool")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """A study's part in a pool."""

    pool: str
    study: str
    owner: str
    """The controller, told apart from every other one."""
    weight: float = 1.0
    priority: int = 0
    slots: int | None = None
    """Of the pool, as the study's settings say."""
    shared_cluster: bool = True
    """Whether the members use one cluster; else each has workers of its own."""
    preempt_after: float | None = None
    """Seconds of waiting after which it asks for a slot of another study; None: never."""


class Claimant(Protocol):
    """A study, as far as its pool asks."""

    def demand(self, most: int) -> int:
        """Slots that it could use now, counted up to ``most``."""
        ...

    @property
    def job_slots(self) -> int:
        """Slots of its next job."""
        ...


class _Waiting(NamedTuple):
    job: Job
    slot: Slot
    on_report: OnReport


class PooledExecutor:
    """Runs jobs on another executor, on slots that the study holds in a pool.

    Args:
        inner: runs the jobs; its clock tells the time.
        pools: of the journal's database.
        terms: of the study in its pool.
        study: says what it could use now.
    """

    def __init__(self, inner: Executor, pools: Pools, terms: Terms, study: Claimant) -> None:
        self.poll_seconds = min(inner.poll_seconds, EXCHANGE_SECONDS)
        self.terms = terms
        self.position: Position | None = None
        """Where the study stands, as of the last exchange."""
        self.mine = Member(study=terms.study, owner=terms.owner, weight=terms.weight, priority=terms.priority)
        """What the study published last."""
        self.others: list[Member] = []
        """Of the pool, with a sign of life."""
        self._inner = inner
        self._pools = pools
        self._study = study
        self._lock = threading.RLock()
        self._running: dict[tuple[int, int], int] = {}
        """By (trial, attempt) that the executor runs: slots. The oldest first."""
        self._waiting: list[_Waiting] = []
        """Submitted when no slot was held for them any more."""
        self._preempted: dict[tuple[int, int], str] = {}
        """By (trial, attempt) that is ended for another study: why."""
        self._signs: dict[str, tuple[str, int, float]] = {}
        """By member: owner, beat, and when that was new."""
        self._is_lost = False
        """Whether another controller of the study has its row."""
        self._is_told = False
        self._seen = 0
        self._next_look = -math.inf
        self._next_beat = -math.inf
        self._last_look = -math.inf
        self._short_since: float | None = None
        self._over_since: float | None = None
        self._unused_since: float | None = None
        self._limit: int | None = None
        self._probe_at = math.inf

    # What the loop asks.

    def inventory(self) -> Inventory:
        """As many of the executor's slots as the study may use; jobs that run beyond them go on."""
        inventory = self._inner.inventory()
        self._exchange(inventory.slots)
        with self._lock:
            return _first_slots(inventory, self._allowed())

    def usages(self) -> Mapping[tuple[int, int], Usage]:
        return self._inner.usages()

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Start a job, or keep it until a slot is held for it: the share may have shrunk since it was granted."""
        self._exchange(self._seen)
        with self._lock:
            if self._waiting or self._used() + job.demand.slots > self._allowed():
                self._waiting.append(_Waiting(job, slot, on_report))
                return
        self._start(_Waiting(job, slot, on_report))

    def limit(self, attempt: tuple[int, int], memory: int) -> None:
        self._inner.limit(attempt, memory)

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys = set(attempts)
        with self._lock:
            dropped = [each for each in self._waiting if each.job.key in keys]
            self._waiting = [each for each in self._waiting if each.job.key not in keys]
        for each in dropped:
            message = "The attempt was ended while it waited for a slot of the pool."
            trial, attempt = each.job.key
            each.on_report(
                each.job, Report(trial=trial, attempt=attempt, outcome=Outcome.PREEMPTED, message=message)
            )
        self._inner.cancel(sorted(keys - {each.job.key for each in dropped}))

    def cancel_all(self) -> None:
        with self._lock:
            keys = [each.job.key for each in self._waiting]
        self.cancel(keys)
        self._inner.cancel_all()

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        return self._inner.wait(inbox, until)

    def leave(self) -> None:
        """Give everything back: the study has ended. Where that fails, the lease runs out."""
        try:
            self._pools.leave(self.terms.pool, self.terms.study, self.terms.owner)
        except JournalError as error:
            log.warning("study %r: it leaves pool %s late: %s", self.terms.study, self.terms.pool, error)

    # Jobs.

    def _used(self) -> int:
        return sum(self._running.values())

    def _allowed(self) -> int:
        """Slots that jobs may begin on: no more than the share, so that what is too much is given back as jobs end."""
        if self.position is None or self._is_lost or self.now() > self._last_look + LEASE_SECONDS:
            return 0
        return min(self.position.share, self.mine.held)

    def _start(self, each: _Waiting) -> None:
        key = each.job.key

        def reported(job: Job, report: Report) -> None:
            with self._lock:
                self._running.pop(key, None)
                why = self._preempted.pop(key, None)
            if why is not None and report.outcome is Outcome.PREEMPTED:
                report = msgspec.structs.replace(report, message=why)
            each.on_report(job, report)

        with self._lock:
            self._running[key] = each.job.demand.slots
        try:
            self._inner.submit(each.job, each.slot, reported)
        except BaseException:
            with self._lock:
                self._running.pop(key, None)
            raise

    def _start_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._used() + self._waiting[0].job.demand.slots > self._allowed():
                    return
                each = self._waiting.pop(0)
            self._start(each)

    # The pool.

    def _exchange(self, seen: int) -> None:
        """Look at the pool where it is time, and publish what changed; a database that does not answer is left alone."""
        now = self.now()
        self._seen = seen
        if now < self._next_look or self._is_lost:
            return
        try:
            if now < self._next_beat:
                rows = self._pools.look(self.terms.pool, self.terms.study)
                if self._differs(self._settled(rows, now)):
                    self._pools.change(self.terms.pool, self.terms.study, lambda rows: self._decide(rows, now))
            else:
                self._pools.change(self.terms.pool, self.terms.study, lambda rows: self._decide(rows, now))
            self._last_look = now
            self._is_told = False
        except JournalError as error:
            if not self._is_told:
                self._is_told = True
                log.warning(
                    "study %r: pool %s cannot be read or written; jobs go on for %g s: %s",
                    self.terms.study, self.terms.pool, LEASE_SECONDS, error,
                )  # fmt: skip
        self._next_look = now + (EXCHANGE_SECONDS if self.others or self._is_told else ALONE_SECONDS)
        self._start_waiting()
        self._preempt()

    def _decide(self, rows: Sequence[PoolRow], now: float) -> Change | None:
        mine = self._settled(rows, now)
        gone = tuple(row.member for row in rows if row.member is not None and self._is_gone(row.member, now))
        if self._is_lost:
            return None
        self._next_beat = now + BEAT_SECONDS
        self.mine = msgspec.structs.replace(mine, beat=self.mine.beat + 1, used=self._used())
        return Change(self.mine, gone)

    def _settled(self, rows: Sequence[PoolRow], now: float) -> Member:
        """What the study should publish, as the rows are; notes who else is there."""
        with self._lock:
            self._note_signs(rows, now)
            own = next((row for row in rows if row.study == self.terms.study), None)
            theirs = None if own is None or own.member is None else own.member.owner
            if self._last_look > -math.inf and theirs not in (None, self.terms.owner):
                self._is_lost = True  # another controller goes on with the study, and this one is fenced
            wish = Wish() if own is None or own.wish is None else own.wish
            self.others = [
                row.member
                for row in rows
                if row.member is not None
                and row.study != self.terms.study
                and not self._is_gone(row.member, now)
            ]
            mine = msgspec.structs.replace(
                self.mine,
                weight=self.terms.weight if wish.weight is None else wish.weight,
                priority=self.terms.priority if wish.priority is None else wish.priority,
                seen=self._seen,
                stated=self.terms.slots,
                used=self._used(),
            )
            capacity = self._capacity(mine)
            claimed = self._claimed(min(capacity, self._seen))
            mine = msgspec.structs.replace(mine, demand=claimed, job_slots=self._study.job_slots)
            position = position_of(mine, self.others, capacity=capacity)
            mine = msgspec.structs.replace(mine, held=position.held)
            mine = self._with_precedence(mine, position, now)
            self.position = position
            return mine

    def _capacity(self, mine: Member) -> int:
        shared = self._seen if self.terms.shared_cluster else None
        return capacity_of((mine, *self.others), shared_cluster=shared)

    def _claimed(self, most: int) -> int:
        """Slots that the study could use; where it leaves some unused, no more than it uses, for a while."""
        now, used = self.now(), self._used()
        busy = used + sum(each.job.demand.slots for each in self._waiting)
        if busy >= self._allowed():
            self._unused_since = None
        elif self._unused_since is None or self._allowed() - busy < self._study.job_slots:
            self._unused_since = now
        elif now >= self._unused_since + UNUSED_SECONDS:
            self._limit, self._probe_at = max(busy, self._study.job_slots), now + PROBE_SECONDS
        if now >= self._probe_at:
            self._limit, self._unused_since, self._probe_at = None, None, math.inf
        demand = max(used, min(most, self._study.demand(most)))
        return demand if self._limit is None else min(demand, max(self._limit, busy))

    def _with_precedence(self, mine: Member, position: Position, now: float) -> Member:
        short = mine.held < position.ideal
        over = mine.held > math.floor(position.ideal)
        self._short_since = (now if self._short_since is None else self._short_since) if short else None
        over = over and not short
        self._over_since = (now if self._over_since is None else self._over_since) if over else None
        waited = 0.0 if self._short_since is None else max(0.0, now - self._short_since)
        precedence = 0
        if self._short_since is not None:  # nobody loses a slot to a study that has waited for less than a turn
            precedence = int(waited) if waited >= TURN_SECONDS else int(waited) - JUST_BEGUN
        if self._over_since is not None:
            rounded_up = now - self._over_since
            precedence = -int(rounded_up) if rounded_up >= TURN_SECONDS else JUST_BEGUN
        after = self.terms.preempt_after
        asks = after is not None and waited >= after and mine.held < position.share
        return msgspec.structs.replace(mine, precedence=precedence, waited=round(waited, 1), asks=asks)

    def _differs(self, mine: Member) -> bool:
        """Whether the others must know now, and not only with the next sign of life."""
        return _told_at_once(mine) != _told_at_once(self.mine)

    def _note_signs(self, rows: Sequence[PoolRow], now: float) -> None:
        """When each member last gave a sign of life, by this clock; anew after a time in which nobody looked."""
        anew = now > self._last_look + LEASE_SECONDS / 2
        known, self._signs = self._signs, {}
        for row in rows:
            if row.member is not None:
                sign = known.get(row.study)
                if sign is None or anew or sign[:2] != (row.member.owner, row.member.beat):
                    sign = (row.member.owner, row.member.beat, now)
                self._signs[row.study] = sign

    def _is_gone(self, member: Member, now: float) -> bool:
        sign = self._signs.get(member.study)
        return member.study != self.terms.study and sign is not None and now > sign[2] + LEASE_SECONDS

    def _preempt(self) -> None:
        """End the youngest attempt where another study has waited too long for a slot; one at a time."""
        with self._lock:
            if self._preempted or not self._running or self.position is None:
                return
            mine = msgspec.structs.replace(self.mine, used=self._used())
            study = should_preempt(mine, self.others, capacity=self.position.capacity)
            if study is None:
                return
            key = next(reversed(self._running))
            self._preempted[key] = (
                f"Ended for study {study!r}, which waited for a slot of pool {self.terms.pool}; this study had more "
                "than its share. It goes on from its checkpoint."
            )
        self._inner.cancel([key])


def _told_at_once(member: Member) -> Member:
    """What the others must know at once; the rest may wait for the next sign of life."""
    kind = member.precedence if member.precedence == JUST_BEGUN else (member.precedence > 0) - (member.precedence < 0)
    return msgspec.structs.replace(member, beat=0, used=0, waited=0.0, precedence=kind)


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
