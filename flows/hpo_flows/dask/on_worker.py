"""Functions that run on a Dask worker, or on the scheduler, for the executor.

Coroutines run in a worker's event loop, which sends its heartbeats: whatever may take time goes to a thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

import distributed

from hpo_core.model.partition_file import PartitionFile
from hpo_core.training.held_partitions import forget_partitions, held_partitions, watch_partitions
from hpo_core.training.visible_devices import seen_devices
from hpo_core.training.worker import (
    cancel_job,
    cancel_study,
    close_all,
    close_idle,
    heartbeats,
    limit_job,
    lost_report,
    prepare_worker,
    share_devices,
    start_mps,
    usages,
)
from hpo_flows.dask.monitor import DEVICES, METRIC, PARTITIONS, USAGES
from hpo_flows.dask.open_tasks import close_open_tasks, train_in_turn


def train(request: bytes, key: str, topic: str, workers: tuple[str, ...] | None = None) -> tuple[bytes, str]:
    """Train a job, and short ones that follow; the answer is small, whatever was trained.

    Args:
        workers: addresses of those that see the device that the job was placed on; None: it was placed on none. The
            job's thread then leaves the worker's pool: how many jobs a worker runs is the placement's to say.
    """
    worker = distributed.get_worker()
    worker.metrics[METRIC] = lambda _: heartbeats()  # goes out with each heartbeat
    address = worker.address
    if workers is not None:
        if address not in workers:
            return lost_report(request, "its Dask worker went before the job reached it"), ""
        distributed.secede()  # type: ignore[no-untyped-call]
    return train_in_turn(request, key, lambda report: worker.log_event(topic, (key, address, report))), address


async def cancel_attempts(folder: str, running: list[tuple[int, ...]]) -> None:
    """End these attempts (trial, attempt), or units (trial, attempt, number), of the study in this folder."""
    for trial, attempt, *unit in running:
        await asyncio.to_thread(cancel_job, trial, attempt, folder, *unit)


async def limit_attempt(folder: str, trial: int, attempt: int, memory: int) -> None:
    """Let an attempt of the study in this folder use at most so many bytes from now on."""
    await asyncio.to_thread(limit_job, trial, attempt, folder, memory)


async def cancel_attempts_of(folder: str) -> None:
    """End every attempt of the study in this folder."""
    await asyncio.to_thread(cancel_study, folder)


async def close_all_children() -> None:
    """End every child process of this worker."""
    close_open_tasks()
    await asyncio.to_thread(close_all)


async def close_idle_children(objective: str, pythonpath: tuple[str, ...]) -> None:
    """End the processes that start trainings of this objective, where no study uses them."""
    await asyncio.to_thread(close_idle, objective, pythonpath)


async def prepare(objective: str, pythonpath: tuple[str, ...], threads: int | None = None, load: str = "") -> None:
    """Import the objective, and find ``data.load``, which may take minutes."""
    await asyncio.to_thread(prepare_worker, objective, pythonpath, threads, load=load)


async def share_devices_of_worker(kind: str, mps: bool, dask_worker: distributed.Worker) -> tuple[str, str]:
    """Send with each heartbeat what this worker's jobs can share; returns why no GPU can be seen, and why MPS is off.

    Args:
        mps: whether jobs are to share GPUs through it.
    """
    problem = await asyncio.to_thread(share_devices, kind)
    dask_worker.metrics[DEVICES] = lambda _: seen_devices()
    dask_worker.metrics[USAGES] = lambda _: usages()
    await dask_worker.heartbeat()
    return problem, await asyncio.to_thread(start_mps) if mps else ""


async def watch_partitions_of_worker(
    study_folder: str, folder: str, files: list[PartitionFile], dask_worker: distributed.Worker
) -> None:
    """Send with each heartbeat which of a study's partitions lie on this worker.

    Args:
        folder: where they lie, unless this worker's environment says otherwise.
    """
    await asyncio.to_thread(watch_partitions, study_folder, folder, files)
    dask_worker.metrics[PARTITIONS] = lambda _: held_partitions()
    await dask_worker.heartbeat()


async def forget_partitions_of(study_folder: str) -> None:
    """Look no more for the partitions of a study."""
    await asyncio.to_thread(forget_partitions, study_folder)


def forbid_repeats(dask_scheduler: Any = None) -> None:
    """Make the scheduler give up a job whose worker died; runs on the scheduler."""
    dask_scheduler.allowed_failures = 0
