"""Cluster kind ``local``: worker processes on this machine."""

from __future__ import annotations

import logging
from typing import Any

import distributed
from distributed.security import Security

from hpo_core.spec import LocalClusterSpec
from hpo_flows.dask.clusters.kind import LOOPBACK, scheduler_options
from hpo_flows.dask.clusters.on_this_machine import LocalKind


class LocalWorkers(LocalKind[LocalClusterSpec]):
    """Worker processes of this one, behind TLS with a certificate made for them."""

    def create(self) -> Any:
        """Start a ``distributed.LocalCluster``."""
        return distributed.LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=self.settings.workers,
            threads_per_worker=1,
            host=LOOPBACK,
            security=Security.temporary(),  # type: ignore[no-untyped-call]
            scheduler_kwargs=scheduler_options(self.dashboard),
            memory_limit=None,
            silence_logs=logging.CRITICAL,
        )

    @property
    def starting_workers(self) -> int:
        """All of them: they come within seconds."""
        return self.settings.workers

    @property
    def may_hold_attempts(self) -> bool:
        """Never: they are new."""
        return False
