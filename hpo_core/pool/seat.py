"""PoolSeat: one study's place in a pool, as its controller keeps it: what it says there, what it holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hpo_core.journal.protocol import Owner
from hpo_core.model.devices.pool_member import (
    MOST_DEVICES,
    MOST_NAME,
    NOTHING,
    POOL_ENDS,
    Grant,
    Member,
    Wish,
)
from hpo_core.model.errors import JournalError
from hpo_core.model.short_text import shown
from hpo_core.pool.arbiter import Pool, Position, capacity_of
from hpo_core.pool.division import JUST_BEGUN
from hpo_core.pool.store import PoolRow, Pools, RowChange
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
ROUND_SECONDS = 20.0
"""Length of a round in which studies take turns with the slots that rounding leaves."""
UNUSED_SECONDS = 3.0
"""Seconds for which a study may leave a slot unused before it claims no more than it uses."""
PROBE_SECONDS = 30.0
"""Seconds after which it claims more again, for what it could use may have changed."""
PATIENCE_SECONDS = 5.0
"""Seconds that a study waits for a worker of a study within its share before that one gives it up."""
SETTLE_SECONDS = 3.0
"""Age of what a controller knows of a device's memory, at most: a look, a heartbeat and an answer, a second each."""

_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}

log = logging.getLogger("hpo.pool")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of names that a pool has, and the way in which a study uses them."""

    word: str = ""
    """The names in words; studies whose names have another one are not in the pool. Empty: slots that are counted."""
    patience: float = 0.0
    """Seconds for which others wait before the study gives up a name within its share; 0: any other one will do."""
    several_jobs: bool = False
    """True if several jobs run on a name at once."""
    settle: float = 0.0
    """Seconds between the moment when it gets a name that another study may have had and its first job there."""


COUNTED = Kind()
"""Slots of workers that each study has for itself."""
WORKERS = Kind(word="worker")
"""Workers that all studies use, with all of their slots."""
HOPPED_WORKERS = Kind(word="worker", patience=PATIENCE_SECONDS)
"""The same for a study whose models hop: its partitions lie on some of them."""
DEVICES = Kind(word="device", patience=ROUND_SECONDS, several_jobs=True, settle=SETTLE_SECONDS)
"""Devices on which a study packs its jobs; what is known of a device's free memory is from before it changed hands."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """A study's part in a pool, as its settings say."""

    pool: str
    study: str
    owner: str
    """The controller, told apart from every other one."""
    weight: float = 1.0
    priority: int = 0
    shared_cluster: bool = True
    """True if the members use one cluster; else each has workers of its own."""
    preempt_after: float | None = None
    """Seconds of waiting after which it asks for a slot of another study; None: never."""


def pool_of(spec: StudySpec, host: str) -> str:
    """The name of the pool that a study with ``share`` is in.

    Workers that are started on a machine are shared with studies of that machine alone, as is a scheduler at a loopback
    address, however that is written. Studies that hold whole devices are in another pool than those that hold slots: a
    slot says nothing of the device that its job uses.

    Args:
        host: the machine of the study's controller.
    """
    share, cluster = spec.sharing, spec.cluster
    if share.pool is None:
        name = _address(cluster.place, host)
    elif isinstance(cluster, LocalClusterSpec | LocalCudaClusterSpec):
        name = f"{share.pool} on {host}"
    else:
        name = share.pool
    return name + POOL_ENDS[spec.slot_word]


def _address(place: str, host: str) -> str:
    scheme, separator, rest = place.rstrip("/").rpartition("://")
    name, colon, port = rest.rpartition(":")
    if name.lower() in _LOOPBACK:
        return f"{scheme}{separator}127.0.0.1{colon}{port} on {host}"
    return f"{scheme}{separator}{rest.lower()}"


def terms_of(spec: StudySpec, owner: Owner) -> Terms:
    """A study's part in its pool, as its settings say."""
    share = spec.sharing
    return Terms(
        pool=pool_of(spec, owner.host),
        study=spec.study,
        owner=f"{owner.label()}:{owner.born:.2f}",
        weight=share.weight,
        priority=share.priority,
        shared_cluster=isinstance(spec.cluster, AddressClusterSpec),
        preempt_after=share.preempt,
    )


