"""What an attempt in a kept process must find as in a fresh one: what is put back, and what is only compared.

``SETTINGS`` is the table of what is put back: a name, how it is read, how it is written. One without a way to write it
is compared. :class:`KeptState` reads all before the first attempt. After each attempt it writes what differs, and says
what it could not put back: then the process ends, and the next attempt is forked from the zygote as ever.
"""

from __future__ import annotations

import abc
import asyncio.events  # noqa: F401  (has settings)
import atexit
import contextlib
import csv
import ctypes
import faulthandler
import functools
import gc
import itertools
import locale
import logging
import multiprocessing.context  # noqa: F401
import os
import resource
import signal
import socket
import stat
import sys
import tempfile  # noqa: F401
import threading
import time
import traceback
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hpo_core.training.child.library_names import LibraryNames
from hpo_core.training.child.module_state import (
    OURS,
    UserVariables,
    is_of_library_file,
    is_users,
    is_users_object,
    take_package_as_users,
)
from hpo_core.training.child.processes import children, resident
from hpo_core.training.objective import cuda_is_initialized

GROWN_BYTES = 256 << 20
"""Growth of a process's own memory beyond which it is replaced; counted from its first attempt where it has a GPU."""


MORE_DESCRIPTORS = 100
"""Number of further open files beyond which a process is replaced; counted as its memory is."""


class Setting(NamedTuple):
    """One setting of a process."""

    name: str
    """What it is, for people."""
    read: Callable[[], Any]
    """Reads its value; equal values are the same setting."""
    write: Callable[[Any], object] | None = None
    """Puts a value back; None: nobody can."""
    module: str = ""
    """Module without which there is no such setting."""


def _torch() -> Any:
    return sys.modules["torch"]


_libc: Any = ctypes.CDLL(None)


def _environment() -> tuple[dict[str, str], dict[bytes, bytes]]:
    """Variables as Python knows them, and as started processes and compiled libraries see them."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    seen: dict[bytes, bytes] = {}
    for place in itertools.count():
        if not entries or (entry := entries[place]) is None:
            return dict(os.environ), seen
        name, _, text = entry.partition(b"=")
        seen[name] = text
    raise AssertionError


def _set_environment(value: tuple[dict[str, str], dict[bytes, bytes]]) -> None:
    zone = os.environ.get("TZ")
    os.environ.clear()
    os.environ.update(value[0])
    now = _environment()[1]
    for name in now.keys() - value[1].keys():
        os.unsetenv(name)
    for name, text in value[1].items():
        if now.get(name) != text:
            os.putenv(name, text)
    if zone != value[0].get("TZ"):
        time.tzset()


_STREAM = ("encoding", "errors", "line_buffering", "write_through")


def _streams() -> list[Any]:
    """Standard streams: each with its settings, and with what was set on the object."""
    streams = [getattr(sys, name) for name in ("stdin", "stdout", "stderr")]
    return [
        (one, {name: getattr(one, name, None) for name in _STREAM}, dict(getattr(one, "__dict__", ())))
        for one in streams
    ]


def _set_streams(value: list[Any]) -> None:
    for name, (one, settings, attributes) in zip(("stdin", "stdout", "stderr"), value, strict=True):
        setattr(sys, name, one)
        if {each: getattr(one, each, None) for each in _STREAM} != settings:
            one.reconfigure(**settings)
        if hasattr(one, "__dict__"):
            vars(one).clear()
            vars(one).update(attributes)


def _set_processors(value: set[int]) -> None:
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        os.sched_setaffinity(int(task), value)


def _umask() -> int:
    found = os.umask(0o77)
    os.umask(found)
    return found


_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(value: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, value, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _set_filters(value: tuple[Any, ...]) -> None:
    warnings.filters[:] = list(value)  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})


def _set_limits(value: list[tuple[int, int]]) -> None:
    for number, limits in zip(_LIMITS, value, strict=True):
        if resource.getrlimit(number) != limits:
            resource.setrlimit(number, limits)


def _descriptors() -> dict[int, tuple[int, int, int]]:
    """Device, number and type of each open file, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (half the time)
        with contextlib.suppress(OSError):  # the one for this listing
            about = os.fstat(int(name))
            found[int(name)] = about.st_dev, about.st_ino, about.st_mode
    return found


