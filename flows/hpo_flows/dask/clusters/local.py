"""Clusters in this process: its workers are threads, and each job trains in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import abstractmethod
from typing import Any

import distributed

from hpo_core.model.errors import SpecError
from hpo_core.spec.sections import LocalClusterSpec, LocalCudaClusterSpec
from hpo_core.training.worker import trainers
from hpo_flows.dask.clusters.kind import LOOPBACK, ClusterKind, Settings, optional_package, scheduler_options


class ThreadKind(ClusterKind[Settings]):
    """A scheduler and workers in this process; only :meth:`workers` has to be written.

    No other process can reach them: Dask's messages take no port. Each job trains in a process of its own all the same,
    so threads only wait for it, and they start in a tenth of the time that worker processes take.
    """

    in_this_process = True

    @abstractmethod
    def workers(self) -> dict[Any, dict[str, Any]]:
        """Options of each :class:`LocalWorker`, by its name: ``nthreads`` (by default 1) are its slots."""

    def create(self) -> Any:
        scheduler = {"protocol": "inproc://", **scheduler_options(self.dashboard)}
        options = {
            "nthreads": 1,
            "memory_limit": None,
            "silence_logs": logging.CRITICAL,
            "dashboard_address": f"{LOOPBACK}:0",  # its web server listens whatever one says, by default to everybody
        }
        return distributed.SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={"cls": distributed.Scheduler, "options": scheduler},
            workers={name: {"cls": LocalWorker, "options": options | own} for name, own in self.workers().items()},
            worker={"cls": LocalWorker, "options": options},  # of those that come later
            silence_logs=logging.CRITICAL,
        )

    @property
    def starting_workers(self) -> int:
        return sum(worker.state.nthreads for worker in self.cluster.workers.values())

    async def replace_worker(self, client: Any, address: str) -> None:
        scheduler, name = self.cluster.scheduler, self.cluster.scheduler.workers[address].name
        await scheduler.remove_worker(address, stimulus_id="hpo-replace-worker")  # its tasks end with an error
        del self.cluster.workers[name]  # it may never end; Dask starts one for each name that has none
        self.cluster.scale(len(self.cluster.worker_spec))
        await asyncio.to_thread(trainers.cancel_on, address)


class LocalWorker(distributed.Worker):
    """A Dask worker in this process.

    Args:
        gpu: the one that its jobs see, as ``CUDA_VISIBLE_DEVICES`` names it; empty: those that this process sees.
        more: arguments of Dask's class, as ``named``.
    """

    def __init__(self, *more: Any, gpu: str = "", **named: Any) -> None:
        self.gpu = gpu
        super().__init__(*more, **named)


class LocalThreads(ThreadKind[LocalClusterSpec]):
    """One worker with a thread for each slot: slots of one machine are alike.

    Where models hop, and where the number of workers follows the study, each slot is a worker.
    """

    def workers(self) -> dict[Any, dict[str, Any]]:
        if self.hops or self.settings.scales is not None:
            return {number: {} for number in range(self.wanted)}
        return {0: {"nthreads": self.wanted}}

    def create(self) -> Any:
        cluster = super().create()
        if self.settings.scales is not None:
            self.keep_wanted(cluster)
        return cluster

    @property
    def starting_workers(self) -> int:
        return super().starting_workers if self.settings.scales is None else 1


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
