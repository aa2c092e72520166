"""Training functions that leave something behind, for processes that stay; no tests in here.

``train`` first notes all that an attempt can see of its process, and reports a digest of it; then it does what
``trial.params["do"]`` names: one of ``PUT_BACK``, after which the process stays, or of ``NOTICED``, after which it must
not.
"""

from __future__ import annotations

import abc
import asyncio
import atexit
import builtins
import colorsys  # noqa: F401
import contextlib
import contextvars
import copyreg
import csv
import ctypes
import decimal
import faulthandler
import fcntl
import functools
import gc
import io
import itertools
import json
import locale
import logging
import multiprocessing
import os
import platform
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import typing
import urllib.request
import warnings
import weakref
import zlib
from pathlib import Path
from random import shuffle
from typing import ClassVar

import numpy as np
import torch
import tqdm
from numpy.random import rand

torch.manual_seed(5)
counter = 0
HISTORY: list[int] = []
NESTED = {"inner": {"values": [1, 2]}}
DATA = np.arange(500_000, dtype=np.float64)
SMALL = np.zeros(3)
WEIGHTS = torch.zeros(100_000)
RNG = np.random.default_rng(7)
NUMBERS = itertools.count()
LINES = iter(["a", "b", "c"])
SOURCE = open(__file__)  # noqa: PTH123, SIM115
BUFFER = io.StringIO("text")
LAYER = torch.nn.Linear(2, 2)
local = threading.local()
log = logging.getLogger("dirty")


class Net:
    calls = 0
    shapes: ClassVar[dict[str, int]] = {}


class Holder:
    def __init__(self):
        self.best = None


HOLDER = Holder()


class Abstract(abc.ABC):  # noqa: B024
    """What others may be registered with."""


class Base:
    """What an attempt may derive from."""