def _imported_since() -> str:
    """A library that was imported after the training function's module; empty: none."""
    new = _packages() - _first_packages() - sys.stdlib_module_names
    return min((name for name in new if not name.startswith("_")), default="")  # the others are parts of libraries


_NEW_LOGGER: tuple[Any, ...] = (logging.NOTSET, True, False, (), ())


def _packages() -> set[str]:
    return {name.partition(".")[0] for name in list(sys.modules)}


@functools.cache
def _first_packages() -> set[str]:
    return _packages() | {name.partition(".")[0] for name in logging.root.manager.loggerDict}


def _loggers() -> dict[str, tuple[Any, ...]]:
    """Settings of each logger that has other ones than a new logger, and of its handlers.

    Those of libraries that were imported since are left out: their import set them, and is not repeated.
    """
    since = _packages() - _first_packages()
    known = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    found = {}
    for name, one in {"": logging.root, **known}.items():
        handlers = tuple((each, each.level, each.formatter) for each in one.handlers)
        settings = one.level, one.propagate, one.disabled, handlers, tuple(one.filters)
        if settings != _NEW_LOGGER and name.partition(".")[0] not in since:
            found[name] = settings
    return found


def _set_loggers(value: dict[str, tuple[Any, ...]]) -> None:
    now = _loggers()
    for name in now.keys() | value.keys():
        before = value.get(name, _NEW_LOGGER)
        if before != now.get(name, _NEW_LOGGER):
            one = logging.getLogger(name) if name else logging.root
            level, one.propagate, one.disabled, handlers, filters = before
            one.handlers[:], one.filters[:] = [each for each, *_ in handlers], filters
            for each, its_level, each.formatter in handlers:
                each.setLevel(its_level)
            one.setLevel(level)


def _list(path: str) -> Setting:
    """A list, or dict, of a module: the object and what it holds."""
    module, _, name = path.rpartition(".")

    def read() -> tuple[Any, Any]:
        value = getattr(sys.modules[module], name)
        return value, value.copy()

    def write(before: tuple[Any, Any]) -> None:
        value, content = before
        setattr(sys.modules[module], name, value)
        value.clear()
        value.update(content) if hasattr(value, "update") else value.extend(content)

    return Setting(path, read, write, module.partition(".")[0])


def _attribute(path: str, module: str = "") -> Setting:
    """An attribute, by its path; of a module, unless that is said."""
    owner, _, name = path.rpartition(".")
    module = module or owner

    def of() -> Any:
        found = sys.modules[module]
        for part in owner[len(module) + 1 :].split(".") if owner != module else ():
            found = getattr(found, part)
        return found

    return Setting(path, lambda: getattr(of(), name), lambda value: setattr(of(), name, value), module)


def _of_torch(name: str, read: str, write: str) -> Setting:
    """A setting of torch with a function to read it and one to write it."""
    return Setting(name, lambda: _called(read), lambda value: _called(write, value), "torch")


def _called(path: str, *arguments: Any) -> Any:
    found = _torch()
    for part in path.split("."):
        found = getattr(found, part)
    return found(*arguments)


def _autocast() -> list[Any]:
    torch = _torch()
    kinds = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return [*kinds, torch.is_autocast_cache_enabled()]


def _set_autocast(value: list[Any]) -> None:
    torch = _torch()
    for kind, enabled, dtype in value[:-1]:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(value[-1])
    torch.clear_autocast_cache()


def _default_device() -> Any:
    mode = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    return None if mode is None else str(mode)


def _flushes_denormals() -> bool:
    return float(np.float32(1e-40) * np.float32(1.0)) == 0.0


def _compiled() -> int:
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return 0 if frames is None else int(getattr(frames, "FRAME_COUNTER", 0))


def _forget_compiled(value: int) -> None:
    """Drop compiled functions: which sizes are dynamic in them depends on what was seen before."""
    sys.modules["torch._dynamo"].reset()
    vars(sys.modules["torch._dynamo.convert_frame"])["FRAME_COUNTER"] = value


