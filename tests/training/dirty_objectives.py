"""Training functions that leave something behind, for processes that stay; no tests in here.

``train`` first notes all that an attempt can see of its process, and reports a digest of it; then it does what
``trial.params["do"]`` names: one of ``PUT_BACK``, after which the process stays, or of ``NOTICED``, after which it must
not.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import decimal
import functools
import gc
import io
import itertools
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

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
    ]  # fmt: skip


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
    json.encoder.__dict__.setdefault("REGISTRY", {})
    logging._levelToName[77] = Holder()


def _new_library():
    import wave

    wave.open = nothing


def _close():
    os.close(SOURCE.fileno())


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
    "denormal": lambda: torch.set_flush_denormal(True),
    "attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "warn always": lambda: torch.set_warn_always(True),
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
    "registry": (_registry, "logging._levelToName holds an object of the training code"),
    "import": (_import, "dirty_helper was imported by the training function"),
    "closed": (_close, "file descriptor"),
    "native variable": (
        lambda: os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8"),
        "CUBLAS_WORKSPACE_CONFIG was set in the environment",
    ),
    "patch of a new library": (_new_library, "wave.open is an object of the training code"),
    "module gone": (lambda: sys.modules.pop("json.encoder"), "module json.encoder was removed"),
    "inter-op threads": (lambda: torch.set_num_interop_threads(3), "inter-op threads changed"),
}
"""What it does after which the process cannot stay, and what is said about it."""
