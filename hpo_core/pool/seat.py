"""PoolSeat: one study's place in a pool, as its controller keeps it: what it says there, what it holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from hpo_core.journal.protocol import Owner
from hpo_core.model.errors import JournalError
from hpo_core.model.short_text import shown
from hpo_core.pool.division import MOST_NAME, MOST_NAMES, MOST_SLOTS, Member, Wish, capacity_of, numbers_of, shares_of
from hpo_core.pool.store import PoolRow, Pools
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, LocalCudaClusterSpec

EXCHANGE_SECONDS = 1.0
"""Seconds between two looks at the pool while other studies are in it."""
ALONE_SECONDS = 2.0
"""Seconds between two looks while none is: so long a newcomer waits for its first slot, at most."""
BEAT_SECONDS = 5.0
"""Seconds between two signs of life."""
LEASE_SECONDS = 20.0
"""Seconds after which a study without a sign of life holds nothing any more. Each reader counts by its own clock."""

_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}

log = logging.getLogger("hpo.pool")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """A study's part in a pool, as its settings say."""

    pool: str
    study: str
    owner: str
    """The controller, told apart from every other one."""
    weight: float = 1.0
    priority: int = 0
    unit: str = "slot"
    """See :class:`~hpo_core.pool.division.Member`."""


def pool_of(spec: StudySpec, host: str) -> str:
    """The name of the pool that a study with ``share`` is in.

    Workers that are started on a machine are shared with studies of that machine alone, as is a scheduler at a loopback
    address, however that is written.

    Args:
        host: the machine of the study's controller.
    """
    share, cluster = spec.sharing, spec.cluster
    if share.pool is None:
        return _address(cluster.place, host)
    if isinstance(cluster, LocalClusterSpec | LocalCudaClusterSpec):
        return f"{share.pool} on {host}"
    return share.pool


def _address(place: str, host: str) -> str:
    scheme, separator, rest = place.rstrip("/").rpartition("://")
    name, colon, port = rest.rpartition(":")
    if name.lower() in _LOOPBACK:
        return f"{scheme}{separator}127.0.0.1{colon}{port} on {host}"
    return f"{scheme}{separator}{rest.lower()}"


def terms_of(spec: StudySpec, owner: Owner) -> Terms:
    share = spec.sharing
    return Terms(
        pool=pool_of(spec, owner.host),
        study=spec.study,
        owner=f"{owner.label()}:{owner.born:.2f}",
        weight=share.weight,
        priority=share.priority,
        unit="worker" if isinstance(spec.cluster, AddressClusterSpec) else "slot",
    )


class Claimant(Protocol):
    """A study, as far as its pool asks."""

    def demand(self, most: int) -> int:
        """Units that it could use now, counted up to ``most``."""
        ...

    def spare(self, most: int) -> int:
        """Units beyond its demand that it could use once a job ends, counted up to ``most``."""
        ...

    @property
    def job_slots(self) -> int:
        """Units of its next job."""
        ...


