"""Settings of Python and the operating system that are put back in a process that stays; a line each in a table."""

from __future__ import annotations

import asyncio.events
import csv
import ctypes
import decimal
import functools
import gc
import itertools
import locale
import logging
import multiprocessing.context
import multiprocessing.process
import os
import resource
import signal
import socket
import sys
import tempfile  # noqa: F401
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


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


_libc: Any = ctypes.CDLL(None)
_libm: Any = ctypes.CDLL("libm.so.6")
_initstate, _setstate, _seed48 = _libc.initstate, _libc.setstate, _libc.seed48
_initstate.argtypes = [ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t]
_setstate.argtypes = [ctypes.c_void_p]
_initstate.restype = _setstate.restype = ctypes.c_void_p
_seed48.restype = ctypes.POINTER(ctypes.c_ushort)


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
        (
            one,
            {name: getattr(one, name, None) for name in _STREAM},
            dict(getattr(one, "__dict__", ())),
            getattr(one, "closed", None),
        )
        for one in streams
    ]


def _set_streams(value: list[Any]) -> None:
    for name, (one, settings, attributes, _) in zip(("stdin", "stdout", "stderr"), value, strict=True):
        setattr(sys, name, one)
        if {each: getattr(one, each, None) for each in _STREAM} != settings:
            one.reconfigure(**settings)
        if hasattr(one, "__dict__"):
            vars(one).clear()
            vars(one).update(attributes)


def _set_blocking(value: list[bool]) -> None:
    for number, blocks in enumerate(value):
        os.set_blocking(number, blocks)


def _set_names(value: tuple[str, str]) -> None:
    multiprocessing.process.current_process().name, threading.main_thread().name = value


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


@functools.cache
def first_modules() -> frozenset[str]:
    """Names of the modules that were imported when this was first called."""
    return frozenset(sys.modules)


@functools.cache
def _first_packages() -> frozenset[str]:
    """Packages of these modules, and names that have loggers."""
    return frozenset(name.partition(".")[0] for name in (*first_modules(), *logging.root.manager.loggerDict))


def new_packages() -> set[str]:
    """Names of packages, and of modules outside of packages, that were imported since."""
    return {name.partition(".")[0] for name in sys.modules.keys() - first_modules()} - _first_packages()


_NEW_LOGGER: tuple[Any, ...] = (logging.NOTSET, True, False, (), ())


def _attributes(*objects: Any) -> tuple[Any, ...]:
    """The objects, each with its attributes, and with what the lists among these hold."""
    return tuple(
        (one, vars(one).copy(), [(item, item.copy()) for item in vars(one).values() if type(item) is list])
        for one in objects
        if hasattr(one, "__dict__")
    )


def _set_attributes(value: tuple[Any, ...]) -> None:
    for one, attributes, lists in value:
        vars(one).clear()
        vars(one).update(attributes)
        for item, content in lists:
            item[:] = content


def _handler(one: logging.Handler) -> tuple[Any, ...]:
    """What a handler of loggers is set to, and its formatter, by object."""
    return _attributes(one, one.formatter, getattr(one.formatter, "_style", None))


def _loggers() -> dict[str, tuple[Any, ...]]:
    """Settings of each logger that has other ones than a new logger, and of its handlers.

    Those of libraries that were imported since are left out: their import set them, and is not repeated.
    """
    since = new_packages()
    known = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    found = {}
    for name, one in {"": logging.root, **known}.items():
        handlers = tuple(map(_handler, one.handlers))
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
            one.handlers[:], one.filters[:] = [handler for (handler, *_), *_ in handlers], filters
            for each in handlers:
                _set_attributes(each)
            one.setLevel(level)


_OF_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimals() -> list[Any]:
    """The contexts of :mod:`decimal` that others are made from."""
    return [
        ({name: getattr(one, name) for name in _OF_DECIMALS}, dict(one.traps), dict(one.flags))
        for one in (decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext)
    ]


def _set_decimals(value: list[Any]) -> None:
    contexts = decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext
    for one, (settings, traps, flags) in zip(contexts, value, strict=True):
        for name, setting in settings.items():
            setattr(one, name, setting)
        one.traps.update(traps)
        one.flags.update(flags)


def _event_loop() -> tuple[Any, Any]:
    """The policy of asyncio, and the loop that it made or was given in this thread."""
    policy: Any = vars(asyncio.events)["_event_loop_policy"]
    return policy, _attributes(getattr(policy, "_local", None))


def _set_event_loop(value: tuple[Any, Any]) -> None:
    vars(asyncio.events)["_event_loop_policy"] = value[0]
    _set_attributes(value[1])


_STATE_BYTES = 128
"""Bytes of the state that ``rand`` of the C library begins with."""


