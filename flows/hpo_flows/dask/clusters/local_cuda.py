"""Cluster kind ``local_cuda``: one worker for each NVIDIA GPU of this machine.

dask-cuda pins an older Dask, and what it adds (memory pools, spilling, UCX) is of no use to training children.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import distributed

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import LocalCudaClusterSpec
from hpo_flows.dask.clusters.certificates import new_security
from hpo_flows.dask.clusters.kind import LOOPBACK, optional_package, scheduler_options
from hpo_flows.dask.clusters.local_processes import ProcessKind


class LocalGpuWorkers(ProcessKind[LocalCudaClusterSpec]):
    """A worker for each GPU; each sees one alone, as do the processes it starts."""

    def create(self) -> Any:
        """Start a scheduler and one nanny for each GPU.

        Raises:
            SpecError: the settings name no devices, and none can be found.
        """
        given = self.settings.devices
        numbers = visible_devices() if given is None else [str(device) for device in given]
        security = new_security()
        where = {"host": LOOPBACK, "protocol": "tls://", "security": security}
        worker = {**where, "nthreads": 1, "memory_limit": None, "silence_logs": logging.CRITICAL}
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the driver counts them, not as CUDA guesses their speed
        return distributed.SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={"cls": distributed.Scheduler, "options": {**where, **scheduler_options(self.dashboard)}},
            workers={
                f"gpu-{number}": {
                    "cls": distributed.Nanny,
                    "options": {**worker, "env": {**order, "CUDA_VISIBLE_DEVICES": number}},
                }
                for number in numbers
            },
            security=security,
            silence_logs=logging.CRITICAL,
        )


def visible_devices() -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of this process, or all GPUs the driver knows.

    Raises:
        SpecError: there is none.
    """
    chosen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if chosen:
        return chosen
    pynvml = optional_package("pynvml", "local_cuda", "gpu")
    try:
        pynvml.nvmlInit()
        found = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        pynvml.nvmlShutdown()
    except Exception as error:  # NVMLError, and another kind where library and driver differ
        raise SpecError(
            f"cluster.kind = 'local_cuda' finds no NVIDIA driver here ({error}). Install it, or use kind: local."
        ) from None
    if not found:
        raise SpecError("cluster.kind = 'local_cuda' finds no GPU on this machine. Use kind: local.")
    return found
