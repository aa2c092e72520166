"""KeptState: what is put back between the attempts of a process that stays (``training.process: kept``).

It is what an actor that is reused promises: settings of the process and of torch are as before the first attempt, and
random generators are seeded anew. Globals of modules stay as the training function left them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hpo_core.training.child.processes import children, resident
from hpo_core.training.objective import cuda_is_initialized
from hpo_core.training.saved_state import when_imported

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


def _thread_pools() -> list[Any]:
    return list(sys.modules["threadpoolctl"].ThreadpoolController().lib_controllers)


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
    Setting(lambda: [(pool, pool.num_threads) for pool in _thread_pools()], _set_thread_pools, "threadpoolctl"),
    Setting(lambda: _torch().get_num_threads(), lambda before: _torch().set_num_threads(before), "torch"),
    Setting(lambda: _torch().get_default_dtype(), lambda before: _torch().set_default_dtype(before), "torch"),
    Setting(_default_device, lambda before: _torch().set_default_device(before), "torch"),
    Setting(lambda: _torch().is_grad_enabled(), lambda before: _torch().set_grad_enabled(before), "torch"),
    Setting(_deterministic, _set_deterministic, "torch"),
)
"""What is put back; to add one is to add a line."""


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
