"""PoolSeat: one study's place in a pool, as its controller keeps it: what it says there, what it holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from hpo_core.journal.protocol import Owner
from hpo_core.model.devices.pool_member import (
    MOST_CLUSTER,
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
from hpo_core.pool.arbiter import Pool, Position
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
    """What the names of a pool stand for, and how a study uses them."""

    word: str = ""
    """The names in words; studies whose names have another one are not in the pool. Empty: slots that are counted."""
    patience: float = PATIENCE_SECONDS
    """Seconds, see :mod:`hpo_core.pool.arbiter`."""
    any_will_do: bool = False
    """Whether each name is as good for the study as another one."""
    whole: bool = False
    """Whether it takes all slots of a worker, or none."""
    several_jobs: bool = False
    """Whether several jobs run on a name at once."""
    settle: float = 0.0
    """Seconds between the moment when a name comes from another study and the first job there."""


COUNTED = Kind(any_will_do=True)
"""Slots of workers that each study has for itself."""
WORKER_SLOTS = Kind(word="worker slot", any_will_do=True)
"""Slots of workers that all studies use."""
WHOLE_WORKERS = Kind(word="worker slot", whole=True)
"""The same for a study whose models hop."""
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
    slots: int | None = None
    """Slots of the pool; None: as many as there are."""
    shared_cluster: bool = True
    """Whether the members use one cluster; else each has workers of its own."""
    cluster: str = ""
    """Address of that one, also where the pool has a name."""
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
    """One name for each scheduler, as far as the address tells."""
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
        slots=share.slots,
        shared_cluster=isinstance(spec.cluster, AddressClusterSpec),
        cluster=_address(spec.cluster.place, owner.host) if isinstance(spec.cluster, AddressClusterSpec) else "",
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
    """What a study sees and uses of its pool at one moment."""

    seen: int
    """Slots or devices of its cluster."""
    used: int
    """Number of them on which its jobs run."""
    most: int
    """Largest number that submitted jobs used or waited for at once since the last look."""
    usable: Sequence[str] = ()
    """Names that it could use now, preferred ones first; none where slots are counted."""
    busy: Sequence[str] = ()
    """Names on which jobs run, the one with the youngest job last."""
    ending: Sequence[str] = ()
    """Names of them where the job ends within a second, and that are of no more use then."""
    there: Sequence[str] = ()
    """All names that it sees."""


class PoolSeat:
    """Looks at the pool about once a second, and writes where something changed. Used by one thread.

    Whoever writes computes what all studies of the pool hold from then on; the others read it.

    Args:
        pools: rows of the journal's database.
        terms: the study's part in its pool.
        study: says what it could use now.
        kind: what it holds.
    """

    def __init__(self, pools: Pools, terms: Terms, study: Claimant, kind: Kind = COUNTED) -> None:
        self.terms = terms
        self.kind = kind
        self.position: Position | None = None
        """Where the study stands, as of the last look."""
        self.mine = Member(
            study=terms.study,
            owner=terms.owner,
            weight=terms.weight,
            priority=terms.priority,
            kind=kind.word,
            any_will_do=kind.any_will_do,
            whole=kind.whole,
        )
        """What the study said last."""
        self.grant = NOTHING
        """What it holds, as of the last look."""
        self.others: list[PoolRow] = []
        """Rows of the other studies of the pool that give signs of life."""
        self._pools = pools
        self._study = study
        self._signs: dict[str, tuple[str, int, float]] = {}
        """By member: owner, beat, and when that was new."""
        self._is_lost = False
        """Whether another owner has the study's row, and gives signs of life, or did so a moment ago."""
        self._is_told = False
        self._seen = 0
        self._next_look = -math.inf
        self._next_beat = -math.inf
        self._last_look = -math.inf
        self._short_since: float | None = None
        self._over_since: float | None = None
        self._unused_since: float | None = None
        self._limit: int | None = None
        """Largest number of slots that it claims, where it left others unused; None: all that it could use."""
        self._probe_at = math.inf
        self._of_others: set[str] = set()
        """Names that others held at the last look."""
        self._opens_at: dict[str, float] = {}
        """By name that came from another study: when the first job may begin there."""

    @property
    def row(self) -> PoolRow:
        """The study's own row, as of the last look."""
        return PoolRow(self.terms.pool, self.terms.study, self.mine, self.grant)

    def open(self, now: float) -> set[str]:
        """Names on which jobs may begin; none where what the study held at its last look may be another's by now."""
        if not self.is_fresh(now):
            return set()
        return {name for name in self.grant.held if self._opens_at.get(name, now) <= now}.difference(self.grant.closing)

    def goes_back(self, names: Collection[str]) -> bool:
        """Whether another study may get what a job leaves on these names: then it looks at once."""
        return bool(self.grant.closing) or (bool(self.kind.word) and not set(names).issubset(self.mine.usable))

    def is_fresh(self, now: float) -> bool:
        """Whether what the study held at its last look is still its own."""
        return not self._is_lost and now <= self._last_look + LEASE_SECONDS

    def is_due(self, now: float, seen: int) -> bool:
        """Whether it is time to look; at once where the cluster changed, for a worker that joins is used at once."""
        return now >= self._next_look or seen != self._seen

    def look_soon(self) -> None:
        """Have it look at the next opportunity: a name that others wait for became idle. Any thread may say so."""
        self._next_look = -math.inf

    def exchange(self, now: float, use: Use) -> bool:
        """Look at the pool where it is time, and write what changed. A database that fails is left alone.

        Returns:
            Whether it looked, and has its row.
        """
        if not self.is_due(now, use.seen):
            return False
        self._seen = use.seen
        pool, study = self.terms.pool, self.terms.study
        before = self._short_since, self._over_since

        written: RowChange | None = None

        def decide(rows: Sequence[PoolRow]) -> RowChange | None:
            nonlocal written
            written = None
            self._short_since, self._over_since = before  # a name that it was given and has not used may go again
            mine, grant = self._noted(rows, now, use)
            if self._is_lost:
                return None
            mine = self._placed(mine, use, {study: grant}, before, now)
            grants = self._pool(mine, use, {study: grant}).arbitrate(self._idle(use, grant))
            mine = self._placed(mine, use, grants, before, now)
            gone = tuple(row.member for row in rows if row.member is not None and self._is_gone(row.member, now))
            written = RowChange(msgspec.structs.replace(mine, beat=self.mine.beat + 1), grants, gone)
            return written

        try:
            is_due = now >= self._next_beat and not self._is_lost
            if not is_due:
                rows = self._pools.look(pool, study)
                mine, grant = self._noted(rows, now, use)
                mine = self._placed(mine, use, {study: grant}, before, now)
                is_due = not self._is_lost and (
                    now >= self._next_beat
                    or any(row.member is not None and self._is_gone(row.member, now) for row in rows)
                    or _told_at_once(mine, self.kind) != _told_at_once(self.mine, self.kind)
                    or self._gives_back(mine, grant, self._idle(use, grant))
                )
                if not is_due:
                    self._take(grant, now)
            if is_due:
                self._pools.change(pool, study, decide)
            if written is not None:
                self._take(written.grants[study], now)
                self._next_beat, self.mine = now + BEAT_SECONDS, written.mine
            self._last_look = now
            self._is_told = False
        except JournalError as error:
            if not self._is_told:
                self._is_told = True
                log.warning(
                    "study %r: pool %s cannot be read or written. Jobs begin on the slots that are held for %g s more: "
                    "%s", study, pool, LEASE_SECONDS, error,
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

    def _noted(self, rows: Sequence[PoolRow], now: float, use: Use) -> tuple[Member, Grant]:
        """What the study should say, and what it holds, as the rows are; notes who else is there."""
        own = next((row for row in rows if row.study == self.terms.study), None)
        self._note_signs(rows, now)
        self._note_owner(None if own is None else own.member, now)
        self.others = [
            self._as_of(row, now)
            for row in rows
            if row.member is not None and row.study != self.terms.study and row.member.kind == self.kind.word
            and not self._is_gone(row.member, now)
        ]  # fmt: skip
        is_mine = own is not None and own.member is not None and own.member.owner == self.terms.owner
        grant = own.grant if own is not None and is_mine else NOTHING
        wish = Wish() if own is None or own.wish is None else own.wish
        told = [name for name in dict.fromkeys((*use.busy, *use.usable)) if len(name) <= MOST_NAME]
        of_use = set(use.usable)
        mine = msgspec.structs.replace(
            self.mine,
            weight=self.terms.weight if wish.weight is None else wish.weight,
            priority=self.terms.priority if wish.priority is None else wish.priority,
            cluster=self.terms.cluster[:MOST_CLUSTER],
            seen=use.seen,
            stated=self.terms.slots,
            job_slots=self._study.job_slots,
            usable=tuple(name for name in told if name in of_use)[:MOST_DEVICES],
            ending=tuple(sorted(name for name in use.ending if name in grant.held and name not in of_use)),
        )
        waited = 0.0 if self._short_since is None else round(now - self._short_since, 1)  # not as of the last look
        mine = msgspec.structs.replace(mine, waited=waited)
        most = min(self._pool(mine, use, {mine.study: grant}).capacity, use.seen)
        demand = self._claimed(most, now, use)
        spare = min(max(0, most - demand), self._study.spare(most))
        return msgspec.structs.replace(mine, demand=demand, spare=spare), grant

    def _claimed(self, most: int, now: float, use: Use) -> int:
        """Slots that the study could use; where it leaves some unused, no more than it uses, for a while."""
        due = 0 if self.position is None else self.position.share  # what is lent may stay unused
        idle = min(len(self.open(now)), due) - use.most
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

    def _placed(
        self,
        mine: Member,
        use: Use,
        grants: Mapping[str, Grant],
        before: tuple[float | None, float | None],
        now: float,
    ) -> Member:
        """Find the study's position with these grants, and say how long it has waited, or has had more than others.

        Its precedence follows by the rule of :class:`Claim`.

        Args:
            before: since when it has less, or more, than its ideal share, as of the grants that are written.
        """
        grant = grants[mine.study]
        self.position = position = self._pool(mine, use, grants).position(mine.study)
        rest = position.ideal % mine.job_slots
        held = len(grant.held) - min(position.lent, max(0, len(grant.held) - position.share))
        short = held < position.ideal
        over = held > position.ideal - rest and not short
        short_since, over_since = before
        self._short_since = (now if short_since is None else short_since) if short else None
        self._over_since = (now if over_since is None else over_since) if over else None
        turn = ROUND_SECONDS * float(rest) / mine.job_slots
        waited, precedence = 0.0, 0
        if self._short_since is not None:  # nobody loses a slot to a study whose turn has not come
            waited = now - self._short_since
            precedence = int(waited) + (0 if waited >= ROUND_SECONDS - turn else -JUST_BEGUN)
        if self._over_since is not None:
            rounded_up = now - self._over_since
            precedence = JUST_BEGUN if rounded_up < turn else -int(rounded_up)
        after = self.terms.preempt_after
        asks = after is not None and waited >= after and held < position.share
        precedence = max(-JUST_BEGUN, min(precedence, JUST_BEGUN))
        return msgspec.structs.replace(mine, precedence=precedence, waited=round(waited, 1), asks=asks)

    # What it holds.

    def _pool(self, mine: Member, use: Use, grants: Mapping[str, Grant]) -> Pool:
        """The pool as it is, with other grants for some of its studies."""
        members = [mine, *(row.member for row in self.others if row.member is not None)]
        there = (*use.there, *use.busy) if self.kind.word else None
        known = {row.study: row.grant for row in self.others}
        return Pool(members, {**known, **grants}, patience=self.kind.patience, there=there)

    def _idle(self, use: Use, grant: Grant) -> set[str]:
        """Held names on which no job runs; of slots that are counted, the closing ones first."""
        if self.kind.word:
            return set(grant.held).difference(use.busy)
        return set((*(name for name in grant.held if name not in grant.closing), *grant.closing)[use.used :])

    def _gives_back(self, mine: Member, grant: Grant, idle: set[str]) -> bool:
        """Whether others may get something of what is idle."""
        if self.kind.word and not idle.issubset(mine.usable):
            return True
        return bool(idle) and (bool(grant.closing) or len(grant.held) - len(mine.ending) > mine.demand + mine.spare)

    def _take(self, grant: Grant, now: float) -> None:
        gained = set(grant.held).difference(self.grant.held)
        for name in gained & self._of_others:
            self._opens_at[name] = now + self.kind.settle
        self._of_others.difference_update(self.grant.held)
        self._of_others.update(name for row in self.others for name in row.grant.held)
        self.grant = grant

    # Who is there.

    def _note_owner(self, row: Member | None, now: float) -> None:
        """Note whether another owner has the row: a controller that goes on with the study, while this one is not
        fenced yet, or somebody who wrote there once. That one gives no further sign of life, and the row is taken back.
        """
        lost = self._last_look > -math.inf and row is not None and row.owner != self.terms.owner
        lost = lost and not self._has_no_sign(self.terms.study, now)
        if row is not None and lost and not self._is_lost:
            log.warning(
                "study %r: its row in pool %s has another owner, %s. It begins no jobs while that one gives signs of "
                "life, and for %g s after the last one.",
                self.terms.study, self.terms.pool, shown(row.owner), LEASE_SECONDS,
            )  # fmt: skip
        if self._is_lost and not lost:
            log.warning("study %r has its row in pool %s again.", self.terms.study, self.terms.pool)
        self._is_lost = lost

    def _note_signs(self, rows: Sequence[PoolRow], now: float) -> None:
        """Note when each member last gave a sign of life, by this clock; anew after a time in which nobody looked."""
        anew = now > self._last_look + LEASE_SECONDS / 2
        known, self._signs = self._signs, {}
        for row in rows:
            if row.member is not None:
                sign = known.get(row.study)
                if sign is None or anew or sign[:2] != (row.member.owner, row.member.beat):
                    sign = (row.member.owner, row.member.beat, now)
                self._signs[row.study] = sign

    def _as_of(self, row: PoolRow, now: float) -> PoolRow:
        """A row with the time that its study has waited by now; it was written up to :data:`BEAT_SECONDS` ago."""
        member = row.member
        if member is None or not member.waited:
            return row
        waited = member.waited + max(0.0, now - self._signs[row.study][2])
        return msgspec.structs.replace(row, member=msgspec.structs.replace(member, waited=round(waited, 1)))

    def _is_gone(self, member: Member, now: float) -> bool:
        return member.study != self.terms.study and self._has_no_sign(member.study, now)

    def _has_no_sign(self, study: str, now: float) -> bool:
        sign = self._signs.get(study)
        return sign is not None and now > sign[2] + LEASE_SECONDS


def _told_at_once(member: Member, kind: Kind) -> Member:
    """What the others must know at once; the rest may wait for the next sign of life."""
    turn = member.precedence if member.precedence == JUST_BEGUN else (member.precedence > 0) - (member.precedence < 0)
    usable = tuple(sorted(member.usable))  # which of them it prefers may wait
    patient = float(member.waited >= kind.patience)
    return msgspec.structs.replace(member, beat=0, waited=patient, precedence=turn, usable=usable)
