"""Puts a study that shares slots into its pool: its seat there, and the executor that keeps to what it holds."""

from __future__ import annotations

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.execution.by_name.pooled_slots import PooledSlots
from hpo_core.execution.by_name.worker_holding import WorkerHolding
from hpo_core.execution.by_name.worker_slots import KIND, PATIENCE_SECONDS
from hpo_core.execution.hopping.pooled_units import HoppingClaim, PooledUnits
from hpo_core.execution.pool_seat import PoolSeat, Terms
from hpo_core.execution.pooled_executor import PooledExecutor
from hpo_core.journal.pools import Pools
from hpo_core.study import Study
from hpo_flows.dask.executor import DaskExecutor


def pooled_units(dask: DaskExecutor, study: Study, pools: Pools, terms: Terms) -> PooledUnits:
    """For a study whose models hop: units on the workers that it holds."""
    data = study.spec.data
    assert data is not None
    holding, claim = WorkerHolding(KIND, patience=PATIENCE_SECONDS), HoppingClaim(study, data.concurrent)
    seat = PoolSeat(pools, terms, claim, holding)
    return PooledUnits(dask, seat, holding=holding, claim=claim, threads=dask.threads)


def pooled_jobs(dask: DaskExecutor, study: Study, pools: Pools, terms: Terms) -> PooledExecutor:
    """For any other study: where all share one cluster, on slots of workers that it holds by name."""
    if not terms.shared_cluster:
        return PooledExecutor(dask, PoolSeat(pools, terms, study))
    seat = PoolSeat(pools, terms, study, DeviceHolding(KIND, patience=PATIENCE_SECONDS))
    return PooledSlots(dask, seat, dask.threads)
