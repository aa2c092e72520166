"""The one place that assembles a run: which placer, executors and observers a study gets, as its settings say."""

from __future__ import annotations

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


class NewsTeller(Observer):
    """Observer that tells a person the news of the cluster, or of the placer, as time passes.

    Args:
        tell: tells what is new, if anything.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_tick(self) -> None:
        self._tell()


def pool_news(seat: PoolSeat) -> Callable[[], str]:
    """The function that says how a study stands in its pool, when others have come or gone there."""
    known: set[str] = set()

    def news() -> str:
        nonlocal known
        if not seat.mine.beat or (found := {row.study for row in seat.others}) == known:
            return ""
        known = found
        return standing_of(seat.row, seat.others).words

    return news


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
        news = pool_news(found.seat)
        found.observers.append(NewsTeller(lambda: tell(news())))
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
