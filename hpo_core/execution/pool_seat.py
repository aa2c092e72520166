"""PoolSeat: one study's place in a pool, as its controller keeps it: what it publishes, what it may use."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.journal.pools import Change, PoolRow, Pools
from hpo_core.journal.protocol import Owner
from hpo_core.model.devices.pool_limits import MOST_CLUSTER, WHOLE_DEVICES
from hpo_core.model.devices.pool_member import Member, Wish
from hpo_core.model.errors import JournalError
from hpo_core.model.short_text import shown
from hpo_core.placement.shares.members import Position, capacity_of, position_of
from hpo_core.placement.shares.water_filling import JUST_BEGUN
from hpo_core.spec import StudySpec
from hpo_core.spec.clusters import AddressClusterSpec, LocalClusterSpec, LocalCudaClusterSpec

EXCHANGE_SECONDS = 1.0
"""Between two looks at the pool while other studies are in it."""
ALONE_SECONDS = 2.0
"""The same while none is: so long a newcomer waits for its first slot, at most."""
BEAT_SECONDS = 5.0
"""Between two signs of life."""
LEASE_SECONDS = 20.0
"""A study without a sign of life for so long holds nothing any more. Each reader counts by its own clock."""
ROUND_SECONDS = 20.0
"""Studies take turns with the slots that rounding leaves: of so many seconds each has what it was rounded down."""
UNUSED_SECONDS = 3.0
"""So long a study may leave a slot unused before it claims no more than it uses."""
PROBE_SECONDS = 30.0
"""After that it claims more again, for what it could use may have changed."""

_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}

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
    cluster: str = ""
    """Where that one is, also where the pool has a name."""
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
    share, cluster = spec.share, spec.cluster
    assert share is not None
    if share.pool is None:
        name = _address(cluster.place, host)
    elif isinstance(cluster, LocalClusterSpec | LocalCudaClusterSpec):
        name = f"{share.pool} on {host}"
    else:
        name = share.pool
    return f"{name}{WHOLE_DEVICES}" if spec.packs else name


def _address(place: str, host: str) -> str:
    """One name for each scheduler, as far as the address tells."""
    scheme, separator, rest = place.rstrip("/").rpartition("://")
    name, colon, port = rest.rpartition(":")
    if name.lower() in _LOOPBACK:
        return f"{scheme}{separator}127.0.0.1{colon}{port} on {host}"
    return f"{scheme}{separator}{rest.lower()}"


def terms_of(spec: StudySpec, owner: Owner) -> Terms:
    """A study's part in its pool, as its settings say."""
    share = spec.share
    assert share is not None
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


