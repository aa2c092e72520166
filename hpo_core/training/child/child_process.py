"""The life of one forked child: leave the zygote's state behind, train, report, end."""

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

from hpo_core.model.trial import Report
from hpo_core.training.child.attempt import attempt, traceback_tail
from hpo_core.training.child.forked_copies import leave_if_copy
from hpo_core.training.child.messages import Done, send
from hpo_core.training.child.progress_board import Board
from hpo_core.training.request import JobRequest

_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up before the fork; Linux only


def open_descriptors() -> frozenset[int]:
    """Numbers of the descriptors that are open in this process."""
    listed = [path.name for path in Path("/proc/self/fd").iterdir()]  # and the one for this listing, closed by now
    return frozenset(int(name) for name in listed if Path("/proc/self/fd", name).is_symlink())


def live(
    function: Callable[..., Any],
    request: JobRequest,
    *,
    result: int,
    output: int,
    board: Board,
    parent: int,
    theirs: Set[int] = frozenset(),
) -> NoReturn:
    """Run one attempt and never return.

    Args:
        result: descriptor the report goes to.
        output: descriptor for standard output and standard error.
        theirs: descriptors that the objective's module has opened; all others of the zygote are closed.
    """
    me = os.getpid()
    try:
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could tie our life to it
            os._exit(1)
        signal.set_wakeup_fd(-1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in open_descriptors() - theirs - {0, 1, 2, result}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        report = _report(function, request, board)
        leave_if_copy(me)
        send(result, Done(report))
        os.close(result)
        _end_like_a_program()
    except BaseException as error:
        leave_if_copy(me, error)
        with contextlib.suppress(BaseException):
            sys.stderr.write(traceback_tail(error))
            sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _report(function: Callable[..., Any], request: JobRequest, board: Board) -> Report:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _restore_signals()
    report = attempt(function, request, board)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return report


def _restore_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(file=2)
    # SIGTERM ends the process as ever, but leaves in the log where it stood: what a hung attempt was doing
    faulthandler.register(signal.SIGTERM, file=2, chain=True)


def forget_exit_functions() -> None:
    """Called in the zygote after its imports: of exit functions and finalizers a child must run its own only.

    Else the first child to end would, say, delete a temporary folder that the objective's module made.
    """
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def _end_like_a_program() -> None:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
