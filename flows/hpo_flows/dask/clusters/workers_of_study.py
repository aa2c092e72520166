"""As many workers as a study can use: Dask's adaptive scaling, with the study's own demand."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from distributed.deploy.adaptive import Adaptive


class Wanted(Protocol):
    """Says how many workers a study can use."""

    @property
    def wanted(self) -> int:
        """Their number, as of the controller's last look."""
        ...

    @property
    def may_start(self) -> bool: ...

    def withdraw(self, names: Collection[Any]) -> Collection[Any]:
        """Withdraw workers that have not come yet; returns those that will not come any more. It may take seconds."""
        ...


class WorkersOfStudy(Adaptive):
    """Asks for workers while configurations wait, and gives idle ones back.

    Dask counts its tasks. A study has no more tasks than there are slots, so it says itself what it could use. How soon
    that is followed, Dask's own settings say: ``distributed.adaptive.interval``, and ``wait-count`` for idle workers.

    A worker is idle where no task is, and none whose result was not fetched yet: with it a checkpoint may come that
    lies nowhere else. That is asked anew at the moment in which the scheduler stops giving tasks to the worker. A
    worker that is about to come is given back once it is there and idle, unless its cluster can withdraw it before.

    Args:
        cluster: a ``distributed.SpecCluster``, whose scheduler runs in this process.
        kind: says how many.
        settings: of Dask's class.
    """

    def __init__(self, cluster: Any, *, kind: Wanted, **settings: Any) -> None:
        self._kind = kind
        self._spec_cluster = cluster
        super().__init__(cluster, **settings)

    async def target(self) -> int:
        return self._kind.wanted

    async def recommendations(self, target: int) -> dict[str, Any]:
        if not self._kind.may_start:
            return {"status": "same"}
        found: dict[str, Any] = await super().recommendations(target)
        return found

    async def workers_to_close(self, target: int) -> list[Any]:
        there = self._spec_cluster.scheduler.workers.values()
        idle = sorted((worker.name for worker in there if _is_idle(worker)), key=str)
        return idle[: max(0, len(there) - target)]

    async def scale_down(self, workers: Iterable[Any]) -> None:  # type: ignore[override]
        scheduler = self._spec_cluster.scheduler
        there = {worker.name: worker for worker in scheduler.workers.values()}
        idle = [name for name in workers if name in there and _is_idle(there[name])]
        # No other code runs between the line above and the scheduler's note that these take no more tasks. They are not
        # closed by it: asked by scheduler and nanny at once, a worker does not end until it is killed after 4 s.
        retired = await scheduler.retire_workers(names=idle, close_workers=False, remove=False)
        gone = {worker["name"] for worker in retired.values()}
        if absent := [name for name in workers if name not in there]:
            gone.update(await asyncio.to_thread(self._kind.withdraw, absent))
        await self._spec_cluster.scale_down(gone)


def _is_idle(worker: Any) -> bool:
    return not worker.processing and not worker.has_what