def _flag_of_torch(name: str) -> Setting:
    """A flag of torch's core, by the name after ``_get_`` and ``_set_``."""

    def write(value: Any) -> None:
        _called(f"_C._set_{name}", *(value if isinstance(value, tuple) else (value,)))

    return Setting(f"torch's {name}", lambda: _called(f"_C._get_{name}"), write, "torch")


_FLAGS = (
    "blas_preferred_backend", "cpu_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation", "cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_tf32",
    "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled",
    "deterministic_fill_uninitialized_memory", "float32_matmul_precision", "graph_executor_optimize",
    "linalg_preferred_backend", "math_sdp_allow_fp16_bf16_reduction", "mkldnn_deterministic", "mkldnn_enabled",
    "nnpack_enabled", "onednn_allow_tf32", "qengine", "sdp_priority_order", "warnAlways",
)  # fmt: skip
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_PRECISIONS = (
    ("generic", "all"),
    *((kind, part) for kind in ("cuda", "mkldnn") for part in ("all", "conv", "rnn", "matmul")),
)


def _precisions() -> list[str]:
    return [_called("_C._get_fp32_precision_getter", *each) for each in _PRECISIONS]


def _set_precisions(value: list[str]) -> None:
    for each, before in zip(_PRECISIONS, value, strict=True):
        if _called("_C._get_fp32_precision_getter", *each) != before:  # many follow the one above
            _called("_C._set_fp32_precision_setter", *each, before)


def _configuration(module: str) -> Setting:
    """Configuration of a part of torch's compiler."""

    def write(before: dict[str, Any]) -> None:
        for name, value in sys.modules[module].shallow_copy_dict().items():
            if value != before[name]:
                setattr(sys.modules[module], name, before[name])

    return Setting(module, lambda: sys.modules[module].shallow_copy_dict(), write, module)


def _options_of_pandas() -> dict[str, Any]:
    config = sys.modules["pandas._config.config"]
    return {name: config.get_option(name) for name in config._registered_options}


def _set_options_of_pandas(value: dict[str, Any]) -> None:
    for name, now in _options_of_pandas().items():
        if now != value[name]:
            sys.modules["pandas._config.config"].set_option(name, value[name])


def _close_figures(value: list[int]) -> None:
    pyplot = sys.modules["matplotlib.pyplot"]
    for number in set(pyplot.get_fignums()) - set(value):
        pyplot.close(number)


@functools.cache
def _thread_pools() -> Any:
    return sys.modules["threadpoolctl"].ThreadpoolController().lib_controllers


def _set_thread_pools(value: list[int]) -> None:
    for pool, number in zip(_thread_pools(), value, strict=True):
        pool.set_num_threads(number)


_HOOKS = (
    "torch.nn.modules.module._global_forward_hooks", "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_backward_hooks", "torch.nn.modules.module._global_backward_pre_hooks",
    "torch.nn.modules.module._global_forward_hooks_always_called",
    "torch.nn.modules.module._global_module_registration_hooks",
    "torch.nn.modules.module._global_parameter_registration_hooks",
    "torch.nn.modules.module._global_buffer_registration_hooks",
    "torch.optim.optimizer._global_optimizer_pre_hooks", "torch.optim.optimizer._global_optimizer_post_hooks",
)  # fmt: skip