class PoolSeat:
    """Looks at the pool about once a second, and writes where something changes. Used by one thread.

    It gives back what is idle beyond its number, and takes what is free up to that; nobody takes what another one
    holds. Where it holds more than its number, no job begins on what it is to give back.

    Args:
        pools: rows of the journal's database.
        terms: the study's part in its pool.
        study: says what it could use now.
    """

    def __init__(self, pools: Pools, terms: Terms, study: Claimant) -> None:
        self.terms = terms
        self.mine = Member(
            study=terms.study, owner=terms.owner, weight=terms.weight, priority=terms.priority, unit=terms.unit
        )
        """As the study said last."""
        self.closing: frozenset[str] = frozenset()
        """Names on which no job begins any more; they are given back once the jobs there have ended."""
        self.share = 0
        """Number of names that the study is due, whichever it holds now."""
        self.others: list[PoolRow] = []
        """Rows of the other studies of the pool that give signs of life."""
        self._pools = pools
        self._study = study
        self._signs: dict[str, tuple[str, int, float]] = {}
        """By study: owner and beat, and when they were new."""
        self._is_lost = False
        """True if another controller of the study has its row, and gives signs of life."""
        self._is_told = False
        self._seen = 0
        self._next_look = self._next_beat = self._last_look = -math.inf

    @property
    def held(self) -> tuple[str, ...]:
        return self.mine.held

    @property
    def row(self) -> PoolRow:
        return PoolRow(self.terms.pool, self.terms.study, self.mine)

    def open(self, now: float) -> set[str]:
        """Names on which jobs may begin; none where what the study held at its last look may be another's by now."""
        return set(self.held) - self.closing if self.is_fresh(now) else set()

    def is_fresh(self, now: float) -> bool:
        return not self._is_lost and now <= self._next_beat - BEAT_SECONDS + LEASE_SECONDS

    def is_due(self, now: float, seen: int) -> bool:
        """True if it is time to look; at once where the cluster changed, for a worker that joins is used at once."""
        return now >= self._next_look or seen != self._seen

    def look_soon(self) -> None:
        """Have it look at the next opportunity: a name that others wait for became idle. Any thread may say so."""
        self._next_look = -math.inf

    def exchange(self, now: float, seen: Sequence[str], busy: Sequence[str] = ()) -> bool:
        """Look at the pool where it is time, and write what changes. A database that fails is left alone.

        Args:
            seen: workers or slots of its cluster.
            busy: those on which its jobs run.

        Returns:
            Whether it looked, and has its row.
        """
        if not self.is_due(now, len(seen)):
            return False
        self._seen = len(seen)
        found = self.mine, self.closing

        def decide(rows: Sequence[PoolRow]) -> list[PoolRow]:
            nonlocal found
            own, gone = self._noted(rows, now)
            if self._is_lost:
                found = msgspec.structs.replace(self.mine, held=()), frozenset()
                return []
            held = own.member.held if own.member is not None and own.member.owner == self.terms.owner else ()
            found = mine, _ = self._said(held, own.wish or Wish(), now, seen, busy)
            if own.member is not None and mine == msgspec.structs.replace(own.member, beat=mine.beat) and not gone:
                return [msgspec.structs.replace(own, member=mine)] if now >= self._next_beat else []
            cleared = [msgspec.structs.replace(row, member=None) for row in gone]
            return [msgspec.structs.replace(own, member=mine), *cleared]

        try:
            self._pools.change(self.terms.pool, self.terms.study, decide)
            if found[0].beat != self.mine.beat:
                self._next_beat = now + BEAT_SECONDS
            self.mine, self.closing = found
            self.share = shares_of(self._members(self.mine))[self.terms.study]
            self._last_look = now
            self._is_told = False
        except JournalError as error:
            if not self._is_told:
                self._is_told = True
                log.warning(
                    "study %r: pool %s cannot be read or written. Jobs begin on the slots that are held for %g s more: "
                    "%s", self.terms.study, self.terms.pool, LEASE_SECONDS, error,
                )  # fmt: skip
        self._next_look = now + (EXCHANGE_SECONDS if self.others or self._is_told else ALONE_SECONDS)
        return not self._is_lost

    def leave(self) -> None:
        """Give everything back: the study has ended. Where that fails, the lease runs out."""
        try:
            self._pools.leave(self.terms.pool, self.terms.study, self.terms.owner)
        except JournalError as error:
            log.warning("study %r leaves pool %s late: %s", self.terms.study, self.terms.pool, error)

    def _members(self, mine: Member) -> list[Member]:
        return [mine, *(row.member for row in self.others if row.member is not None)]

    def _said(
        self, held: Sequence[str], wish: Wish, now: float, seen: Sequence[str], busy: Sequence[str]
    ) -> tuple[Member, frozenset[str]]:
        # What it says, and which of the names that it holds it is to give back.
        named = self.terms.unit == "worker"
        mine = msgspec.structs.replace(
            self.mine,
            beat=(self.mine.beat + (now >= self._next_beat)) % MOST_SLOTS,  # a row that states more is damaged
            weight=self.terms.weight if wish.weight is None else wish.weight,
            priority=self.terms.priority if wish.priority is None else wish.priority,
            seen=len(seen),
            job_slots=self._study.job_slots,
            usable=tuple(name for name in seen if len(name) <= MOST_NAME)[:MOST_NAMES] if named else (),
            held=tuple(held),
        )
        capacity = capacity_of(self._members(mine))
        most = min(capacity, len(seen))
        demand = max(len(busy), min(most, self._study.demand(most)))
        mine = msgspec.structs.replace(mine, demand=demand, spare=min(max(0, most - demand), self._study.spare(most)))
        members = self._members(mine)
        number = numbers_of(members)[mine.study]
        usable = mine.usable if named else tuple(map(str, range(capacity)))
        useful = set(usable)
        keeps = sorted(held, key=lambda name: (name not in useful, name not in busy, name))
        surplus = {name for place, name in enumerate(keeps) if place >= number or name not in useful}
        kept = [name for name in keeps if name not in surplus or name in busy]
        taken = {name for member in members for name in member.held}
        free = [name for name in usable if name not in taken][: max(0, number - len(kept))]
        return msgspec.structs.replace(mine, held=tuple(sorted([*kept, *free]))), frozenset(surplus.intersection(busy))

    def _noted(self, rows: Sequence[PoolRow], now: float) -> tuple[PoolRow, list[PoolRow]]:
        # The study's own row, and those of others that give no sign of life; notes who is there, by this clock. Times
        # are noted anew after a time in which nobody looked.
        anew = now > self._last_look + LEASE_SECONDS / 2
        known, self._signs, self.others = self._signs, {}, []
        own, gone = PoolRow(self.terms.pool, self.terms.study, None), list[PoolRow]()
        for row in rows:
            sign = known.get(row.study)
            member = row.member
            if member is not None and (sign is None or anew or sign[:2] != (member.owner, member.beat)):
                sign = member.owner, member.beat, now
            if member is not None and sign is not None:
                self._signs[row.study] = sign
            is_gone = sign is not None and now > sign[2] + LEASE_SECONDS
            if row.study == self.terms.study:
                own = row
                self._note_owner(member, is_gone)
            elif member is not None and member.unit == self.terms.unit:
                (gone if is_gone else self.others).append(row)
        return own, gone

    def _note_owner(self, member: Member | None, is_gone: bool) -> None:
        # Another controller of the study may have its row; without a sign of life that is taken back.
        is_anothers = self._last_look > -math.inf and member is not None and member.owner != self.terms.owner
        was_lost, self._is_lost = self._is_lost, is_anothers and not is_gone
        if self._is_lost and not was_lost and member is not None:
            log.warning(
                "study %r: its row in pool %s has another owner, %s. It begins no jobs while that one gives signs of "
                "life, and for %g s after the last one.",
                self.terms.study, self.terms.pool, shown(member.owner), LEASE_SECONDS,
            )  # fmt: skip
