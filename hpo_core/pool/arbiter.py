"""The one rule of a pool: from what all studies say and hold to what each holds next. Pure, and one pass.

Workers and devices have names; where studies only count slots, their names are numbers, any of which will do.
:func:`~hpo_core.pool.division.divide` says how many names each study is due (water-filling). Then, in this order:

1. A study keeps what it holds: no job that runs is ended for a share. Who writes gives back what is idle and closing,
   of no use to it, or beyond its share.
2. Free names go to studies that hold less than they are due: higher priorities first, then who has waited longest. What
   is left is lent: to who has least for its weight.
3. For who is still due names, names of others are *closing*: no job begins there any more. First those of no use to
   their holder or beyond its share, then within the share of a holder for whose ``patience`` the study has waited, and
   longer than the holder itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

import msgspec

from hpo_core.model.arithmetic import as_written
from hpo_core.model.devices.pool_member import MOST_DEVICES, NOTHING, Grant, Member
from hpo_core.pool.division import Claim, divide, ideal_shares


def capacity_of(members: Iterable[Member], named: Collection[str] = ()) -> int:
    """Size of a pool: what the largest cluster of its members has.

    Args:
        named: names that the members hold or could use, of which there are as many at least.
    """
    return max(max((member.seen for member in members), default=0), len(named))


class Position(msgspec.Struct, frozen=True):
    """Where a study stands in its pool."""

    capacity: int
    """Names of the pool."""
    share: int
    """Number that the study is due."""
    ideal: Fraction
    """The share before it is rounded to whole jobs; no more than it holds or could use."""
    wants: tuple[str, ...]
    """Names that the study could use now and does not hold, preferred ones first; none where it lacks nothing."""


class Pool:
    """All studies of a pool at one moment.

    Args:
        members: what each study says.
        grants: by study: what each has so far; a study without one has nothing.

    >>> mine, other = (Member(study=name, kind="device", demand=2, usable=("x", "y")) for name in "ab")
    >>> Pool([mine, other], {"a": Grant(held=("x", "y"))}).arbitrate()["a"]
    Grant(held=('x', 'y'), closing=('y',))
    >>> Pool([mine, other], {"a": Grant(held=("x",))}).arbitrate()["b"]
    Grant(held=('y',), closing=())
    """

    def __init__(self, members: Iterable[Member], grants: Mapping[str, Grant]) -> None:
        self.members = sorted(members, key=lambda member: (-member.priority, -member.waited, member.study))
        self.grants = {member.study: grants.get(member.study, NOTHING) for member in self.members}
        self.holder: dict[str, str] = {}
        """By name: the study that holds it."""
        for study in sorted(self.grants):
            self.holder = dict.fromkeys(self.grants[study].held, study) | self.holder
        self.held = Counter({member.study: 0 for member in self.members})
        """By study: number of names that it holds."""
        self.held.update(self.holder.values())
        usable = {member.study: member.usable for member in self.members}
        named = set(self.holder).union(*usable.values())
        self.capacity = capacity_of(self.members, named)
        if not any(member.kind for member in self.members):
            self.capacity = min(capacity_of(self.members), MOST_DEVICES)
            counted = tuple(map(str, range(self.capacity)))
            named.update(counted)
            usable = dict.fromkeys(usable, counted)
        self.names = sorted(named)
        self.places = {study: {name: place for place, name in enumerate(names)} for study, names in usable.items()}
        """By study and name that it could use: the place; those that it would give up last come first."""
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

    def position(self, study: str) -> Position:
        """Where a study stands."""
        (member,) = [one for one in self.members if one.study == study]
        others = tuple(name for name in self.places[study] if self.holder.get(name) != study)
        ideal = min(self._ideals[study], Fraction(self.held[study] + len(others)))
        lacks = member.demand + member.spare > self.held[study]
        return Position(self.capacity, self.shares[study], ideal, others if lacks else ())

    def arbitrate(self, idle: Collection[str] = ()) -> dict[str, Grant]:
        """By study: what it holds from now on.

        Args:
            idle: names of the study that writes on which no job runs; others say nothing of theirs.
        """
        holder, held = dict(self.holder), Counter(self.held)
        self._give_back(set(idle), holder, held)
        self._give_free(holder, held)
        closing = self._close(holder, held)
        names: dict[str, list[str]] = {study: [] for study in self.grants}
        for name in sorted(holder):
            names[holder[name]].append(name)
        return {
            study: Grant(held=tuple(found), closing=tuple(name for name in found if name in closing))
            for study, found in names.items()
        }

    def _give_back(self, idle: set[str], holder: dict[str, str], held: Counter[str]) -> None:
        mine = [name for name in idle if name in holder]
        for name in sorted(mine, key=lambda name: (-self.places[holder[name]].get(name, MOST_DEVICES), name)):
            study = holder[name]
            useless = name not in self.places[study] or name in self.grants[study].closing
            if useless or held[study] > self.shares[study]:
                del holder[name]
                held[study] -= 1

    def _give_free(self, holder: dict[str, str], held: Counter[str]) -> None:
        free = dict.fromkeys(name for name in self.names if name not in holder)

        def take(study: str, name: str) -> None:
            holder[name] = study
            held[study] += 1
            del free[name]

        for member in self.members:
            study = member.study
            most = min(self.shares[study] - held[study], self.capacity - len(holder))
            for name in [name for name in self.places[study] if name in free][: max(0, most)]:
                take(study, name)
        ranks = {member.study: as_written(member.weight) for member in self.members}
        for name in list(free):
            able = [
                member
                for member in self.members
                if name in self.places[member.study] and held[member.study] < member.demand + member.spare
            ]
            if able and len(holder) < self.capacity:
                take(min(able, key=lambda one: (-one.priority, held[one.study] / ranks[one.study])).study, name)

    def _close(self, holder: Mapping[str, str], held: Mapping[str, int]) -> set[str]:
        members = {member.study: member for member in self.members}
        before = {name for grant in self.grants.values() for name in grant.closing}
        above = {study: held[study] - self.shares[study] for study in members}
        """By study: number of names beyond its share that are not closing yet."""

        def order(name: str) -> tuple[object, ...]:
            study = holder[name]
            return name not in before, -above_first[study], -self.places[study].get(name, MOST_DEVICES), name

        closing: set[str] = set()
        for due in self.members:
            lacks, above_first = self.shares[due.study] - held[due.study], dict(above)
            others = [name for name in self.places[due.study] if holder.get(name, due.study) != due.study]
            for within in (False, True):
                for name in sorted(others, key=order) if lacks > 0 else ():
                    giver = members[holder[name]]
                    gives = above[giver.study] > 0 or name not in self.places[giver.study]
                    if within:
                        waited = due.waited >= giver.patience and due.waited > giver.waited
                        gives = waited and due.priority >= giver.priority
                    if gives and lacks > 0 and name not in closing:
                        closing.add(name)
                        above[giver.study] -= 1
                        lacks -= 1
        return closing


def longest_asking(mine: Member, others: Iterable[Member], held: int, position: Position) -> str | None:
    """The study for which ``mine``, which holds more than its share, should end a job; None: none.

    Which job it ends follows from the names that it is to give back.
    """
    asking = [other for other in others if other.asks]
    if held <= position.share or not asking:
        return None
    return max(asking, key=lambda other: (other.waited, other.study)).study