def _generators_of_c() -> tuple[bytes, int]:
    """States of ``rand`` and ``drand48`` of the C library, which compiled code may draw from."""
    other = ctypes.create_string_buffer(_STATE_BYTES)
    state = _initstate(1, other, _STATE_BYTES)  # it writes its position into its state, and leaves it
    words = ctypes.string_at(state, _STATE_BYTES)
    _setstate(state)
    zero = (ctypes.c_ushort * 3)()
    last = (ctypes.c_ushort * 3)(*_seed48(zero)[:3])
    _seed48(last)
    return words, sum(word << 16 * place for place, word in enumerate(last))


def _set_generators_of_c(value: tuple[bytes, int]) -> None:
    other = ctypes.create_string_buffer(_STATE_BYTES)
    state = _initstate(1, other, _STATE_BYTES)
    ctypes.memmove(state, value[0], _STATE_BYTES)
    _setstate(state)
    _seed48((ctypes.c_ushort * 3)(*(value[1] >> 16 * place & 0xFFFF for place in range(3))))


def _rounding() -> int:
    """How this thread rounds floating-point numbers; threads take it over from the one that starts them."""
    return int(_libm.fegetround())


def _owner(path: str, module: str) -> Callable[[], Any]:
    """What has the attribute that a path ends with."""
    parts = path[len(module) + 1 :].split(".")[:-1]
    return lambda: functools.reduce(getattr, parts, sys.modules[module])


def setting_of_container(path: str, module: str = "") -> Setting:
    """A list, dict or set, by its path: the object and what it holds; in a module, unless that is said."""
    of, name = _owner(path, module or path.rpartition(".")[0]), path.rpartition(".")[2]

    def read() -> tuple[Any, Any]:
        value = getattr(of(), name)
        return value, value.copy()

    def write(before: tuple[Any, Any]) -> None:
        value, content = before
        setattr(of(), name, value)
        value.clear()
        value.update(content) if hasattr(value, "update") else value.extend(content)

    return Setting(path, read, write, (module or path).partition(".")[0])


def setting_of_attribute(path: str, module: str = "") -> Setting:
    """An attribute, by its path; of a module, unless that is said."""
    module, name = module or path.rpartition(".")[0], path.rpartition(".")[2]
    of = _owner(path, module)
    return Setting(path, lambda: getattr(of(), name), lambda value: setattr(of(), name, value), module)


OF_PROCESS: tuple[Setting, ...] = (
    Setting("os.environ", lambda: (id(os.environ), os.environ), lambda value: setattr(os, "environ", value[1])),
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
    *map(setting_of_attribute, ("warnings.showwarning", "warnings._showwarnmsg_impl", "warnings.formatwarning")),
    *map(setting_of_container, ("sys.path", "sys.argv", "sys.meta_path", "sys.path_hooks", "gc.callbacks",
                                "warnings.onceregistry", "logging._levelToName", "logging._nameToLevel")),
    *map(
        setting_of_attribute,
        (
            "sys.excepthook", "sys.displayhook", "sys.unraisablehook",
            "sys.breakpointhook", "sys.dont_write_bytecode", "builtins.print", "builtins.open", "builtins.__import__",
            "threading.excepthook", "threading._trace_hook", "threading._profile_hook", "tempfile.tempdir",
            "multiprocessing.context._default_context", "multiprocessing.spawn._python_exe",
            "logging._warnings_showwarning", "logging.lastResort", "urllib.request._opener",
            "sys.__stdin__", "sys.__stdout__", "sys.__stderr__",
        ),
    ),
    setting_of_attribute("multiprocessing.context._default_context._actual_context", "multiprocessing.context"),
    Setting("the standard streams", _streams, _set_streams),
    Setting("whether the standard streams block", lambda: [os.get_blocking(number) for number in range(3)],
            _set_blocking),
    Setting("the event loop", _event_loop, _set_event_loop),
    Setting("names of the process and the thread",
            lambda: (multiprocessing.process.current_process().name, threading.main_thread().name), _set_names),
    Setting("the stack size of threads", threading.stack_size, threading.stack_size),
    Setting("the hooks of asynchronous generators", sys.get_asyncgen_hooks,
            lambda value: sys.set_asyncgen_hooks(*value)),
    Setting("how origins of coroutines are tracked", sys.get_coroutine_origin_tracking_depth,
            sys.set_coroutine_origin_tracking_depth),
    Setting("the contexts of decimal", _decimals, _set_decimals),
    Setting("generators of the C library", _generators_of_c, _set_generators_of_c),
    Setting("the rounding of numbers", _rounding),
    Setting("user and groups", lambda: (os.getresuid(), os.getresgid(), os.getgroups())),
    Setting("how it is scheduled", lambda: os.sched_getscheduler(0)),
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
)  # fmt: skip
"""What is put back of Python and the operating system; to add one is to add a line."""
