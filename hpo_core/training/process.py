"""The life of one forked child: leave the zygote's state behind, train, report, end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import signal
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hpo_core.errors import StorageError
from hpo_core.training.attempt import attempt, traceback_tail
from hpo_core.training.ending import log_tail
from hpo_core.training.messages import Done, send
from hpo_core.training.request import JobRequest
from hpo_core.trial import Outcome, Report

_PROGRESS = struct.Struct("<qd")
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up before the fork; Linux only


def note_progress(board: mmap, resource: int) -> None:
    """Write the steps done and the time into memory shared with the zygote: no message, no wake-up."""
    _PROGRESS.pack_into(board, 0, resource, time.monotonic())


def read_progress(board: mmap) -> tuple[int, float]:
    """Steps done and the monotonic time when the last of them ended."""
    resource, when = _PROGRESS.unpack_from(board, 0)
    return resource, when


def live(function: Callable[..., Any], request: JobRequest, *, result: int, board: mmap, parent: int) -> NoReturn:
    """Run one attempt and never return; ``result`` is the descriptor the report goes to."""
    try:
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could tie our life to it
            os._exit(1)
        report = _report(function, request, board)
        send(result, Done(report))
        os.close(result)
        _end_like_a_program()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            sys.stderr.write(traceback_tail(error))
            sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _report(function: Callable[..., Any], request: JobRequest, board: mmap) -> Report:
    started = time.time()
    try:
        log = _redirect_output(request)
    except StorageError as error:
        return Report(
            trial=request.job.trial,
            attempt=request.job.attempt,
            outcome=Outcome.STORAGE,
            message=str(error),
            started=started,
            ended=time.time(),
        )
    _restore_signals()
    report = attempt(function, request, lambda resource: note_progress(board, resource))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if report.detail:
        printed = log_tail(log)
        with contextlib.suppress(Exception):
            sys.stderr.write(report.detail)
            sys.stderr.flush()
        report = msgspec.structs.replace(report, detail=f"{printed}\n{report.detail}".lstrip("\n"))
    return report


def _redirect_output(request: JobRequest) -> Path:
    path = Path(request.folder) / request.log_path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise StorageError(
            f"Log {path} cannot be written: {error.strerror or error}. Free space on that disk or make the folder "
            "writable, then resume the study."
        ) from error
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return path


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
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