class Positions:
    """An iterator."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return self.at


@torch.no_grad()
def evaluate(seen=[]):  # noqa: B006
    seen.append(1)


@functools.singledispatch
def kind_of(value):
    return "other"


@functools.lru_cache(maxsize=1)
def latest(number):
    return number


latest(0)
PAIRS = zip(itertools.count(), Positions(), strict=False)
TEXTS = map(str, (number for number in range(100)))
NOT_YET = (number for number in range(3))
SETTINGS = types.ModuleType("settings_by_path")
SETTINGS.rate = 1.0
HANDLER = logging.StreamHandler()
HANDLER.setFormatter(logging.Formatter("%(message)s"))
asyncio.get_event_loop_policy()
LOCKED = tempfile.gettempdir() + "/dirty-objectives"
logging.getLogger("handled").addHandler(HANDLER)
UNUSED_HANDLER = logging.StreamHandler()
HANDLER.setFormatter(logging.Formatter("%(message)s"))
asyncio.get_event_loop_policy()
LOCKED = tempfile.gettempdir() + "/dirty-objectives"
PLACES = threading.Semaphore(3)
CALLS = contextvars.ContextVar("CALLS", default=[])  # noqa: B039
VIEW = types.MappingProxyType({"a": 1})
HALF = decimal.Decimal(1) / 2
OPERATIONS = (shuffle, rand)


@functools.cache
def squared(number):
    return number * number, len(HISTORY)


def with_default(value, seen=[]):  # noqa: B006
    seen.append(value)
    return len(seen)


def counting():
    total = 0

    def add():
        nonlocal total
        total += 1
        return total

    return add


ADD = counting()


def nothing(*_, **__):
    """Does nothing."""


def seen():
    """What an attempt can see of its process."""
    torch_flags = [
        torch.get_default_dtype(), torch.zeros(1).device, torch.is_grad_enabled(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_anomaly_enabled(),
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.mkldnn.enabled,
        str(torch.tensor(1.23456789)), float(torch.tensor([1e-40]).mul(1.0)), torch.is_warn_always_enabled(),
        len(torch.nn.modules.module._global_forward_hooks), torch.is_inference_mode_enabled(),
        torch.nn.functional.relu(torch.tensor(-1.0)), torch.rand(2), torch.nn.Linear(2, 1).weight, LAYER.weight,
        torch.backends.cuda.flash_sdp_enabled(),
    ]  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("seen", UserWarning, stacklevel=1)
    return [
        *torch_flags, random.random(), np.random.random(), random.gauss(0, 1), environment(), Path.cwd(),
        umask(), signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, []),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0, len(caught), len(warnings.filters), list(sys.path), sys.argv[3:],
        sys.getrecursionlimit(), type(sys.stdout).__name__, sys.excepthook is sys.__excepthook__, sys.gettrace(),
        resource.getrlimit(resource.RLIMIT_NOFILE), sorted(os.sched_getaffinity(0)), locale.setlocale(locale.LC_ALL),
        gc.isenabled(), gc.get_threshold(), socket.getdefaulttimeout(), log.level, log.disabled, len(log.handlers),
        logging.root.level, logging.root.manager.disable, sorted(np.geterr().items()), str(np.float64(1) / 3),
        str(np.array([1 / 3])), decimal.getcontext().prec, str(decimal.Decimal(1) / 3), tempfile.tempdir,
        multiprocessing.get_start_method(allow_none=True), print is builtins.print, squared(3), counter, HISTORY,
        NESTED, float(DATA.sum()), SMALL.tolist(), float(WEIGHTS.sum()), RNG.random(0).size, Net.calls, Net.shapes,
        HOLDER.best, getattr(train, "calls", 0), getattr(local, "value", None), np.mean([1.0, 3.0]),
        json.dumps({"a": 1}), threading.active_count(), sorted(n for n in sys.modules if n.startswith("dirty_")),
        time.strftime("%Z", time.localtime(0)), str(os.times is not None), getattr(np, "of_train", None),
        variable_of_c(b"OF_C"), tracemalloc.is_tracing(),
        csv.field_size_limit(), logging._warnings_showwarning, logging.getLevelName(15), HANDLER.level,
        logging.getLogger("dirty.new").level, type(np.random.get_bit_generator()).__name__, sys.stdout.errors,
        vars(sys.stdout).get("write"), signal.set_wakeup_fd(-1), faulthandler.unregister(signal.SIGUSR2),
        urllib.request._opener,
        torch.backends.mha.get_fastpath_enabled(), torch._C._get_nnpack_enabled(), torch._dynamo.config.suppress_errors,
        torch.backends.mkldnn.matmul.fp32_precision, torch.distributions.Distribution._validate_args,
        torch.sparse.check_sparse_tensor_invariants.is_enabled(), torch.autograd._profiler_enabled(), kind_of(3),
        issubclass(int, Abstract), len(Base.__subclasses__()), evaluate.__wrapped__.__defaults__, SETTINGS.rate,
        PLACES._value, CALLS.get(), getattr(builtins, "DEBUGS", None), latest.cache_info().misses,
        sys.getdlopenflags(),
        HANDLER.formatter._style._fmt, len(HANDLER.filters), logging.lastResort is None, decimal.DefaultContext.prec,
        sys.get_asyncgen_hooks().firstiter, sys.get_coroutine_origin_tracking_depth(), type(os.environ).__name__,
        torch._dynamo.eval_frame._stance.stance, executor_of_torch(), torch._C._jit_texpr_fuser_enabled(),
        len(torch.serialization.get_safe_globals()), len(torch.serialization._package_registry),
        threading.stack_size(), threading.main_thread().name, multiprocessing.current_process().name,
        os.get_blocking(1), vars(asyncio.get_event_loop_policy()._local), numbers_of_c(), sys.stdin.closed,
        os.sched_getscheduler(0), rounding(), type(json).__name__, "blocked" in sys.modules, is_locked(),
        json.dumps({"b": 1, "a": 2}), torch.nn.Linear(1, 1).bias is None,
    ]  # fmt: skip


def variable_of_c(name):
    """What compiled code sees of the environment."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name)


def executor_of_torch():
    """What runs TorchScript."""
    before = torch._C._jit_set_profiling_executor(True)
    torch._C._jit_set_profiling_executor(before)
    return before


def numbers_of_c():
    """A number of each generator of the C library."""
    library = ctypes.CDLL(None)
    library.drand48.restype = ctypes.c_double
    return library.rand(), library.drand48()


def rounding():
    """How numbers are rounded."""
    return ctypes.CDLL("libm.so.6").fegetround()


def round_up():
    ctypes.CDLL("libm.so.6").fesetround(0x400000 if platform.machine() == "aarch64" else 0x800)


def is_locked():
    """Whether another attempt holds the lock."""
    with open(LOCKED, "w") as file:  # noqa: PTH123
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def lock():
    fcntl.flock(os.open(LOCKED, os.O_RDWR), fcntl.LOCK_EX)


