"""What a forked child does: leaves the zygote's state behind, trains, reports, ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NoReturn

from hpo_core.model.devices.inventory import Portion
from hpo_core.spec.assembly import VARIABLES
from hpo_core.training.attempt import run_attempt
from hpo_core.training.child.messages import Finished, send
from hpo_core.training.child.processes import data_size
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.error_text import traceback_tail
from hpo_core.training.request import JobRequest
from hpo_core.training.user_process import exit_if_forked_copy, flush_streams

_pools: Any = None
"""Controller of the libraries that the objective's import loaded; None: threadpoolctl is missing or not needed."""


def apply_share(share: Portion, threads: int | None) -> None:
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


def gpu_environment(share: Portion) -> dict[str, str]:
    """Variables that CUDA reads when it is first used.

    Under MPS the driver itself keeps a process to its share: of compute, rounded up to a percent (with oversubscription
    those of all jobs add up to more than 100, as MPS allows), and of memory, CUDA's own included.

    >>> gpu_environment(Portion(device="GPU-1", architecture="A100", compute=333, memory=1, cores=1000, capacity=2))
    {'CUDA_VISIBLE_DEVICES': 'GPU-1'}
    """
    found = {"CUDA_VISIBLE_DEVICES": share.device}
    if share.mps:
        found["CUDA_MPS_PIPE_DIRECTORY"] = share.mps
    if share.mps and not share.alone:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, max(1, -(-share.compute // 10))))
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, share.allowed // 2**20)}M"
    return found


def _limit_torch(share: Portion) -> None:
    """Torch's allocator refuses what is beyond the share. Another library's allocator is not reached."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)

    def limit() -> None:
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, share.allowed / total), 0)

    if cuda is not None:
        cuda._lazy_call(limit)  # when torch first uses CUDA: initializing it here would cost jobs that do not


def _threads_to_set(share: Portion, threads: int | None) -> int | None:
    """The number of threads; None where the study says how many, or the loaded libraries have read that number."""
    wanted = max(1, share.cores // 1000)
    return None if threads is not None or os.environ.get(VARIABLES[0], "") == str(wanted) else wanted


def find_thread_pools(share: Portion, threads: int | None) -> None:
    """Look for loaded libraries once, in the zygote before the fork, and not in each child.

    It takes some 10 ms; no child does without it whose cores are not what the zygote's libraries were loaded with.
    """
    global _pools
    if share.gpu or _pools is not None or _threads_to_set(share, threads) is None:
        return
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        _pools = ThreadpoolController()


def _limit_threads(threads: int) -> None:
    """Limit the threads of torch, of loaded OpenMP and BLAS libraries, and of programs that are started.

    Not reached: a library that is loaded later and asks for the number of processors, not for its variable's value.
    """
    os.environ.update(dict.fromkeys(VARIABLES, str(threads)))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    if _pools is not None:
        _pools.limit(limits=threads)


def _limit_data(share: Portion) -> None:
    """One process cannot get more private memory than jobs may use together, beyond what it inherited."""
    most, hard = data_size() + share.capacity, resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up before the fork; Linux only


def open_descriptors() -> frozenset[int]:
    """Numbers of the file descriptors that are open in this process."""
    listed = [path.name for path in Path("/proc/self/fd").iterdir()]  # and the one for this listing, closed by now
    return frozenset(int(name) for name in listed if Path("/proc/self/fd", name).is_symlink())


def run_child(
    function: Callable[..., Any],
    request: JobRequest,
    *,
    result: int,
    output: int,
    progress: SharedProgress,
    parent: int,
    keep_open: Set[int] = frozenset(),
) -> NoReturn:
    """Run one attempt in this forked process and end it; never returns.

    Args:
        result: descriptor that the report is written to.
        output: descriptor for standard output and standard error.
        progress: page shared with the zygote.
        parent: process id of the zygote; the child ends with it.
        keep_open: descriptors that the objective's module opened; all others of the zygote are closed.
    """
    pid = os.getpid()
    try:
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the zygote died before prctl took effect
            os._exit(1)
        signal.set_wakeup_fd(-1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in open_descriptors() - keep_open - {0, 1, 2, result}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        done = _train_and_report(function, request, progress)
        exit_if_forked_copy(pid)
        send(result, done)
        os.close(result)
        _run_exit_functions()
    except BaseException as error:
        exit_if_forked_copy(pid, error)
        with contextlib.suppress(BaseException):
            sys.stderr.write(traceback_tail(error))
            sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _train_and_report(function: Callable[..., Any], request: JobRequest, progress: SharedProgress) -> Finished:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _restore_signals()
    progress.start()
    if request.portion is not None:
        apply_share(request.portion, request.threads)
    whole: list[str] = []
    report = run_attempt(function, request, progress, log=whole.append)
    progress.finish()
    flush_streams()
    return Finished(report, "".join(whole))


def _restore_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(file=2)
    # SIGTERM still ends the process, but first writes the stack to the log: what a hung attempt was doing
    faulthandler.register(signal.SIGTERM, file=2, chain=True)


def clear_exit_functions() -> None:
    """Remove the exit functions and finalizers that the zygote's imports registered.

    Otherwise the first child to end would, for example, delete a temporary folder of the objective's module.
    """
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def _run_exit_functions() -> None:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_streams()