class Claimant(Protocol):
    """A study, as far as its pool asks."""

    def demand(self, most: int) -> int:
        """Slots that it could use now, counted up to ``most``."""
        ...

    def spare(self, most: int) -> int:
        """Slots beyond its demand that it could use once a job ends, counted up to ``most``."""
        ...

    @property
    def job_slots(self) -> int:
        """Slots of its next job."""
        ...


class Use(NamedTuple):
    """The part of its pool that a study sees and uses at one moment."""

    seen: int
    """Names that its cluster has."""
    used: int
    """Number of them on which its jobs run."""
    most: int
    """Largest number that submitted jobs used or waited for at once since the last look."""
    usable: Sequence[str] = ()
    """Names that it could use now, preferred ones first; none where slots are counted."""
    busy: Sequence[str] = ()
    """Names on which jobs run, the one with the youngest job last."""


class Turn(NamedTuple):
    """Where a study stands, and since when it holds less than its ideal share, or is rounded up."""

    position: Position
    short_since: float | None = None
    over_since: float | None = None


class PoolSeat:
    """Looks at the pool about once a second, and writes where something changes. Used by one thread.

    Whoever looks computes what all studies of the pool hold from then on.

    Args:
        pools: rows of the journal's database.
        terms: the study's part in its pool.
        study: says what it could use now.
        kind: what it holds.
    """

    def __init__(self, pools: Pools, terms: Terms, study: Claimant, kind: Kind = COUNTED) -> None:
        self.terms = terms
        self.kind = kind
        self.mine = Member(
            study=terms.study,
            owner=terms.owner,
            weight=terms.weight,
            priority=terms.priority,
            kind=kind.word,
            patience=kind.patience,
        )
        """As the study said last."""
        self.grant = NOTHING
        """As of the last look."""
        self.others: list[PoolRow] = []
        """Rows of the other studies of the pool that give signs of life."""
        self._pools = pools
        self._study = study
        self._signs: dict[str, tuple[str, int, float]] = {}
        """By member: owner, beat, and when that was new."""
        self._is_lost = False
        """True if another owner has the study's row, and gives signs of life, or did so a moment ago."""
        self._is_told = False
        self._seen = 0
        self._next_look = self._next_beat = self._last_look = -math.inf
        self._turn: Turn | None = None
        """As of the last look."""
        self._unused_since: float | None = None
        self._limit: int | None = None
        """Largest number of names that it claims, where it left others unused; None: all that it could use."""
        self._probe_at = math.inf
        self._opens_at: dict[str, float] = {}
        """By name that it got while others were there: when the first job may begin there."""

    @property
    def position(self) -> Position | None:
        """Where the study stands, as of the last look."""
        return None if self._turn is None else self._turn.position

    @property
    def row(self) -> PoolRow:
        """The study's own row, as of the last look."""
        return PoolRow(self.terms.pool, self.terms.study, self.mine, self.grant)

    def open(self, now: float) -> set[str]:
        """Names on which jobs may begin; none where what the study held at its last look may be another's by now."""
        if not self.is_fresh(now):
            return set()
        return {name for name in self.grant.held if self._opens_at.get(name, now) <= now}.difference(self.grant.closing)

    def due(self) -> int:
        """Number of names that its share gives it, whichever it holds now."""
        return 0 if self.position is None else self.position.share

    def goes_back(self, names: Collection[str]) -> bool:
        """True if another study may get what a job leaves on these names: then it looks at once."""
        return bool(self.grant.closing) or (bool(self.kind.word) and not set(names).issubset(self.mine.usable))

    def is_fresh(self, now: float) -> bool:
        return not self._is_lost and now <= self._last_look + LEASE_SECONDS

    def is_due(self, now: float, seen: int) -> bool:
        """True if it is time to look; at once where the cluster changed, for a worker that joins is used at once."""
        return now >= self._next_look or seen != self._seen

    def look_soon(self) -> None:
        """Have it look at the next opportunity: a name that others wait for became idle. Any thread may say so."""
        self._next_look = -math.inf

    def exchange(self, now: float, use: Use) -> bool:
        """Look at the pool where it is time, and write what changes. A database that fails is left alone.

        Returns:
            Whether it looked, and has its row.
        """
        if not self.is_due(now, use.seen):
            return False
        self._seen = use.seen
        seen: list[tuple[Turn, Member, Grant, bool]] = []

        def decide(rows: Sequence[PoolRow]) -> RowChange | None:
            seen.clear()
            own = self._noted(rows, now)
            if self._is_lost:
                return None
            mine = self._said(own, use, now)
            members = [mine, *(row.member for row in self.others if row.member is not None)]
            grants = {row.study: row.grant for row in [own, *self.others]}
            after = Pool(members, grants).arbitrate(set(own.grant.held).difference(use.busy))
            position, grant = Pool(members, after).position(mine.study), after[mine.study]
            turn = self._stands(position, grant, mine.job_slots, now)
            mine = self._in_turn(mine, grant, turn, now)
            gone = tuple(row.member for row in rows if row.member is not None and self._is_gone(row.member, now))
            is_told = bool(gone) or after != grants or now >= self._next_beat or _matters(mine) != _matters(self.mine)
            seen.append((turn, mine, grant, is_told))
            return RowChange(mine, after, gone) if is_told else None

        try:
            self._pools.change(self.terms.pool, self.terms.study, decide)
            for turn, mine, grant, is_told in seen:
                self._turn = turn
                self._take(grant, now)
                if is_told:
                    self._next_beat, self.mine = now + BEAT_SECONDS, mine
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

    # What it says.

    def _said(self, own: PoolRow, use: Use, now: float) -> Member:
        wish = own.wish or Wish()
        mine = msgspec.structs.replace(
            self.mine,
            beat=self.mine.beat + 1,
            weight=self.terms.weight if wish.weight is None else wish.weight,
            priority=self.terms.priority if wish.priority is None else wish.priority,
            seen=use.seen,
            job_slots=self._study.job_slots,
            usable=tuple(name for name in use.usable if len(name) <= MOST_NAME)[:MOST_DEVICES],
        )
        members = [mine, *(row.member for row in self.others if row.member is not None)]
        named = {name for member in members for name in member.usable}.union(own.grant.held)
        most = min(capacity_of(members, named if self.kind.word else ()), use.seen)
        demand = self._claimed(most, now, use)
        mine = msgspec.structs.replace(mine, demand=demand, spare=min(max(0, most - demand), self._study.spare(most)))
        return mine if self._turn is None else self._in_turn(mine, own.grant, self._turn, now)

    def _in_turn(self, mine: Member, grant: Grant, turn: Turn, now: float) -> Member:
        # Say how long it has waited, or been rounded up, by the rule of :class:`Claim`.
        position, short_since, over_since = turn
        rest = position.ideal % mine.job_slots
        length = ROUND_SECONDS * float(rest) / mine.job_slots
        waited, precedence = 0.0, 0
        if short_since is not None:  # nobody loses a name to a study whose turn has not come
            waited = now - short_since
            precedence = int(waited) + (0 if waited >= ROUND_SECONDS - length else -JUST_BEGUN)
        elif over_since is not None:
            rounded_up = now - over_since
            precedence = JUST_BEGUN if rounded_up < length else -int(rounded_up)
        after = self.terms.preempt_after
        return msgspec.structs.replace(
            mine,
            precedence=max(-JUST_BEGUN, min(precedence, JUST_BEGUN)),
            waited=round(waited, 1),
            asks=after is not None and waited >= after and len(grant.held) < position.share,
        )

    def _stands(self, position: Position, grant: Grant, job_slots: int, now: float) -> Turn:
        # Since when it holds less than its ideal share, or is rounded up; what is lent gives nobody a turn.
        counts, since = min(len(grant.held), position.share), self._turn or Turn(position)
        short = counts < position.ideal
        over = not short and counts > position.ideal - position.ideal % job_slots
        return Turn(
            position,
            (now if since.short_since is None else since.short_since) if short else None,
            (now if since.over_since is None else since.over_since) if over else None,
        )

    def _claimed(self, most: int, now: float, use: Use) -> int:
        # Names that the study could use; where it leaves some unused, no more than it uses, for a while.
        idle = min(len(self.open(now)), self.due()) - use.most  # what is lent may stay unused
        if idle <= 0:
            self._unused_since = None
        elif self._unused_since is None or idle < self._study.job_slots:
            self._unused_since = now
        elif now >= self._unused_since + UNUSED_SECONDS:
            self._limit, self._probe_at = max(use.most, self._study.job_slots), now + PROBE_SECONDS
        if now >= self._probe_at:
            self._limit, self._unused_since, self._probe_at = None, None, math.inf
        demand = max(use.used, min(most, self._study.demand(most)))
        return demand if self._limit is None else min(demand, max(self._limit, use.most))

    def _take(self, grant: Grant, now: float) -> None:
        if self.others:
            self._opens_at |= dict.fromkeys(set(grant.held).difference(self.grant.held), now + self.kind.settle)
        self.grant = grant

    # Who is there.

    def _noted(self, rows: Sequence[PoolRow], now: float) -> PoolRow:
        # The study's own row, without what another owner holds; notes who else is there.
        nobody = PoolRow(self.terms.pool, self.terms.study, None)
        own = next((row for row in rows if row.study == self.terms.study), nobody)
        self._note_signs(rows, now)
        self._note_owner(own.member, now)
        self.others = [
            row for row in rows
            if row.member is not None and row.study != self.terms.study and row.member.kind == self.kind.word
            and not self._is_gone(row.member, now)
        ]  # fmt: skip
        return own if own.owner == self.terms.owner else msgspec.structs.replace(own, grant=NOTHING)

    def _note_owner(self, row: Member | None, now: float) -> None:
        # Note whether another controller of the study has its row; without a sign of life that is taken back.
        is_anothers = self._last_look > -math.inf and row is not None and row.owner != self.terms.owner
        was_lost, self._is_lost = self._is_lost, is_anothers and not self._has_no_sign(self.terms.study, now)
        if row is not None and self._is_lost and not was_lost:
            log.warning(
                "study %r: its row in pool %s has another owner, %s. It begins no jobs while that one gives signs of "
                "life, and for %g s after the last one.",
                self.terms.study, self.terms.pool, shown(row.owner), LEASE_SECONDS,
            )  # fmt: skip

    def _note_signs(self, rows: Sequence[PoolRow], now: float) -> None:
        # Note when each member last gave a sign of life, by this clock; anew after a time in which nobody looked.
        anew = now > self._last_look + LEASE_SECONDS / 2
        known, self._signs = self._signs, {}
        for row in rows:
            if row.member is not None:
                sign = known.get(row.study)
                if sign is None or anew or sign[:2] != (row.member.owner, row.member.beat):
                    sign = (row.member.owner, row.member.beat, now)
                self._signs[row.study] = sign

    def _is_gone(self, member: Member, now: float) -> bool:
        return member.study != self.terms.study and self._has_no_sign(member.study, now)

    def _has_no_sign(self, study: str, now: float) -> bool:
        sign = self._signs.get(study)
        return sign is not None and now > sign[2] + LEASE_SECONDS


def _matters(member: Member) -> Member:
    # The part that others must know at once; the rest may wait for the next sign of life.
    turn = member.precedence if member.precedence == JUST_BEGUN else (member.precedence > 0) - (member.precedence < 0)
    usable = tuple(sorted(member.usable))  # which of them it prefers may wait
    return msgspec.structs.replace(member, beat=0, waited=0.0, precedence=turn, usable=usable)