SETTINGS: tuple[Setting, ...] = (
    Setting("the environment", _environment, _set_environment),
    Setting("the working folder", os.getcwd, os.chdir),
    Setting("the umask", _umask, os.umask),
    Setting("signal handlers", _handlers, _set_handlers),
    Setting(
        "blocked signals",
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        lambda value: signal.pthread_sigmask(signal.SIG_SETMASK, value),
    ),
    Setting(
        "timers",
        lambda: [signal.getitimer(which) for which in _TIMERS],
        lambda value: [signal.setitimer(which, *each) for which, each in zip(_TIMERS, value, strict=True)],
    ),
    Setting("filters of warnings", lambda: tuple(warnings.filters), _set_filters),
    *map(_attribute, ("warnings.showwarning", "warnings._showwarnmsg_impl", "warnings.formatwarning")),
    *map(_list, ("sys.path", "sys.argv", "sys.meta_path", "sys.path_hooks", "gc.callbacks", "warnings.onceregistry",
                "logging._levelToName", "logging._nameToLevel")),
    *map(
        _attribute,
        (
            "sys.excepthook", "sys.displayhook", "sys.unraisablehook",
            "sys.breakpointhook", "sys.dont_write_bytecode", "builtins.print", "builtins.open", "builtins.__import__",
            "threading.excepthook", "threading._trace_hook", "threading._profile_hook", "tempfile.tempdir",
            "multiprocessing.context._default_context", "asyncio.events._event_loop_policy",
            "logging._warnings_showwarning", "urllib.request._opener",
        ),
    ),
    _attribute("multiprocessing.context._default_context._actual_context", "multiprocessing.context"),
    Setting("the standard streams", _streams, _set_streams),
    Setting("the trace function", sys.gettrace, sys.settrace),
    Setting("the profile function", sys.getprofile, sys.setprofile),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the switch interval of threads", sys.getswitchinterval, sys.setswitchinterval),
    Setting("the digits of integers", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    Setting("resource limits", lambda: [resource.getrlimit(number) for number in _LIMITS], _set_limits),
    Setting("the priority", lambda: os.getpriority(os.PRIO_PROCESS, 0)),
    Setting("allowed processors", lambda: os.sched_getaffinity(0), _set_processors),
    Setting("the flags of dlopen", sys.getdlopenflags, sys.setdlopenflags),
    Setting("tracemalloc", tracemalloc.is_tracing,
            lambda value: tracemalloc.start() if value else tracemalloc.stop()),
    Setting("the largest field of csv", csv.field_size_limit, csv.field_size_limit),
    Setting("the locale", partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
    Setting("whether garbage is collected", gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    Setting("thresholds of garbage collection", gc.get_threshold, lambda value: gc.set_threshold(*value)),
    Setting("flags of garbage collection", gc.get_debug, gc.set_debug),
    Setting("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Setting("loggers", _loggers, _set_loggers),
    Setting("the disabled level of logging", lambda: logging.root.manager.disable, logging.disable),
    Setting("numpy's handling of errors", np.geterr, lambda value: np.seterr(**value)),
    Setting("numpy's error callback", np.geterrcall, np.seterrcall),
    Setting("numpy's print options", np.get_printoptions, lambda value: np.set_printoptions(**value)),
    Setting("numpy's bit generator", *(getattr(np.random, f"{what}_bit_generator") for what in ("get", "set"))),
    Setting("numpy's buffer size", np.getbufsize, np.setbufsize),
    _of_torch("torch's default dtype", "get_default_dtype", "set_default_dtype"),
    Setting("torch's default device", _default_device, lambda value: _torch().set_default_device(value), "torch"),
    _of_torch("torch's gradient mode", "is_grad_enabled", "_C._set_grad_enabled"),
    Setting(
        "torch's deterministic algorithms",
        lambda: (_torch().are_deterministic_algorithms_enabled(),
                 _torch().is_deterministic_algorithms_warn_only_enabled()),
        lambda value: _torch().use_deterministic_algorithms(value[0], warn_only=value[1]),
        "torch",
    ),
    *map(_flag_of_torch, _FLAGS),
    Setting("torch's precision of float32", _precisions, _set_precisions, "torch"),
    *map(_attribute, (
        "torch.backends.cudnn.benchmark_limit", "torch.backends.opt_einsum.enabled",
        "torch.backends.opt_einsum.strategy", "torch.hub._hub_dir",
        "torch.nn.utils.parametrize._cache_enabled",
        "torch.utils.checkpoint._enable_checkpoint_early_stop",
    )),
    _attribute("torch.distributions.distribution.Distribution._validate_args", "torch.distributions.distribution"),
    _of_torch("torch's fast path of attention", "backends.mha.get_fastpath_enabled",
              "backends.mha.set_fastpath_enabled"),
    _of_torch("torch's conversion of parameters", "__future__.get_overwrite_module_params_on_conversion",
              "__future__.set_overwrite_module_params_on_conversion"),
    _of_torch("torch's swapping of parameters", "__future__.get_swap_module_params_on_conversion",
              "__future__.set_swap_module_params_on_conversion"),
    _of_torch("torch's checks of sparse tensors", "_C._check_sparse_tensor_invariants",
              "_C._set_check_sparse_tensor_invariants"),
    Setting("torch's profiler", lambda: _called("_C._autograd._profiler_enabled"), None, "torch"),
    *(
        _of_torch(f"torch's {name} attention", f"backends.cuda.{name}_sdp_enabled", f"backends.cuda.enable_{name}_sdp")
        for name in _SDP
    ),
    Setting("flushing of denormal numbers", _flushes_denormals),  # threads of torch took it over
    _of_torch("torch's number of threads", "get_num_threads", "set_num_threads"),
    Setting("torch's number of inter-op threads", lambda: _torch().get_num_interop_threads(), None, "torch"),
    Setting("torch's autocast", _autocast, _set_autocast, "torch"),
    Setting(
        "torch's anomaly detection",
        lambda: (_torch().is_anomaly_enabled(), _torch().is_anomaly_check_nan_enabled()),
        lambda value: _torch().autograd.set_detect_anomaly(*value),
        "torch",
    ),
    _of_torch("torch's threads of autograd", "_C._is_multithreading_enabled", "_C._set_multithreading_enabled"),
    _of_torch("torch's replay of views", "_C._is_view_replay_enabled", "_C._set_view_replay_enabled"),
    Setting("torch's inference mode", lambda: _torch().is_inference_mode_enabled(), None, "torch"),
    Setting("torch's hooks for saved tensors",
            lambda: repr(_called("_C._autograd._top_saved_tensors_default_hooks", True)), None, "torch"),
    Setting("torch's modes", lambda: (_called("_C._len_torch_dispatch_stack"), _called("_C._len_torch_function_stack"),
                                      _torch().autograd.forward_ad._current_level), None, "torch"),
    *map(_list, _HOOKS),
    Setting("torch's print options", lambda: vars(_torch()._tensor_str.PRINT_OPTS).copy(),
            lambda value: vars(_torch()._tensor_str.PRINT_OPTS).update(value), "torch._tensor_str"),
    Setting("torch's process group", lambda: _called("distributed.is_initialized"), None, "torch.distributed"),
    Setting("torch's way to share tensors", lambda: _called("multiprocessing.get_sharing_strategy"),
            lambda value: _called("multiprocessing.set_sharing_strategy", value), "torch.multiprocessing"),
    *map(_configuration, ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")),
    Setting("compiled functions", _compiled, _forget_compiled, "torch"),
    Setting("the current CUDA device", lambda: _called("cuda.current_device") if _uses_cuda() else 0,
            lambda value: _called("cuda.set_device", value) if _uses_cuda() else None, "torch"),
    Setting("the current CUDA stream", lambda: _called("cuda.current_stream").stream_id if _uses_cuda() else 0,
            lambda _: _called("cuda.set_stream", _called("cuda.default_stream")), "torch"),
    _list("matplotlib.rcParams"),
    Setting("matplotlib's figures", lambda: sys.modules["matplotlib.pyplot"].get_fignums(), _close_figures,
            "matplotlib.pyplot"),
    Setting("pandas' options", _options_of_pandas, _set_options_of_pandas, "pandas"),
    Setting("scipy.special's handling of errors", lambda: sys.modules["scipy.special"].geterr(),
            lambda value: sys.modules["scipy.special"].seterr(**value), "scipy.special"),
    Setting("threads of thread pools", lambda: [pool.num_threads for pool in _thread_pools()], _set_thread_pools,
            "threadpoolctl"),
    Setting("MLflow's active run", lambda: repr(sys.modules["mlflow"].active_run()), None, "mlflow"),
    *map(_attribute, ("mlflow.tracking.fluent._active_experiment_id",
                      "mlflow.tracking._tracking_service.utils._tracking_uri")),
    Setting("the configuration of scikit-learn", lambda: sys.modules["sklearn"].get_config(),
            lambda value: sys.modules["sklearn"].set_config(**value), "sklearn"),
)  # fmt: skip
"""What is put back after each attempt; to add one is to add a line."""


_OF_IMPORTS = ("filters of warnings", "sys.meta_path", "sys.path_hooks")
"""Settings that a library may change when it is imported: then they cannot be put back."""
_WITH_SETTINGS = {one.module for one in SETTINGS if not one.module.startswith("torch.")} - sys.stdlib_module_names
"""Modules whose settings must be read before an attempt can change them."""


def _uses_cuda() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


class ExitFunctions:
    """Functions that the training code registers with ``atexit``: they run at the end of each attempt.

    Those that libraries register for themselves run when the process ends: a library that closed itself down would be
    of no use to the next attempt. Made in the zygote; replaces ``atexit.register``.
    """

    def __init__(self) -> None:
        self._own: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._register, self._unregister = atexit.register, atexit.unregister
        self._others = atexit._ncallbacks()
        vars(atexit)["register"], vars(atexit)["unregister"] = self.register, self.unregister

    def register(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
        """As ``atexit.register``."""
        if is_of_library_file(sys._getframe(1).f_code.co_filename):
            self._register(function, *arguments, **keywords)
            self._others = atexit._ncallbacks()
        else:
            self._own.append((function, arguments, keywords))
        return function

    def unregister(self, function: Callable[..., Any], /) -> None:
        """As ``atexit.unregister``."""
        self._own = [each for each in self._own if each[0] != function]
        known = atexit._ncallbacks() == self._others
        self._unregister(function)
        if known:
            self._others = atexit._ncallbacks()

    @property
    def unseen(self) -> bool:
        """Whether one was registered by a function that was imported before it was replaced."""
        return atexit._ncallbacks() != self._others

    def run(self) -> None:
        """Run them, the last one first, as at the end of a process."""
        while self._own:
            function, arguments, keywords = self._own.pop()
            try:
                function(*arguments, **keywords)
            except SystemExit:
                pass
            except BaseException:
                traceback.print_exc()
        for one, about in list(weakref.finalize._registry.items()):  # type: ignore[attr-defined]
            if about.atexit and (is_users_object(about.func) or is_users_object(about.weakref())):
                one()


_NATIVE = (
    "CUDA", "CUBLAS", "CUDNN", "NVIDIA", "NCCL", "OMP", "KMP", "GOMP", "MKL", "OPENBLAS", "BLIS", "TORCH", "PYTORCH",
    "XLA", "TF_", "JAX", "MALLOC_", "LD_",
)  # fmt: skip
"""Beginnings of the environment variables that compiled libraries read once, when they are first used."""


class NativeVariables:
    """Notices when the training code sets an environment variable that compiled libraries read once.

    In a process that served an attempt before they may have read it: then the attempt begins anew in another one.
    """

    def __init__(self) -> None:
        self.name = ""
        """One that was set."""
        self._watching = False
        self._on_set: Callable[[], object] | None = None
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def watched(self, on_set: Callable[[], object] | None) -> Iterator[None]:
        """Watch while the attempt runs.

        Args:
            on_set: called at once; None: the name is noted.
        """
        self._watching, self._on_set = True, on_set
        try:
            yield
        finally:
            self._watching = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "os.putenv" or not self._watching:
            return
        name, value = (os.fsdecode(each) for each in arguments)
        if name.startswith(_NATIVE) and os.environ.get(name) != value and not _is_set_by_us():
            self.name = name
            if self._on_set is not None:
                self._on_set()


def _is_set_by_us() -> bool:
    """Whether our own code sets the variable now: for all attempts of a process alike."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == OURS


class KeptState:
    """What a process is like before its first attempt; made in the zygote, and completed in the child.

    Args:
        function: the training function, which may be of no module (it was sent by value).
        more: further values that no attempt may change, by name: partitions of the data that are loaded.
    """

    def __init__(self, function: Callable[..., Any], more: Callable[[], dict[str, Any]] = dict) -> None:
        take_package_as_users(function)
        self.exits = ExitFunctions()
        self._libraries = LibraryNames()
        self._more = more
        self._function = function
        self.look_at_variables()
        self._modules = frozenset(sys.modules)
        _first_packages()
        self._abstract = abc.get_cache_token()
        self._before: list[tuple[Setting, Any]] = []
        self._descriptors: dict[int, Any] = {}
        self._resident: int | None = None

    def look_at_variables(self) -> None:
        """Look at variables again: a partition was loaded."""
        self._variables = UserVariables(lambda: [("the training function", self._function), *self._more().items()])

    def begin(self) -> None:
        """Read all settings; call it in the child, before its first attempt."""
        self._before = [(setting, _read(setting)) for setting in SETTINGS if _is_there(setting)]
        self._descriptors = _descriptors()
        self._resident, self._open = resident("self"), len(self._descriptors)
        self.native = NativeVariables()

    def put_back(self) -> str:
        """Put back what the attempt changed; returns what cannot be, for people; empty: nothing."""
        try:
            return self._left_running() or self._settings() or self._imports() or self._changes() or _cuda_memory()
        except Exception as error:
            return f"nobody can tell what changed: {type(error).__name__}: {error}"

    def grew(self, beside: int = 0) -> bool:
        """Whether the process takes so much more memory than it did that it is replaced.

        What a GPU needs of the computer's memory, in its first attempt, is no growth.

        Args:
            beside: bytes that it holds for the next attempt.
        """
        now = resident("self") - beside
        if self._resident is None or (cuda_is_initialized() and not self._on_gpu):
            self._resident, self._open, self._on_gpu = now, len(_descriptors()), True
        if now - self._resident > GROWN_BYTES // 2:
            _libc.malloc_trim(0)
            now = resident("self") - beside
        return now - self._resident > GROWN_BYTES or len(_descriptors()) > self._open + MORE_DESCRIPTORS

    _on_gpu = False

    def _left_running(self) -> str:
        faulthandler.cancel_dump_traceback_later()
        for thread in threading.enumerate():
            if type(thread).__module__ == "tqdm._monitor":  # one begins with each bar
                thread.exit()  # type: ignore[attr-defined]
        if len(sys._current_frames()) > 1:
            names = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
            return f"{', '.join(names) or 'a thread'} still runs"
        if children(os.getpid()):
            return "a process that it started still runs"
        if self.native.name:
            said = f"{self.native.name} was set in the environment"
            if imported := _imported_since():
                return f"{said}, perhaps by {imported}: import it at the top of the module"
            return f"{said}: set it where the function's module is imported"
        return "a function was registered with atexit by a name from before" if self.exits.unseen else ""

    def _settings(self) -> str:
        if sys.modules.get("torch") is not None:
            _finish_torch()
        gc.collect()
        imported = _imported_since()
        for setting, before in self._before:
            if not _same(_read(setting), before):
                if imported and setting.name in _OF_IMPORTS:
                    return f"{setting.name} changed, perhaps by {imported}: import it at the top of the module"
                if setting.write is not None:
                    with contextlib.suppress(Exception):
                        setting.write(before)
                if not _same(_read(setting), before):
                    return f"{setting.name} changed"
        now = _descriptors()
        changed = [number for number, about in self._descriptors.items() if now.get(number) != about]
        if changed:
            return f"file descriptor {changed[0]} was closed or replaced"
        listens = any(
            _listens(number)
            for number, (*_, mode) in now.items()
            if number not in self._descriptors and stat.S_ISSOCK(mode)
        )
        return "a socket still listens" if listens else ""

    def _imports(self) -> str:
        modules = frozenset(sys.modules)
        registered = self._abstract != abc.get_cache_token()
        if modules == self._modules:
            return "a class was registered with an abstract base class" if registered else ""
        self._abstract = abc.get_cache_token()
        for name in sorted(modules - self._modules):
            if is_users(sys.modules[name]) or name in _WITH_SETTINGS:
                return f"{name} was imported by the training function: import it at the top of its module"
        if gone := self._modules - modules:
            return f"module {min(gone)} was removed"
        self._modules = modules
        return self._libraries.change() or self._libraries.look_at_new()

    def _changes(self) -> str:
        return self._variables.change() or self._libraries.change()


def _listens(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_there(setting: Setting) -> bool:
    return not setting.module or setting.module in sys.modules


def _read(setting: Setting) -> Any:
    """Reads a setting; of one that cannot be read, the error is returned."""
    try:
        if not setting.module.startswith("torch"):
            return setting.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about settings of old names
            return setting.read()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        return False


def _finish_torch() -> None:
    """Free what torch holds of the GPU for the next attempt: that may need another part of it."""
    torch = _torch()
    if _uses_cuda():
        torch.cuda.synchronize()
        gc.collect()
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _cuda_memory() -> str:
    if not _uses_cuda():
        return ""
    torch = _torch()
    held = sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    return f"{held:,} bytes of a GPU are still held" if held else ""
