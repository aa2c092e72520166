"""Base class of the kinds whose workers are processes below this one."""

from __future__ import annotations

import asyncio
from typing import Any

from hpo_flows.dask.clusters.kind import ClusterKind, Settings
from hpo_flows.dask.processes import LocalProcesses, kill_tree


class LocalKind(ClusterKind[Settings]):
    """A cluster whose worker processes are found below this one, and ended for certain."""

    def __init__(self, settings: Settings, study: str, folder: str) -> None:
        super().__init__(settings, study, folder)
        self._processes: LocalProcesses | None = None

    def connect(self) -> Any:
        """Start the cluster; see :meth:`ClusterKind.connect`."""
        self._processes = LocalProcesses()
        return super().connect()

    def abandon_start(self) -> None:
        """Kill the workers: one that does not come up keeps Dask's constructor waiting."""
        if self._processes is not None:
            self._processes.kill()

    async def replace_worker(self, client: Any, address: str) -> None:
        """Kill the worker's process with all that it started; its nanny starts another one."""
        nannies = list(self.cluster.workers.values())
        for pid in [nanny.pid for nanny in nannies if nanny.worker_address == address and nanny.pid is not None]:
            await asyncio.to_thread(kill_tree, pid)

    def remember_processes(self) -> None:
        """Note which processes there are, before they are asked to end."""
        if self._processes is not None:
            self._processes.remember()

    def close(self) -> None:
        """End the cluster, then kill what is left of its processes."""
        super().close()
        if self._processes is not None:
            self._processes.kill()
            self._processes = None
