"""Cluster kind ``local_cuda``: one worker for each NVIDIA GPU of this machine.

dask-cuda pins an older Dask, and what it adds (memory pools, spilling, UCX) is of no use to training children.
"""

from __future__ import annotations

import os
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import LocalCudaClusterSpec
from hpo_flows.dask.clusters.kind import optional_package
from hpo_flows.dask.clusters.local import ThreadKind


class GpuThreads(ThreadKind[LocalCudaClusterSpec]):
    """A worker for each GPU; the processes that train for it see that GPU alone."""

    def workers(self) -> dict[Any, dict[str, Any]]:
        """One worker with one slot for each GPU.

        Raises:
            SpecError: there is none.
        """
        return {f"gpu-{number}": {"gpu": number} for number in visible_devices()}


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
