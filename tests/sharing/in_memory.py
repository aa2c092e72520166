"""Pools in a database in memory, and studies of one test that are in them with controllers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpo_core.execution.loop import Loop
from hpo_core.execution.virtual import VirtualClock
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Job
from hpo_core.pool.executor import PooledExecutor
from hpo_core.pool.seat import PoolSeat, Terms
from hpo_core.pool.store import Pools
from hpo_core.study import Study

ENDLESS = {"method": "random", "configs": 100_000, "max_resource": 1}
"""A search that needs no end."""


class MemoryPools(Pools):
    """Pools of a journal that nobody else has."""

    def __init__(self) -> None:
        super().__init__(SqlJournal("sqlite://"))


def used(executor: PooledExecutor) -> int:
    return len({name for each in executor._running.values() for name in each.names})


class Controlled:
    """A study with its controller, played in virtual time."""

    study: Study
    loop: Loop
    seat: PoolSeat
    clock: VirtualClock
    begins: float = 0.0
    stopped = False

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def ended(self) -> bool:
        return not self.study.state.running and self.study.at_rest

    def run(self, until: float) -> None:
        """What its controller does until that moment, unless it is stopped or has ended."""
        if self.stopped or until <= self.begins or self.ended:
            return
        self.goes_on_until(until)
        if self.ended:
            self.seat.leave()

    def goes_on_until(self, until: float) -> None:
        self.loop.run(until=until)


def drawn_losses(names: list[str]) -> Callable[[Job], dict[str, float]]:
    """Trainings that give each metric a number of the trial and the resource."""
    return lambda job: {name: Stream(job.trial, "loss", job.target).uniform() for name in names}


def terms_for(study: str, **terms: Any) -> Terms:
    return Terms(**({"pool": "p", "study": study, "owner": f"{study}-1"} | terms))


def lasting(seconds: float, name: str = "") -> Callable[[Job], float]:
    """Seconds of each job, half as many to half as many more."""
    return lambda job: seconds * (0.5 + Stream(job.trial, f"seconds {name}", job.target).uniform())
