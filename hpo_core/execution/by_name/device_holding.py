"""DeviceHolding: which devices of a pool a study holds by name, as its controller keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence, Set

import msgspec

from hpo_core.model.devices.pool_limits import MOST_DEVICES, MOST_NAME
from hpo_core.model.devices.pool_member import Member
from hpo_core.placement.shares.device_choice import choose_devices
from hpo_core.placement.shares.members import Position, claim_of
from hpo_core.placement.shares.water_filling import divide


class DeviceHolding:
    """Chooses devices for a :class:`~hpo_core.execution.pool_seat.PoolSeat`, as the rows of its pool are.

    Args:
        kind: of the devices, in one word: studies of other kinds are not in the pool.
        patience: see :func:`~hpo_core.placement.shares.device_choice.choose_devices`.
        settle: seconds between the moment when a device comes from another study and the first job there: what is known
            of its free memory is from before.
        moves: whether any device does for the study as well as another one.
    """

    def __init__(self, kind: str, *, patience: float, settle: float = 0.0, moves: bool = False) -> None:
        self.kind = kind
        self._patience = patience
        self._settle = settle
        self._moves = moves
        self._of_others: set[str] = set()
        """Devices that others held when the pool was looked at."""
        self._opens_at: dict[str, float] = {}
        self._there: frozenset[str] = frozenset()
        self._usable: tuple[str, ...] = ()
        self._used: tuple[str, ...] = ()
        self._open: tuple[str, ...] = ()
        self.instead: frozenset[str] = frozenset()
        """Of the open devices: others wait for one of them, so that no job begins there."""

    def note(self, *, there: Iterable[str], usable: Sequence[str], used: Sequence[str]) -> None:
        """Before each look. What a row of the pool cannot hold is left out: other studies would not see it as taken.

        Args:
            there: all devices that the study sees.
            usable: devices that it can use now, preferred ones first.
            used: devices on which its jobs run, the one with the youngest job last.
        """
        told = [name for name in usable if len(name) <= MOST_NAME]
        self._there = frozenset((*there, *used))
        self._usable, self._used = tuple(told[:MOST_DEVICES]), tuple(used)

    def known(self, others: Sequence[Member]) -> list[Member]:
        """The others of the pool; where they name too many devices, those alone that the study sees or uses.

        So rows that somebody planted, full of names, do not hold up the studies that are there: the database waits for
        what follows. Whose cluster has more devices than the limit sees all of them, and misses nothing.
        """
        if not _names_more(others, MOST_DEVICES):
            return list(others)
        is_there = self._there.__contains__
        return [
            msgspec.structs.replace(
                other,
                devices=tuple(filter(is_there, other.devices)),
                offers=tuple(filter(is_there, other.offers)),
                wants=tuple(filter(is_there, other.wants)),
            )
            for other in others
        ]

    def open_of(self, mine: Member, now: float) -> tuple[str, ...]:
        """Devices on which jobs may begin, of those that the study published as its own."""
        published = set(mine.devices)
        return tuple(name for name in self._open if name in published and self._opens_at.get(name, now) <= now)

    def with_wants(self, mine: Member) -> Member:
        """As if it wanted all that it can use: so many devices are there at least."""
        return msgspec.structs.replace(mine, wants=self._usable)

    def settled(
        self, mine: Member, others: Sequence[Member], position: Position, now: float
    ) -> tuple[Member, Position]:
        """What the study publishes of its devices, and where it stands.

        Args:
            position: by its share alone.
        """
        shares = divide(position.capacity, [claim_of(member) for member in (mine, *others)])
        choice = choose_devices(
            msgspec.structs.replace(mine, demand=mine.demand + mine.spare),  # trials that grow take what nobody claims
            others,
            shares=shares,
            usable=self._usable,
            used=self._used,
            closing=set(mine.devices).difference(self._open),
            capacity=position.capacity,
            patience=self._patience,
        )
        self._open, self.instead = choice.open, frozenset(choice.instead)
        for name in set(choice.held).difference(mine.devices) & self._of_others:
            self._opens_at[name] = now + self._settle
        self._of_others.difference_update(mine.devices)
        self._of_others.update(name for other in others for name in other.devices)
        held = set(choice.held)
        count = len(held)
        taken = sum(len(other.devices) for other in others)
        wants = tuple(name for name in self._usable if name not in held)
        if mine.demand <= count:
            wants = _instead_of(held, wants, others) if self._moves else ()
        mine = msgspec.structs.replace(mine, wants=wants, moves=self._moves)
        return (
            msgspec.structs.replace(mine, devices=tuple(sorted(choice.held)), held=count),
            msgspec.structs.replace(
                position,
                lent=max(0, len(choice.open) - position.share),
                held=count,
                free=max(0, position.capacity - taken - count),
            ),
        )


def _instead_of(held: Set[str], names: Iterable[str], others: Sequence[Member]) -> tuple[str, ...]:
    """Devices that would do instead of those held, where somebody who lacks some wants these."""
    if not any(other.demand > len(other.devices) and not held.isdisjoint(other.wants) for other in others):
        return ()
    not_free = {name for other in others for name in other.devices}.difference(*(other.offers for other in others))
    return tuple(itertools.islice((name for name in names if name not in not_free), len(held)))


def _names_more(members: Iterable[Member], most: int) -> bool:
    """Whether they name more than so many devices; looks at no more members than it must."""
    found: set[str] = set()
    for member in members:
        found.update(member.devices, member.wants)
        if len(found) > most:
            return True
    return False
