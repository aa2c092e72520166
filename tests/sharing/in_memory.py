"""Pools in a database in memory, and studies of one test that are in them with controllers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpo_core.journal.sql import SqlJournal
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job
from hpo_core.pool.executor import PooledExecutor
from hpo_core.pool.seat import Terms
from hpo_core.pool.store import Pools

ENDLESS = {"method": "random", "configs": 100_000, "max_resource": 1}
"""A search that needs no end."""


class Wants:
    """A study that could use so many slots."""

    def __init__(self, job_slots: int = 1, wanted: int = 0) -> None:
        self.wanted, self.job_slots = wanted, job_slots

    def demand(self, most: int) -> int:
        return min(most, self.wanted)

    def spare(self, most: int) -> int:
        return 0


class MemoryPools(Pools):
    """Pools of a journal that nobody else has."""

    def __init__(self) -> None:
        super().__init__(SqlJournal("sqlite://"))


def used(executor: PooledExecutor) -> int:
    return len({name for each in executor._running.values() for name in each.names})


def terms_for(study: str, **terms: Any) -> Terms:
    return Terms(**({"pool": "p", "study": study, "owner": f"{study}-1"} | terms))


def lasting(seconds: float, name: str = "") -> Callable[[Job], float]:
    """Seconds of each job, half as many to half as many more."""
    return lambda job: seconds * (0.5 + Stream(job.trial, f"seconds {name}", job.target).uniform())
