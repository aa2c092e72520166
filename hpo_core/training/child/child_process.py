"""ChildProcess: one process that the zygote forked, the pipes to it, and which attempts it may serve."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Job
from hpo_core.training.child.processes import children, resident
from hpo_core.training.objective import cuda_is_initialized
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import when_imported

LEAST_PERCENT = 6
"""Least share of a GPU's multiprocessors under MPS: a job that computes 1 % of the time takes far longer on 1 %."""
MOST_ATTEMPTS = 200
"""Attempts that one process serves; it is replaced then."""
IDLE_SECONDS = 10.0
"""Seconds that a process waits for an attempt. One that stayed holds memory of its device, and is a client of its MPS
daemon, which must outlive it."""
ANSWER_SECONDS = 60.0
"""Seconds that a process waits within a training for the study's answer. The study decides within milliseconds; a
controller that is gone never does."""


class ChildProcess:
    """A child of the zygote, from before its fork until it is reaped. It serves one attempt at a time.

    Args:
        stays: for further attempts like its first one; else it serves one.
    """

    def __init__(self, *, stays: bool) -> None:
        self.pid = 0
        self.stays = stays
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.orders, self.orders_in = os.pipe2(os.O_CLOEXEC)
        """The end that the child reads its next request from, and the one that the zygote writes it to."""
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self.idle_since = 0.0
        self.last: JobRequest | None = None
        """The attempt that it served last, once it waits; None: it was forked ahead of its first one."""
        self.asks = False
        """True if it waits within the training of that attempt, for the next job of its trial alone."""
        self.cpu = 0.0
        """Processor seconds of its earlier attempts."""
        self._open = {self.result, self.output, self.orders, self.orders_in, self.result_in, self.output_in}

    def kill(self) -> None:
        """Send SIGKILL to the child and its process group (which it may not have created yet)."""
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user's
                kill(self.pid, signal.SIGKILL)

    def close(self, *descriptors: int) -> None:
        """Close these of its descriptors, or all; safe to call twice."""
        for descriptor in descriptors or tuple(self._open):
            if descriptor in self._open:
                self._open.discard(descriptor)
                os.close(descriptor)

    @property
    def waits_until(self) -> float:
        return self.idle_since + (ANSWER_SECONDS if self.asks else IDLE_SECONDS)

    def serves(self, request: JobRequest) -> bool:
        """True if it may begin the attempt now: it is like those before, and this has not waited too long."""
        if self.last is None:
            like = self.stays == (request.setup.process == "kept")
        else:
            like = demand_of(self.last) == demand_of(request) and (not self.asks or continues(self.last.job, request))
        return like and time.monotonic() < self.waits_until

    def wait_from_now(self) -> None:
        self.idle_since = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while os.read(self.output, 1 << 16):
                pass


def continues(job: Job, request: JobRequest) -> bool:
    """True if the request is for the trial's next job after this one, which its process can go on with."""
    following = request.job
    return following.trial == job.trial and following.attempt > job.attempt and following.target > job.target


