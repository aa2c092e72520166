"""A study's place in its pool, of the kind that its settings ask for: slots, slots of workers, or whole devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpo_core.execution.by_name.device_holding import DeviceHolding
from hpo_core.execution.by_name.packed_claim import PackedClaim
from hpo_core.execution.by_name.pooled_devices import PooledDevices
from hpo_core.execution.by_name.pooled_slots import PooledSlots
from hpo_core.execution.by_name.worker_slots import KIND, PATIENCE_SECONDS
from hpo_core.execution.executor import Executor
from hpo_core.execution.pool_seat import ROUND_SECONDS, PoolSeat, Terms
from hpo_core.execution.pooled_executor import PooledExecutor
from hpo_core.journal.pools import Pools
from hpo_core.placement import Placer
from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.study import Study

DEVICE = "device"
"""What studies with ``packing`` hold."""
SETTLE_SECONDS = 3.0
"""So old is at most what a controller knows of a device's memory: a look, a heartbeat and an answer, a second each."""


def join_pool(
    executor: Executor,
    study: Study,
    placer: Placer,
    *,
    pools: Pools,
    terms: Terms,
    threads: Callable[[], Mapping[str, int]],
    settle: float = SETTLE_SECONDS,
) -> PooledExecutor:
    """The executor, on what the study holds in its pool from now on.

    Args:
        placer: of the study's jobs.
        threads: by name of a worker that is there: its slots.
        settle: seconds before the first job on a device that another study had.
    """
    if not isinstance(placer, SharedDevices):
        if not terms.shared_cluster:
            return PooledExecutor(executor, PoolSeat(pools, terms, study))
        slots = DeviceHolding(KIND, patience=PATIENCE_SECONDS, moves=True)
        return PooledSlots(executor, PoolSeat(pools, terms, study, slots), threads)
    holding = DeviceHolding(DEVICE, patience=ROUND_SECONDS, settle=settle)
    return PooledDevices(executor, PoolSeat(pools, terms, PackedClaim(study, placer), holding))
