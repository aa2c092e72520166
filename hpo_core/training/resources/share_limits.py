"""Keeps a child within its share of a device: what is set in it before user code runs."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import Any

from hpo_core.model.devices.share import Share
from hpo_core.spec.threads import VARIABLES
from hpo_core.training.resources.proc_files import data_size

_pools: Any = None
"""Of the libraries that the objective's import loaded; None where threadpoolctl is missing or was not needed."""


def apply_share(share: Share, threads: int | None) -> None:
    """Limit this process, and what it will start, to its share.

    A GPU is chosen through the environment. That has no effect on a library that initialized CUDA while the
    objective's module was imported, and such a library cannot use a GPU in a forked process anyway.

    Args:
        threads: to compute with, where the study says so; None: as many as the share has cores.
    """
    if share.gpu:
        os.environ.update(gpu_environment(share))
        _limit_torch(share)
        return
    if (wanted := _threads_to_set(share, threads)) is not None:
        _limit_threads(wanted)
    _limit_data(share)


def gpu_environment(share: Share) -> dict[str, str]:
    """Variables that CUDA reads when it is first used.

    Under MPS the driver itself keeps a process to its share: of compute, rounded up to a percent (with oversubscription
    those of all jobs add up to more than 100, as MPS allows), and of memory, CUDA's own included.

    >>> gpu_environment(Share(device="GPU-1", architecture="A100", compute=333, memory=1, cores=1000, capacity=2))
    {'CUDA_VISIBLE_DEVICES': 'GPU-1'}
    """
    found = {"CUDA_VISIBLE_DEVICES": share.device}
    if share.mps:
        found["CUDA_MPS_PIPE_DIRECTORY"] = share.mps
    if share.mps and not share.alone:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, max(1, -(-share.compute // 10))))
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, share.allowed // 2**20)}M"
    return found


def _limit_torch(share: Share) -> None:
    """Torch's allocator refuses what is beyond the share. Another library's allocator is not reached."""
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    if cuda is None:
        return

    def limit() -> None:
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, share.allowed / total), 0)

    # called when torch first uses CUDA: initializing it here would cost jobs that do not
    cuda._lazy_call(limit)


def _threads_to_set(share: Share, threads: int | None) -> int | None:
    """None where the study says how many, or what is loaded has read that number already."""
    wanted = max(1, share.cores // 1000)
    return None if threads is not None or os.environ.get(VARIABLES[0], "") == str(wanted) else wanted


def find_thread_pools(share: Share, threads: int | None) -> None:
    """Before the fork, in the zygote: look for loaded libraries once, and not in each child.

    It takes some 10 ms; no child does without it whose cores are not what the zygote's libraries were loaded with.
    """
    global _pools
    if share.gpu or _pools is not None or _threads_to_set(share, threads) is None:
        return
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        _pools = ThreadpoolController()


def _limit_threads(threads: int) -> None:
    """Of torch, of loaded OpenMP and BLAS libraries (through threadpoolctl), and of programs that are started.

    Not reached: a library that is loaded later and asks for the number of processors, not for its variable's value.
    """
    os.environ.update(dict.fromkeys(VARIABLES, str(threads)))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    if _pools is not None:
        _pools.limit(limits=threads)


def _limit_data(share: Share) -> None:
    """One process cannot get more private memory than jobs may use together, beyond what it inherited."""
    most = data_size() + share.capacity
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def exceeded(share: Share, memory: int) -> str:
    """Why an attempt was ended that took more memory than it was given.

    Args:
        share: what it was given.
        memory: bytes that it had taken.
    """
    given = share.allowed
    whose = f"all that jobs may use of {share.device}" if share.alone else f"its share of {share.device}"
    return (
        f"The attempt took {memory / 1e6:,.0f} MB of memory, and {given / 1e6:,.0f} MB is {whose}; it was ended for "
        "the sake of its neighbours. Use a smaller model or batch, or state its demand (packing.demand.memory)."
    )


def refused(share: Share) -> str:
    """What to add to a library's words where memory was refused to an attempt."""
    if share.gpu:
        given = share.allowed
        return f" (it may use {given / 1e6:,.0f} MB of {share.device})"
    return f" (jobs on {share.device} may use {share.capacity / 1e6:,.0f} MB together)"
