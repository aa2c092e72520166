"""Pools in a database in memory, for the studies of one test."""

from __future__ import annotations

from hpo_core.journal.sql import SqlJournal
from hpo_core.pool.executor import PooledExecutor
from hpo_core.pool.store import Pools


class MemoryPools(Pools):
    """Pools of a journal that nobody else has."""

    def __init__(self) -> None:
        super().__init__(SqlJournal("sqlite://"))


def used(executor: PooledExecutor) -> int:
    """Number of names that jobs use now."""
    return len({name for each in executor._running.values() for name in each.names})
