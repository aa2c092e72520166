"""The one rule of a pool: from what all studies say and hold to what each holds next. Pure, and one pass.

Slots, devices and workers have names; where studies only count slots, their names are numbers, any of which will do.
:func:`~hpo_core.pool.division.divide` says how many names each study is due (water-filling). Then, in this order:

1. A study keeps what it holds: no job that runs is ended for a share. Who writes gives back what is idle and closing,
   of no use to it, or beyond its share.
2. Free names go to studies that hold less than they are due: higher priorities first, then who has waited longest. Each
   takes those that the fewest others wait for. What is left is lent: to who has least for its weight.
3. Who is still due names is promised some of those that it could use, of the studies that have most above their share.
   Within its share a study gives one up where any other name will do for it, or to who has waited for ``patience``
   seconds, and longer than itself. A promised name is *closing*: no job begins there any more.

A name that its study gives back within a second (*ending*) is held, and does not count as one of those it has.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.pool_member import MOST_DEVICES, NOTHING, Grant, Member
from hpo_core.pool.division import Claim, divide, ideal_shares


def slot_name(worker: str, number: int) -> str:
    """Name by which all studies of a pool know one slot of a worker."""
    return f"{worker}#{number}"


def worker_of(slot: str) -> str:
    """The worker that a slot belongs to.

    >>> worker_of(slot_name("worker-3", 1))
    'worker-3'
    """
    return slot.rpartition("#")[0]


def capacity_of(members: Iterable[Member], named: Collection[str] = ()) -> int:
    """Number of slots or devices in a pool: the smallest that settings state, else what the largest cluster has.

    Args:
        named: names that the members hold or could use, of which there are as many at least.
    """
    found = list(members)
    stated = [member.stated for member in found if member.stated is not None]
    there = max(max((member.seen for member in found), default=0), len(named))
    return min(*stated, there) if stated and named else min(stated, default=there)


class Position(msgspec.Struct, frozen=True):
    """Where a study stands in its pool."""

    capacity: int
    """Slots or devices of the pool."""
    share: int
    """Number that the study is due."""
    ideal: Fraction
    """The share before it is rounded to whole jobs; no more than the study would use of what it could get now."""
    lent: int
    """Number beyond the share on which its jobs may begin: nobody who is due wants them."""
    wants: tuple[str, ...]
    """Names that the study could use now and does not hold, preferred ones first; none where it lacks nothing."""


class Pool:
    """All studies of a pool at one moment.

    Args:
        members: what each study says.
        grants: by study: what each has so far; a study without one has nothing.
        patience: seconds, see rule 3.
        there: names that the reader sees. Where the members name more than :data:`MOST_DEVICES` names, these alone
            count, so that rows which somebody planted hold up nobody; None: all count.

    >>> mine, other = (Member(study=name, kind="device", demand=2, usable=("x", "y")) for name in "ab")
    >>> Pool([mine, other], {"a": Grant(held=("x", "y"))}).arbitrate()["a"]
    Grant(held=('x', 'y'), closing=('y',), heirs=('b',))
    >>> Pool([mine, other], {"a": Grant(held=("x",))}).arbitrate()["b"]
    Grant(held=('y',), closing=(), heirs=())
    """

    def __init__(
        self,
        members: Iterable[Member],
        grants: Mapping[str, Grant],
        *,
        patience: float = 0.0,
        there: Collection[str] | None = None,
    ) -> None:
        self.members = sorted(members, key=lambda member: (-member.priority, -member.waited, member.study))
        self.patience = patience
        self.grants = {member.study: grants.get(member.study, NOTHING) for member in self.members}
        self.usable = {member.study: member.usable for member in self.members}
        self.holder: dict[str, str] = {}
        """By name: the study that holds it."""
        for study in sorted(self.grants):
            self.holder = dict.fromkeys(self.grants[study].held, study) | self.holder
        self.unseen: dict[str, list[str]] = defaultdict(list)
        named = set(self.holder).union(*self.usable.values())
        if there is not None and len(named) > MOST_DEVICES:
            named.intersection_update(there)
            self.usable = {study: tuple(filter(named.__contains__, names)) for study, names in self.usable.items()}
            for name in [name for name in self.holder if name not in named]:
                self.unseen[self.holder.pop(name)].append(name)
        only_counted = not any(member.kind for member in self.members)
        self.capacity = capacity_of(self.members, () if only_counted else named)
        if only_counted:
            self.capacity = min(self.capacity, MOST_DEVICES)
            named.update(map(str, range(self.capacity)))
            self.usable = dict.fromkeys(self.usable, tuple(map(str, range(self.capacity))))
        self.free = named - self.holder.keys()
        claims = [
            Claim(
                study=member.study,
                demand=member.demand,
                weight=member.weight,
                priority=member.priority,
                job_slots=member.job_slots,
                precedence=member.precedence,
            )
            for member in self.members
        ]
        self.shares = divide(self.capacity, claims)
        self._ideals = ideal_shares(self.capacity, claims)
        self.ending = {
            name for member in self.members for name in member.ending if self.holder.get(name) == member.study
        }
        self.held = Counter({member.study: 0 for member in self.members})
        """By study: number of names that it holds."""
        self.held.update(self.holder.values())
        self.count = Counter(self.held)
        """By study: number of names that it holds and does not give back within a second."""
        self.count.subtract(self.holder[name] for name in self.ending)

    def wants(self, member: Member) -> tuple[str, ...]:
        """Names that a study lacks; none where it has all that it could use."""
        if member.demand + member.spare <= self.count[member.study]:
            return ()
        return tuple(name for name in self.usable[member.study] if self.holder.get(name) != member.study)

    def position(self, study: str) -> Position:
        """Where a study stands."""
        (member,) = [one for one in self.members if one.study == study]
        share, held, wants = self.shares[study], self.held[study], self.wants(member)
        lent = max(0, held - len(self.grants[study].closing) - share)
        ideal = self._ideals[study]
        if wants or member.whole:
            ideal = min(ideal, Fraction(held - min(lent, max(0, held - share)) + len(wants)))
        return Position(self.capacity, share, ideal, lent, wants)

    def arbitrate(self, idle: Collection[str] = ()) -> dict[str, Grant]:
        """By study: what it holds from now on. The same again where nothing else has changed.

        Args:
            idle: names of the study that writes on which no job runs; others say nothing of theirs.
        """
        return _Dealing(self).grants(set(idle))


class _Dealing:
    """One pass of the rule: each name is given away at most once, and promised at most once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._members = {member.study: member for member in pool.members}
        self._holder = dict(pool.holder)
        self._ending = pool.ending
        self._count = dict(pool.count)
        self._units = {study: _units(member, pool.usable[study]) for study, member in self._members.items()}
        self._heirs = {
            name: heir
            for study, grant in pool.grants.items()
            for name, heir in zip(grant.closing, grant.heirs, strict=False)
            if pool.holder.get(name) == study
        }
        """By closing name: the study to which it was promised before."""
        self._free = pool.free.copy()
        self._known_places: dict[str, dict[str, int]] = {}
        self._gathered: dict[str, list[tuple[str, ...]]] = {}
        """By study that takes whole workers of several slots: those of which it waits for the slots."""
        self._promised: dict[str, str] = {}
        """By closing name: the study that gets it; empty: it goes with another slot of its worker."""

    def grants(self, idle: set[str]) -> dict[str, Grant]:
        self._release(idle)
        self._give_free()
        self._promise()
        held: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self._holder):
            held[self._holder[name]].append(name)
        grants = {}
        for study in self._members:
            closing = tuple(name for name in held[study] if name in self._promised)
            grants[study] = Grant(
                held=(*held[study], *self._pool.unseen.get(study, ())),
                closing=closing,
                heirs=tuple(self._promised[name] for name in closing),
            )
        return grants

    def _places(self, study: str) -> dict[str, int]:
        """By name that a study could use: its place among them; those that it would give up last come first."""
        if study not in self._known_places:
            self._known_places[study] = {name: place for place, name in enumerate(self._pool.usable[study])}
        return self._known_places[study]

    def _lacks(self, study: str) -> int:
        return max(0, self._pool.shares[study] - self._count[study])

    # Rules 1 and 2.

    def _release(self, idle: set[str]) -> None:
        """Give back what is idle and closing, of no use, or beyond the share; what the study prefers it keeps."""
        for study in sorted({self._holder[name] for name in idle if name in self._holder}):
            places = self._places(study)
            mine = [name for name, holder in self._holder.items() if holder == study]
            mine.sort(key=lambda name: -places.get(name, MOST_DEVICES))
            for unit in _units(self._members[study], mine):
                lasting = sum(name not in self._ending for name in unit)
                goes = (
                    any(name not in places or name in self._pool.grants[study].closing for name in unit)
                    or self._count[study] - lasting >= self._pool.shares[study]
                )
                if goes and idle.issuperset(unit):
                    self._count[study] -= lasting
                    self._free.update(unit)
                    for name in unit:
                        del self._holder[name]

    def _give_free(self) -> None:
        """Give free names to who is due some, then lend what is left."""
        lacking = [member for member in self._pool.members if self._lacks(member.study)]
        waited_for = Counter[str]()
        for member in lacking:
            waited_for.update(self._free.intersection(self._pool.usable[member.study]))
        for member in lacking:
            units = [unit for unit in self._units[member.study] if not self._free.isdisjoint(unit)]
            for unit in sorted(units, key=lambda unit: max(map(waited_for.__getitem__, unit))):
                if not self._lacks(member.study):
                    break
                self._take(member.study, unit)
            if self._lacks(member.study) and any(len(unit) > 1 for unit in self._units[member.study]):
                self._gathered[member.study] = found = self._workers_to_gather(member)
                self._free.difference_update(*found)
        left = {
            study: iter([unit for unit in units if not self._free.isdisjoint(unit)])
            for study, units in self._units.items()
        }
        least_first = [(self._rank(member), member.study) for member in self._pool.members]
        heapq.heapify(least_first)
        while least_first:  # each turn gives a name away, or is the last one of a study
            _, study = heapq.heappop(least_first)
            member = self._members[study]
            most = member.demand + member.spare - self._count[study]
            if most > 0 and any(len(unit) <= most and self._take(study, unit) for unit in left[study]):
                heapq.heappush(least_first, (self._rank(member), study))

    def _take(self, study: str, unit: Sequence[str]) -> bool:
        missing = [name for name in unit if self._holder.get(name) != study]
        room = self._pool.capacity - len(self._holder)
        if not missing or len(missing) > room or not self._free.issuperset(missing):
            return False
        self._free.difference_update(missing)
        self._holder.update(dict.fromkeys(missing, study))
        self._count[study] += len(missing)
        return True

    def _rank(self, member: Member) -> tuple[int, Fraction]:
        return -member.priority, Fraction(self._count[member.study]) / as_written(member.weight)

    def _workers_to_gather(self, member: Member) -> list[tuple[str, ...]]:
        """As many workers as a study is due: first those whose slots it can get, then those with fewest of others."""
        study, found, left = member.study, [], self._lacks(member.study)

        def others(unit: Sequence[str]) -> tuple[int, int]:
            holders = [self._holder[name] for name in unit if self._holder.get(name, study) != study]
            kept = [one for one in holders if not self._may_give(one, member, self._count)]
            return len(kept), len(holders) - sum(self._heirs.get(name) == study for name in unit)

        for unit in sorted(self._units[study], key=others):
            missing = [name for name in unit if self._holder.get(name) != study]
            if missing and left > 0:
                found.append(unit)
                left -= len(missing)
        return found

    # Rule 3.

    def _may_give(self, holder: str, due: Member, count: Mapping[str, int], number: int = 1) -> bool:
        return self._yields(self._members[holder], due) or count[holder] - number >= self._pool.shares[holder]

    def _yields(self, holder: Member, due: Member) -> bool:
        """Whether a study gives a name up within its share."""
        if holder.any_will_do and not due.any_will_do:
            return True
        return due.waited >= self._pool.patience and due.waited > holder.waited and due.priority >= holder.priority

    def _promise(self) -> None:
        """Keep the promises that still hold, and make those that are missing."""
        lacks = {study: self._lacks(study) for study in self._members}
        for study, units in self._gathered.items():
            lacks[study] -= sum(name not in self._holder for unit in units for name in unit)
        claims = {one.study: self._claims(one) for one in self._pool.members if lacks[one.study] > 0}
        soon = set(self._ending)
        for study, names in claims.items():
            coming = [name for name in names if name in soon][: lacks[study]]
            soon.difference_update(coming)
            lacks[study] -= len(coming)
        after, above = dict(self._count), dict(self._count)
        """By study: number of names that it has then; the same without what it gives up within its share."""

        def promise(name: str, heir: str) -> None:
            holder, unit = self._holder[name], self._unit_of(name)
            number = sum(one not in self._promised for one in unit)
            after[holder] -= number
            above[holder] -= 0 if self._yields(self._members[holder], self._members[heir]) else number
            self._promised |= {one: self._promised.get(one, "") for one in unit} | {name: heir}
            lacks[heir] -= 1

        for name, heir in sorted(self._heirs.items()):
            if name in claims.get(heir, {}) and name in self._holder and lacks[heir] > 0:
                number = sum(one not in self._promised for one in self._unit_of(name))
                if self._may_give(self._holder[name], self._members[heir], above, number):
                    promise(name, heir)
        for study, names in claims.items():
            by_holder: dict[str, list[str]] = defaultdict(list)
            for name in names:
                if not self._promised.get(name):
                    by_holder[self._holder[name]].append(name)
            for holder, found in by_holder.items():
                places = self._places(holder)
                found.sort(key=lambda name, places=places: places.get(name, MOST_DEVICES))  # type: ignore[misc]
            for _ in range(lacks[study]):
                givers = [
                    one
                    for one, found in by_holder.items()
                    if found and self._may_give(one, self._members[study], after, self._number(found[-1]))
                ]
                if givers:
                    giver = max(givers, key=lambda one: (after[one] - self._pool.shares[one], one))
                    promise(by_holder[giver].pop(), study)

    def _claims(self, member: Member) -> dict[str, None]:
        """Names of other studies that would do for one that lacks some."""
        study = member.study
        units = self._gathered.get(study, self._units[study])
        names = (name for unit in units for name in unit)
        return dict.fromkeys(name for name in names if self._holder.get(name, study) != study)

    def _unit_of(self, name: str) -> tuple[str, ...]:
        """What is given up with a name: of a study that takes whole workers, what it holds there."""
        study = self._holder[name]
        if not self._members[study].whole:
            return (name,)
        worker = worker_of(name)
        return tuple(one for one, holder in self._holder.items() if holder == study and worker_of(one) == worker)

    def _number(self, name: str) -> int:
        return sum(one not in self._promised for one in self._unit_of(name))


def _units(member: Member, names: Iterable[str]) -> list[tuple[str, ...]]:
    """What a study takes at once: a name, or all slots of a worker."""
    if not member.whole:
        return [(name,) for name in names]
    workers: dict[str, list[str]] = defaultdict(list)
    for name in names:
        workers[worker_of(name)].append(name)
    return list(map(tuple, workers.values()))


def longest_asking(mine: Member, others: Iterable[Member], held: int, position: Position) -> str | None:
    """The study for which ``mine``, which holds more than its share, should end a job; None: none.

    Which job it ends follows from the names that it is to give back.
    """
    asking = [other for other in others if other.asks]
    if held <= position.share or not asking:
        return None
    return max(asking, key=lambda other: (other.waited, other.study)).study