class PoolSeat:
    """Looks at the pool about once a second, and writes where something changed. Used by one thread.

    Args:
        pools: of the journal's database.
        terms: of the study in its pool.
        study: says what it could use now.
        devices: which devices it holds, where these have names; None: slots, of which any will do.
    """

    def __init__(self, pools: Pools, terms: Terms, study: Claimant, devices: DeviceHolding | None = None) -> None:
        self.terms = terms
        self.devices = devices
        self.position: Position | None = None
        """Where the study stands, as of the last exchange."""
        self.mine = Member(
            study=terms.study,
            owner=terms.owner,
            weight=terms.weight,
            priority=terms.priority,
            kind="" if devices is None else devices.kind,
        )
        """What the study published last."""
        self.others: list[Member] = []
        """Of the pool, with a sign of life."""
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
        """Slots that it claims at most, where it left others unused; None: all that it could use."""
        self._probe_at = math.inf

    def allowed(self, now: float) -> int:
        """Slots that jobs may begin on: no more than the share, so that what is too much is given back as jobs end."""
        if self.position is None or not self.is_fresh(now):
            return 0
        if self.devices is not None:
            return len(self.devices.open_of(self.mine, now))
        return min(self.position.share + self.position.lent, self.mine.held)

    def is_fresh(self, now: float) -> bool:
        """Whether what the study held at its last look is still its own."""
        return not self._is_lost and now <= self._last_look + LEASE_SECONDS

    def is_due(self, now: float, seen: int) -> bool:
        """Whether it is time to look; at once where the cluster changed, for a worker that joins is used at once."""
        return now >= self._next_look or seen != self._seen

    def look_soon(self) -> None:
        """At the next opportunity: a device that others wait for became idle. Any thread may say so."""
        self._next_look = -math.inf

    def exchange(self, now: float, *, seen: int, used: int, busy: int) -> bool:
        """Look at the pool where it is time, and publish what changed. A database that fails is left alone.

        Args:
            seen: slots of the study's cluster.
            used: slots that its jobs use now.
            busy: slots that submitted jobs used or waited for at once since the last exchange, at most.

        Returns:
            Whether it looked, and has its row.
        """
        if not self.is_due(now, seen):
            return False
        self._seen = seen

        before = self._short_since, self._over_since

        def decide(rows: Sequence[PoolRow]) -> Change | None:
            self._short_since, self._over_since = before  # what the look foresaw is decided here, maybe otherwise
            mine = self._settled(rows, now, seen=seen, used=used, busy=busy)
            if self._is_lost:
                return None
            gone = tuple(row.member for row in rows if row.member is not None and self._is_gone(row.member, now))
            self._next_beat = now + BEAT_SECONDS
            self.mine = msgspec.structs.replace(mine, beat=self.mine.beat + 1)
            return Change(self.mine, gone)

        pool, study = self.terms.pool, self.terms.study
        try:
            is_due = now >= self._next_beat and not self._is_lost
            if not is_due:
                waiting = self._short_since, self._over_since
                rows = self._pools.look(pool, study)
                mine = self._settled(rows, now, seen=seen, used=used, busy=busy)
                is_due = not self._is_lost and (
                    now >= self._next_beat or _told_at_once(mine) != _told_at_once(self.mine)
                )
                if is_due:  # it waits until what it found is written: another study may be first
                    self._short_since, self._over_since = waiting
            if is_due:
                self._pools.change(pool, study, decide)
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

    def _settled(self, rows: Sequence[PoolRow], now: float, *, seen: int, used: int, busy: int) -> Member:
        """What the study should publish, as the rows are; notes who else is there."""
        own = next((row for row in rows if row.study == self.terms.study), None)
        self._note_signs(rows, now)
        self._note_owner(None if own is None else own.member, now)
        self.others = [
            row.member
            for row in rows
            if row.member is not None and row.study != self.terms.study and row.member.kind == self.mine.kind
            and not self._is_gone(row.member, now)
        ]  # fmt: skip
        if self.devices is not None:
            self.others = self.devices.known(self.others)
        wish = Wish() if own is None or own.wish is None else own.wish
        mine = msgspec.structs.replace(
            self.mine,
            weight=self.terms.weight if wish.weight is None else wish.weight,
            priority=self.terms.priority if wish.priority is None else wish.priority,
            one_cluster=self.terms.shared_cluster,
            cluster=self.terms.cluster[:MOST_CLUSTER],
            seen=seen,
            stated=self.terms.slots,
            used=used,
            job_slots=self._study.job_slots,
        )
        if self.devices is not None:
            mine = self.devices.with_wants(mine)
        shared = seen if self.terms.shared_cluster and self.devices is None else None
        capacity = capacity_of((mine, *self.others), shared_cluster=shared)
        most = min(capacity, seen)
        demand = self._claimed(most, now, used=used, busy=busy)
        spare = min(max(0, most - demand), self._study.spare(most))
        mine = msgspec.structs.replace(mine, demand=demand, spare=spare)
        self.position = position_of(mine, self.others, capacity=capacity)
        if self.devices is not None:
            waited = 0.0 if self._short_since is None else round(now - self._short_since, 1)  # not as of the last look
            mine = msgspec.structs.replace(mine, waited=waited)
            mine, self.position = self.devices.settled(mine, self.others, self.position, now)
        return self._with_precedence(msgspec.structs.replace(mine, held=self.position.held), self.position, now)

    def _claimed(self, most: int, now: float, *, used: int, busy: int) -> int:
        """Slots that the study could use; where it leaves some unused, no more than it uses, for a while."""
        due = 0 if self.position is None else self.position.share  # what is lent may stay unused
        idle = min(self.allowed(now), due) - busy
        if idle <= 0:
            self._unused_since = None
        elif self._unused_since is None or idle < self._study.job_slots:
            self._unused_since = now
        elif now >= self._unused_since + UNUSED_SECONDS:
            self._limit, self._probe_at = max(busy, self._study.job_slots), now + PROBE_SECONDS
        if now >= self._probe_at:
            self._limit, self._unused_since, self._probe_at = None, None, math.inf
        demand = max(used, min(most, self._study.demand(most)))
        return demand if self._limit is None else min(demand, max(self._limit, busy))

    def _with_precedence(self, mine: Member, position: Position, now: float) -> Member:
        """With how long it has waited, or has had more than others, by :class:`Claim`'s rule."""
        rest = position.ideal % mine.job_slots
        held = mine.held - min(position.lent, max(0, mine.held - position.share))
        short = held < position.ideal
        over = held > position.ideal - rest and not short
        self._short_since = (now if self._short_since is None else self._short_since) if short else None
        self._over_since = (now if self._over_since is None else self._over_since) if over else None
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

    def _note_owner(self, row: Member | None, now: float) -> None:
        """Whether another owner has the row: a controller that goes on with the study, while this one is not fenced
        yet, or somebody who wrote there once. That one gives no further sign of life, and the row is taken back."""
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
        return member.study != self.terms.study and self._has_no_sign(member.study, now)

    def _has_no_sign(self, study: str, now: float) -> bool:
        sign = self._signs.get(study)
        return sign is not None and now > sign[2] + LEASE_SECONDS


def _told_at_once(member: Member) -> Member:
    """What the others must know at once; the rest may wait for the next sign of life."""
    kind = member.precedence if member.precedence == JUST_BEGUN else (member.precedence > 0) - (member.precedence < 0)
    wants = tuple(sorted(member.wants))  # which of them it prefers may wait
    return msgspec.structs.replace(member, beat=0, used=0, waited=0.0, precedence=kind, wants=wants)
