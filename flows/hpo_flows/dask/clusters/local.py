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
    """A scheduler and one worker in this process, with a thread for each slot.

    Where models hop, and where the number of workers follows the study, each slot is a worker.

    No other process can reach them: Dask's messages take no port. Each job trains in a process of its own all the same,
    so threads only wait for it, and they start in a tenth of the time that worker processes take.
    """

    def create(self) -> Any:
        """Start them."""
        each = self.hops or self.settings.scales is not None
        options = {
            "nthreads": 1 if each else self.wanted,
            "memory_limit": None,
            "silence_logs": logging.CRITICAL,
            "dashboard_address": f"{LOOPBACK}:0",  # its web server listens whatever one says, by default to everybody
        }
        worker = {"cls": distributed.Worker, "options": options}
        cluster = distributed.SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={
                "cls": distributed.Scheduler,
                "options": {"protocol": "inproc://", **scheduler_options(self.dashboard)},
            },
            workers=dict.fromkeys(range(self.wanted if each else 1), worker),
            worker=worker,
            silence_logs=logging.CRITICAL,
        )
        if self.settings.scales is not None:
            self.keep_wanted(cluster)
        return cluster

    @property
    def starting_workers(self) -> int:
        """All of them: they are there at once. Of a range one, for the others may come while jobs run."""
        return self.wanted if self.settings.scales is None else 1

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
