"""The one place that assembles a run: which placer, executors and observers a study gets, as its settings say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpo_core.execution.enqueue_requests import EnqueueRequests
from hpo_core.execution.executor import Executor
from hpo_core.execution.hopping.hopping_executor import HoppingExecutor
from hpo_core.execution.loop import Observer
from hpo_core.execution.placing import MeasurementWriter, PlacementWriter, shared_devices_of
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.placement.placer import Placer
from hpo_core.pool.executor import holds_all, join_pool
from hpo_core.pool.seat import PoolSeat, terms_of
from hpo_core.pool.store import pools_of
from hpo_core.pool.words import standing_of
from hpo_core.study import Study
from hpo_flows.dask.executor import DaskExecutor

POOL_NEWS_SECONDS = 10.0
"""Least seconds between two lines about the pool."""


class NewsTeller(Observer):
    """Observer that tells a person the news of the cluster, or of the placer, as time passes.

    Args:
        tell: tells what is new, if anything.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_tick(self) -> None:
        """Tell what is new."""
        self._tell()


class PoolNews(NewsTeller):
    """Observer that tells a person when the study's share of its pool changes much, or studies come and go there.

    Args:
        seat: of the study in its pool.
        tell: tells a line.
    """

    def __init__(self, seat: PoolSeat, tell: Callable[[str], None]) -> None:
        super().__init__(self._look)
        self._seat = seat
        self._say = tell
        self._said: tuple[int, tuple[str, ...]] = (-1, ())
        self._next = 0.0

    def _look(self) -> None:
        seat, now = self._seat, time.monotonic()
        if not seat.mine.beat or now < self._next:
            return
        found = seat.share, tuple(sorted(row.study for row in seat.others))
        came_or_went = found[1] != self._said[1]
        if not came_or_went and abs(found[0] - self._said[0]) <= 1:  # one slot more or less: studies take turns with it
            return
        if found[1] or self._said[1]:
            self._next = now + POOL_NEWS_SECONDS
            self._say(standing_of(seat.row, seat.others).words)
        self._said = found


@dataclass
class Wiring:
    """The parts of one run."""

    executor: Executor
    placer: Placer
    observers: list[Observer]
    seat: PoolSeat | None = None
    """The study's seat in its pool, where it shares slots with other studies."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call once the loop has ended without an error."""

    def close(self) -> None:
        """Give back what the study holds in its pool."""
        if self.seat is not None:
            self.seat.leave()


def wire(
    study: Study,
    cluster: DaskExecutor,
    *,
    folder: Path,
    journal: RetryingJournal,
    owner: Owner,
    tell: Callable[[str], None],
) -> Wiring:
    """Assemble the run of a study on a cluster that was started for it.

    Args:
        folder: of the study.
        owner: the controller.
        tell: shows a person a line.
    """
    spec = study.spec
    shared_devices = shared_devices_of(study, cluster, folder) if spec.packs else None
    placer = Placer() if shared_devices is None else shared_devices  # one without jobs has length 0
    cluster.follow(study.demand)
    found = Wiring(cluster, placer, [NewsTeller(lambda: tell(cluster.news())), EnqueueRequests(study, folder)])
    if spec.shares:
        pools, terms = pools_of(journal), terms_of(spec, owner)
        usable = holds_all(spec) if spec.hops else None
        pooled = join_pool(
            cluster, study, placer, pools=pools, terms=terms, threads=cluster.room.threads, usable=usable
        )
        found.executor, found.seat = pooled, pooled.seat
        found.observers.append(PoolNews(found.seat, tell))
    if spec.hops:
        hopping = HoppingExecutor(
            found.executor,
            spec,
            folder,
            running=[*study.state.running, *study.state.waiting],
        )
        found.executor = hopping
        found.after.append(lambda: hopping.keep_only([*study.state.waiting]))
    if shared_devices is not None:
        found.observers += [
            PlacementWriter(study, shared_devices),
            MeasurementWriter(study, shared_devices.estimates),
            NewsTeller(lambda: tell(shared_devices.news())),
        ]
    return found