def environment():
    """All variables but those that differ by the process that started this one."""
    return sorted(each for each in os.environ.items() if not each[0].startswith(("HPO_ZYGOTE", "PYTEST")))


def umask():
    found = os.umask(0o77)
    os.umask(found)
    return found


def train(trial):
    found = seen()
    print(*found, sep="\n")
    text = "\n".join(map(str, found))
    trial.track(layer=(layer := torch.nn.Linear(3, 3)))
    doing = trial.params["do"]
    for _ in trial.steps():
        layer.weight.data += torch.rand(3, 3, dtype=layer.weight.dtype)
        if doing in STEPS:
            STEPS[doing](trial)
        trial.report(loss=0.5, seen=zlib.crc32(text.encode()))
    (PUT_BACK | {name: do for name, (do, _) in NOTICED.items()})[doing]()


def _stdout():
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def _handler():
    log.addHandler(logging.NullHandler())
    log.setLevel(logging.DEBUG)
    logging.basicConfig(level=logging.ERROR)


def _count():
    global counter
    counter += 1


def _thread():
    threading.Thread(target=time.sleep, args=(600,), daemon=True, name="forgotten").start()


def _process():
    subprocess.Popen(["sleep", "600"])


def _locale():
    for name in ("C.UTF-8", "C.utf8", "POSIX"):
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            return


def _zone():
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def _import():
    import dirty_helper  # noqa: F401


def _autocast():
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)


def _registry():
    copyreg.dispatch_table[77] = Holder()


def _new_library():
    import wave

    wave.open = nothing


def _close():
    os.close(SOURCE.fileno())


def _listen():
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    one.detach()


def _derive():
    typing.Optional[type("Derived", (Base,), {})]  # noqa: UP045  (typing keeps what it was asked for)


def _loop():
    async def nothing():
        pass

    asyncio.run(nothing())


def _bars():
    for _ in tqdm.tqdm(range(3), file=io.StringIO()):
        pass


def _write():
    sys.stdout.write = sys.stdout.write


def _finalizer():
    weakref.finalize(Base, print, "finalized")