def demand_of(request: JobRequest) -> tuple[object, ...]:
    """The settings that a process cannot change once it trained; its next attempt must have the same.

    The memory of its part of a device can be set anew, and so can the rendezvous of a gang; not what CUDA and libraries
    of threads read from the environment when they are first used, nor the devices that a rank opened.
    """
    portion, device = request.portion, None
    if portion is not None:
        device = gpu_environment(portion) if portion.gpu else max(1, portion.cores // 1000)
    gang = msgspec.structs.replace(request.gang, store="")
    return request.setup.study, request.setup.folder, request.setup.process, request.setup.threads, device, gang


def gpu_environment(portion: Portion) -> dict[str, str]:
    """Variables that CUDA reads when it is first used.

    Under MPS the driver itself keeps a process to its portion: of compute, rounded up to a percent (with
    oversubscription those of all jobs add up to more than 100, as MPS allows), and of memory, CUDA's own included.

    >>> gpu_environment(Portion(device="GPU-1", architecture="A100", compute=333, memory=1, cores=1000, capacity=2))
    {'CUDA_VISIBLE_DEVICES': 'GPU-1'}
    """
    found = {"CUDA_VISIBLE_DEVICES": portion.device}
    if portion.mps:
        found["CUDA_MPS_PIPE_DIRECTORY"] = portion.mps
    if portion.mps and not portion.alone:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, max(LEAST_PERCENT, -(-portion.compute // 10))))
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, portion.allowed // 2**20)}M"
    return found


_libc: Any = ctypes.CDLL(None)
GROWN_BYTES = 256 << 20
"""Growth of a process's own memory beyond which it is replaced; counted from its first attempt where it has a GPU."""


class Setting(NamedTuple):
    """One setting of a process, or of a library in it."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    module: str = ""
    """Library without which there is no such setting."""


def _set_environment(before: dict[str, str]) -> None:
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
        time.tzset()


_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _set_handlers(before: list[Any]) -> None:
    for timer in _TIMERS:
        signal.setitimer(timer, 0)
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _torch() -> Any:
    return sys.modules["torch"]


def _default_device() -> Any:
    mode = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    return None if mode is None else str(mode)


def _deterministic() -> tuple[bool, ...]:
    torch, cudnn = _torch(), _torch().backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return *algorithms, cudnn.deterministic, cudnn.benchmark


def _set_deterministic(before: tuple[bool, ...]) -> None:
    torch, cudnn = _torch(), _torch().backends.cudnn
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    cudnn.deterministic, cudnn.benchmark = before[2:]


def _thread_pools() -> list[tuple[Any, int]]:
    return [(pool, pool.num_threads) for pool in sys.modules["threadpoolctl"].ThreadpoolController().lib_controllers]


def _set_thread_pools(before: list[tuple[Any, int]]) -> None:
    for pool, threads in before:
        pool.set_num_threads(threads)


SETTINGS = (
    Setting(lambda: dict(os.environ), _set_environment),
    Setting(os.getcwd, os.chdir),
    Setting(lambda: [signal.getsignal(number) for number in _SIGNALS], _set_handlers),
    Setting(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before),
    ),
    Setting(_thread_pools, _set_thread_pools, "threadpoolctl"),
    Setting(lambda: _torch().get_num_threads(), lambda before: _torch().set_num_threads(before), "torch"),
    Setting(lambda: _torch().get_default_dtype(), lambda before: _torch().set_default_dtype(before), "torch"),
    Setting(_default_device, lambda before: _torch().set_default_device(before), "torch"),
    Setting(lambda: _torch().is_grad_enabled(), lambda before: _torch().set_grad_enabled(before), "torch"),
    Setting(_deterministic, _set_deterministic, "torch"),
)
"""Settings that are put back; to add one is to add a line."""


class KeptState:
    """Settings of a process; made in the child, before its first attempt.

    Those of a library that the training function imports itself are read when it was imported.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Setting, Any]] = []
        for module in dict.fromkeys(setting.module for setting in SETTINGS):
            if not module or module in sys.modules:
                self._look_at(module)
            else:
                when_imported(module, partial(self._look_at, module))
        self._resident = resident("self")
        self._on_gpu = False

    def _look_at(self, module: str) -> None:
        self._before += [(setting, setting.read()) for setting in SETTINGS if setting.module == module]

    def put_back(self) -> bool:
        """Put the settings back and free the GPU; False: that failed, or something is left, and the process must end.

        What is left is a process that runs, or memory of a GPU.
        """
        try:
            for setting, before in self._before:
                setting.write(before)
            gc.collect()
            return not children(os.getpid()) and _free_gpu()
        except Exception:
            return False

    def grew(self) -> bool:
        """True if the process takes so much more memory than it did that it is replaced.

        What a GPU needs of the computer's memory, in its first attempt, is no growth.
        """
        if cuda_is_initialized() and not self._on_gpu:
            self._resident, self._on_gpu = resident("self"), True
        if resident("self") - self._resident > GROWN_BYTES // 2:
            _libc.malloc_trim(0)
        return resident("self") - self._resident > GROWN_BYTES


def _free_gpu() -> bool:
    # Free what torch keeps of the GPU, which the next attempt may have less of; False: tensors are left there.
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    devices = range(torch.cuda.device_count())
    held = sum(torch.cuda.memory_allocated(device) for device in devices)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    return not held
