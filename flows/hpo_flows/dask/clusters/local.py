"""Cluster kind ``local``: worker threads of this process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import distributed

from hpo_core.spec.sections import LocalClusterSpec
from hpo_core.training.worker import trainers
from hpo_flows.dask.clusters.kind import LOOPBACK, ClusterKind, scheduler_options


class LocalThreads(ClusterKind[LocalClusterSpec]):
    """A scheduler and one worker in this process, with a thread for each slot; or a worker for each, where models hop.

    No other process can reach them: Dask's messages take no port. Each job trains in a process of its own all the same,
    so threads only wait for it, and they start in a tenth of the time that worker processes take.
    """

    def create(self) -> Any:
        """Start them."""
        workers, threads = (self.settings.workers, 1) if self.hops else (1, self.settings.workers)
        options = {
            "nthreads": threads,
            "memory_limit": None,
            "silence_logs": logging.CRITICAL,
            "dashboard_address": f"{LOOPBACK}:0",  # its web server listens whatever one says, by default to everybody
        }
        worker = {"cls": distributed.Worker, "options": options}
        return distributed.SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={
                "cls": distributed.Scheduler,
                "options": {"protocol": "inproc://", **scheduler_options(self.dashboard)},
            },
            workers=dict.fromkeys(range(workers), worker),
            worker=worker,
            silence_logs=logging.CRITICAL,
        )

    @property
    def starting_workers(self) -> int:
        """All of them: they are there at once."""
        return self.settings.workers

    @property
    def may_hold_attempts(self) -> bool:
        """Never: they are new."""
        return False

    @property
    def serves_others(self) -> bool:
        """Whether other studies of this process train here: their trainers belong to the process."""
        return True

    async def replace_worker(self, client: Any, address: str) -> None:
        """Start another worker in place of one that a thread holds up, and end what it trains."""
        scheduler = self.cluster.scheduler
        await scheduler.remove_worker(address, stimulus_id="hpo-replace-worker", expected=True)
        self.cluster.scale(len(self.cluster.worker_spec) + 1)
        await asyncio.to_thread(trainers.cancel, self.folder)
