"""What a forked child does: leaves the zygote's state behind, trains, reports, ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NoReturn

from hpo_core.training.child.attempt import run_attempt
from hpo_core.training.child.forked_copies import exit_if_forked_copy
from hpo_core.training.child.messages import Done, send
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.error_text import traceback_tail
from hpo_core.training.request import JobRequest
from hpo_core.training.resources.share_limits import apply_share

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


def _train_and_report(function: Callable[..., Any], request: JobRequest, progress: SharedProgress) -> Done:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _restore_signals()
    progress.figures.start()
    if request.share is not None:
        apply_share(request.share, request.threads)
    whole: list[str] = []
    report = run_attempt(function, request, progress, log=whole.append)
    progress.figures.finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return Done(report, "".join(whole))


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
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