STEPS = {}
PUT_BACK = {
    "nothing": nothing,
    "random": lambda: (random.seed(1), random.random(), np.random.seed(1), torch.manual_seed(1)),
    "environment": lambda: os.environ.update(SOME_SETTING="1"),
    "environment gone": lambda: os.environ.pop("PATH"),
    "zone": _zone,
    "folder": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o22),
    "signal": lambda: signal.signal(signal.SIGUSR1, nothing),
    "term": lambda: signal.signal(signal.SIGTERM, nothing),
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "timer": lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0),
    "warnings": lambda: warnings.simplefilter("error"),
    "path": lambda: sys.path.insert(0, "/nowhere"),
    "path replaced": lambda: setattr(sys, "path", ["/nowhere", *sys.path]),
    "argv": lambda: sys.argv.append("x"),
    "recursion": lambda: sys.setrecursionlimit(5000),
    "stdout": _stdout,
    "excepthook": lambda: setattr(sys, "excepthook", nothing),
    "trace": lambda: sys.settrace(nothing),
    "atexit": lambda: atexit.register(print, "bye"),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    "affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "locale": _locale,
    "gc": gc.disable,
    "gc threshold": lambda: gc.set_threshold(5),
    "socket": lambda: socket.setdefaulttimeout(3.0),
    "logger": _handler,
    "logging": lambda: logging.disable(logging.CRITICAL),
    "numpy errors": lambda: np.seterr(all="raise"),
    "numpy print": lambda: np.set_printoptions(precision=2),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 5),
    "start method": lambda: multiprocessing.set_start_method("spawn"),
    "tempdir": lambda: setattr(tempfile, "tempdir", "/nowhere"),
    "print": lambda: setattr(builtins, "print", nothing),
    "cache": lambda: squared(12),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "grad": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "threads": lambda: torch.set_num_threads(2),
    "autocast": _autocast,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "hook": lambda: torch.nn.modules.module.register_module_forward_hook(nothing),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch print": lambda: torch.set_printoptions(precision=2),
    "attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "warn always": lambda: torch.set_warn_always(True),
    "variable of C": lambda: ctypes.CDLL(None).setenv(b"OF_C", b"1", 1),
    "variable by putenv": lambda: os.putenv("OF_C", "2"),
    "tracemalloc": lambda: tracemalloc.start(),
    "csv": lambda: csv.field_size_limit(10**9),
    "captured warnings": lambda: logging.captureWarnings(True),
    "level name": lambda: logging.addLevelName(15, "FINE"),
    "new logger": lambda: logging.getLogger("dirty.new").setLevel(5),
    "level of a handler": lambda: logging.getLogger("handled").handlers[0].setLevel(50),
    "bit generator": lambda: np.random.set_bit_generator(np.random.PCG64(1)),
    "wakeup": lambda: signal.set_wakeup_fd(os.open(os.devnull, os.O_WRONLY | os.O_NONBLOCK)),
    "stacks at a signal": lambda: faulthandler.register(signal.SIGUSR2),
    "stacks later": lambda: faulthandler.dump_traceback_later(1000),
    "stream": lambda: sys.stdout.reconfigure(errors="replace"),
    "write": _write,
    "opener": lambda: urllib.request.install_opener(urllib.request.build_opener()),
    "fast path": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "nnpack": lambda: torch.backends.nnpack.set_flags(False),
    "compiler": lambda: setattr(torch._dynamo.config, "suppress_errors", True),
    "float32": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "distributions": lambda: torch.distributions.Distribution.set_default_validate_args(False),
    "sparse": lambda: torch.sparse.check_sparse_tensor_invariants.enable(),
    "dlopen": lambda: sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL),
    "event loop": _loop,
    "bars": _bars,
    "finalizer": _finalizer,
    "functions of generators": lambda: (shuffle([1, 2]), rand()),
    "format of a handler": lambda: setattr(logging.getLogger("handled").handlers[0].formatter._style, "_fmt", "-"),
    "filter of a handler": lambda: logging.getLogger("handled").handlers[0].addFilter(nothing),
    "last resort": lambda: setattr(logging, "lastResort", None),
    "decimals of threads": lambda: setattr(decimal.DefaultContext, "prec", 4),
    "asynchronous generators": lambda: sys.set_asyncgen_hooks(nothing, nothing),
    "coroutines": lambda: sys.set_coroutine_origin_tracking_depth(5),
    "environment replaced": lambda: setattr(os, "environ", dict(os.environ)),
    "stance": lambda: torch.compiler.set_stance("force_eager"),
    "executor": lambda: torch._C._jit_set_profiling_executor(False),
    "fuser": lambda: torch._C._jit_set_texpr_fuser_enabled(not torch._C._jit_texpr_fuser_enabled()),
    "safe globals": lambda: torch.serialization.add_safe_globals([Net]),
    "packages of torch": lambda: torch.serialization.register_package(1, nothing, nothing),
    "stack size": lambda: threading.stack_size(1 << 20),
    "names": lambda: (
        setattr(threading.main_thread(), "name", "mine"),
        setattr(multiprocessing.current_process(), "name", "mine"),
    ),
    "blocking": lambda: os.set_blocking(1, False),
    "numbers of C": numbers_of_c,
    "vmap": lambda: torch.func.vmap(torch.func.grad(lambda x: x * x))(torch.ones(3)),
}
"""What a function does, by name, which the next attempt does not see in the same process."""
NOTICED = {
    "global": (_count, "dirty_objectives.counter changed"),
    "list": (lambda: HISTORY.append(1), "dirty_objectives.HISTORY changed"),
    "nested": (lambda: NESTED["inner"]["values"].append(3), "dirty_objectives.NESTED changed"),
    "array": (lambda: DATA.__setitem__(300_000, -1.0), "dirty_objectives.DATA changed"),
    "edge": (lambda: DATA.__setitem__(0, -1.0), "dirty_objectives.DATA changed"),
    "small array": (lambda: SMALL.__setitem__(0, -1.0), "dirty_objectives.SMALL changed"),
    "tensor": (lambda: WEIGHTS.add_(1), "dirty_objectives.WEIGHTS changed"),
    "tensor by its array": (lambda: WEIGHTS.numpy().__setitem__(5, 1), "dirty_objectives.WEIGHTS changed"),
    "module": (lambda: LAYER.weight.data.fill_(1), "dirty_objectives.LAYER changed"),
    "gradient": (lambda: LAYER(torch.ones(1, 2)).sum().backward(), "dirty_objectives.LAYER changed"),
    "generator": (lambda: RNG.random(), "dirty_objectives.RNG changed"),
    "iterator": (lambda: next(NUMBERS), "dirty_objectives.NUMBERS changed"),
    "lines": (lambda: next(LINES), "dirty_objectives.LINES changed"),
    "file": (lambda: BUFFER.seek(2), "dirty_objectives.BUFFER changed"),
    "class": (lambda: setattr(Net, "calls", Net.calls + 1), "dirty_objectives.Net.calls changed"),
    "dict of a class": (lambda: Net.shapes.update(a=1), "dirty_objectives.Net.shapes changed"),
    "object": (lambda: setattr(HOLDER, "best", 1.0), "dirty_objectives.HOLDER changed"),
    "attribute of a function": (lambda: setattr(train, "calls", 1), "dirty_objectives.train changed"),
    "default": (lambda: with_default(1), "dirty_objectives.with_default changed"),
    "closure": (lambda: ADD(), "dirty_objectives.ADD changed"),
    "thread's own": (lambda: setattr(local, "value", 1), "dirty_objectives.local changed"),
    "new name": (lambda: globals().__setitem__("fresh", 1), "dirty_objectives.fresh is new"),
    "thread": (_thread, "forgotten still runs"),
    "process": (_process, "a process that it started still runs"),
    "patch": (lambda: setattr(np, "mean", nothing), "numpy.mean was replaced"),
    "patched class": (lambda: setattr(json.JSONEncoder, "default", nothing), "JSONEncoder.default was replaced"),
    "added": (lambda: setattr(np, "of_train", nothing), "numpy.of_train is new"),
    "registry": (_registry, "copyreg.dispatch_table holds an object of the training code"),
    "import": (_import, "dirty_helper was imported by the training function"),
    "closed": (_close, "file descriptor"),
    "native variable": (
        lambda: os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8"),
        "CUBLAS_WORKSPACE_CONFIG was set in the environment",
    ),
    "patch of a new library": (_new_library, "wave.open is an object of the training code"),
    "denormal": (lambda: torch.set_flush_denormal(True), "flushing of denormal numbers changed"),
    "decorated": (lambda: evaluate(), "dirty_objectives.evaluate changed"),
    "dispatch": (lambda: kind_of.register(int, lambda _: "int"), "dirty_objectives.kind_of changed"),
    "full cache": (lambda: latest(1), "the cache of dirty_objectives.latest changed"),
    "iterator in an iterator": (lambda: next(PAIRS), "dirty_objectives.PAIRS changed"),
    "generator in an iterator": (lambda: next(TEXTS), "dirty_objectives.TEXTS changed"),
    "module by path": (lambda: setattr(SETTINGS, "rate", 2.0), "dirty_objectives.SETTINGS changed"),
    "handler": (lambda: UNUSED_HANDLER.setLevel(7), "dirty_objectives.UNUSED_HANDLER changed"),
    "semaphore": (lambda: PLACES.acquire(), "dirty_objectives.PLACES changed"),
    "default of a variable": (lambda: CALLS.get().append(1), "dirty_objectives.CALLS changed"),
    "derived": (_derive, "dirty_objectives.Base changed"),
    "registered": (lambda: Abstract.register(int), "a class was registered with an abstract base class"),
    "listening": (_listen, "a socket still listens"),
    "debug": (lambda: setattr(builtins, "DEBUGS", True), "builtins.DEBUGS is new"),
    "key": (lambda: torch.utils._pytree.register_pytree_node(Net, vars, vars), "SUPPORTED_NODES holds an object"),
    "mode": (lambda: torch.autograd.forward_ad.enter_dual_level(), "torch's modes changed"),
    "module gone": (lambda: sys.modules.pop("json.encoder"), "module json.encoder was removed"),
    "standard input": (lambda: sys.stdin.close(), "the standard streams changed"),
    "scheduled": (lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), "how it is scheduled changed"),
    "rounding": (round_up, "the rounding of numbers changed"),
    "module replaced": (
        lambda: sys.modules.__setitem__("colorsys", types.ModuleType("colorsys")),
        "module colorsys was replaced",
    ),
    "module blocked": (lambda: sys.modules.__setitem__("blocked", None), "module blocked cannot be imported any more"),
    "audit hook": (lambda: sys.addaudithook(nothing), "an audit hook was added"),
    "defaults": (
        lambda: setattr(torch.nn.Linear.__init__, "__defaults__", (False, None, None)),
        "Linear.__init__.__defaults__ was replaced",
    ),
    "locked": (lock, "a lock on a file is still held"),
    "inter-op threads": (lambda: torch.set_num_interop_threads(3), "inter-op threads changed"),
}
"""What it does after which the process cannot stay, and what is said about it."""
