"""Pools of slots that several studies share: one row a study, beside the journal's studies.

The rules are in :mod:`hpo_core.placement.shares.members`. A row that is damaged is no member: a study goes on without.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from hpo_core.journal.protocol import Journal, StudyInfo
from hpo_core.model.devices.pool_member import Member, Wish
from hpo_core.model.errors import StudyNotFoundError

WAIT_SECONDS = 1.0
"""For others who write to the same database: the study's loop stands still meanwhile."""


class PoolRow(msgspec.Struct, frozen=True):
    """One study in one pool."""

    pool: str
    study: str
    member: Member | None
    """None: its controller has left, or its row is damaged."""
    wish: Wish | None = None
    """What a person said of its share while it ran."""


class Change(msgspec.Struct, frozen=True):
    """What a controller writes in one transaction."""

    mine: Member
    gone: tuple[Member, ...] = ()
    """Members without a sign of life: they leave, unless they gave one meanwhile."""


class Pools(Protocol):
    """Rows of pools. All raise JournalError where the database does not answer or cannot be written."""

    def look(self, pool: str, study: str) -> list[PoolRow]:
        """The members of a pool by study's name, and the row of ``study`` in any case; one query."""
        ...

    def change(self, pool: str, study: str, decide: Callable[[Sequence[PoolRow]], Change | None]) -> None:
        """Write what ``decide`` says of the present rows, in one transaction that no other change overlaps."""
        ...

    def leave(self, pool: str, study: str, owner: str) -> None:
        """Give everything back, unless another controller has the study's row; what a person said of it stays."""
        ...

    def say(self, pool: str, study: str, wish: Wish) -> None:
        """Keep what a person says of a study's share, beside what was said before."""
        ...

    def all(self) -> list[PoolRow]:
        """The rows of all pools."""
        ...


def merged(before: Wish | None, wish: Wish) -> Wish:
    """What a person said last of each setting."""
    before = before or Wish()
    return Wish(
        weight=before.weight if wish.weight is None else wish.weight,
        priority=before.priority if wish.priority is None else wish.priority,
    )


class MemoryPools:
    """Pools in this process, for its threads."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], PoolRow] = {}
        self._lock = threading.RLock()

    def look(self, pool: str, study: str) -> list[PoolRow]:
        with self._lock:
            return [row for row in self.all() if row.pool == pool and (row.member is not None or row.study == study)]

    def change(self, pool: str, study: str, decide: Callable[[Sequence[PoolRow]], Change | None]) -> None:
        with self._lock:
            rows = self.look(pool, study)
            change = decide(rows)
            if change is None:
                return
            for gone in change.gone:
                row = self._rows.get((pool, gone.study))
                if row is not None and row.member == gone:
                    self._rows[pool, gone.study] = msgspec.structs.replace(row, member=None)
            before = self._rows.get((pool, study))
            self._rows[pool, study] = PoolRow(pool, study, change.mine, before.wish if before is not None else None)

    def leave(self, pool: str, study: str, owner: str) -> None:
        with self._lock:
            row = self._rows.get((pool, study))
            if row is not None and row.member is not None and row.member.owner == owner:
                self._rows[pool, study] = msgspec.structs.replace(row, member=None)

    def say(self, pool: str, study: str, wish: Wish) -> None:
        with self._lock:
            row = self._rows.get((pool, study), PoolRow(pool, study, None))
            self._rows[pool, study] = msgspec.structs.replace(row, wish=merged(row.wish, wish))

    def all(self) -> list[PoolRow]:
        with self._lock:
            return [self._rows[key] for key in sorted(self._rows)]


_in_memory: weakref.WeakKeyDictionary[object, MemoryPools] = weakref.WeakKeyDictionary()


def pools_of(journal: Journal) -> Pools:
    """The pools in a journal's database; of a journal without one, in memory."""
    while (beneath := getattr(journal, "wrapped", None)) is not None:
        journal = beneath
    found: Pools | None = getattr(journal, "pools", None)
    return found if found is not None else _in_memory.setdefault(journal, MemoryPools())


def live_rows(journal: Journal, is_alive: Callable[[StudyInfo], bool]) -> list[PoolRow]:
    """The members of all pools whose controller lives, as far as this machine can know."""
    found = []
    for row in pools_of(journal).all():
        if row.member is not None:
            with contextlib.suppress(StudyNotFoundError):
                if is_alive(journal.info(row.study)):
                    found.append(row)
    return found
