"""One attempt within this process: load, seed, call, judge. Whatever the user's code does becomes a Report."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.trial import Outcome, Report
from hpo_core.training.child.forked_copies import leave_if_copy
from hpo_core.training.child.progress_board import Board
from hpo_core.training.handle import TrialHandle
from hpo_core.training.optuna.trial_adapter import train_objective
from hpo_core.training.random_state import seed_all
from hpo_core.training.request import JobRequest

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS and its kin, which make their workspace on first use
)
MESSAGE_LENGTH = 500
"""Characters of an exception's text that a report's one-line message keeps; the traceback has the rest."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_PROBE = 1 << 20
"""Bytes written to the study's folder to see whether it takes any."""

TRACEBACK_TAIL = 4096


def attempt(function: Callable[[TrialHandle], Any], request: JobRequest, board: Board | None = None) -> Report:
    """Train as ``request`` says and report; never raises for what ``function`` does."""
    started = time.time()
    job = request.job
    me = os.getpid()

    def failed(outcome: Outcome, message: str, detail: str) -> Report:
        return Report(
            trial=job.trial,
            attempt=job.attempt,
            outcome=outcome,
            message=message,
            detail=detail,
            started=started,
            ended=time.time(),
            unrestored=handle.unrestored if handle is not None else (),
        )

    handle: TrialHandle | None = None
    try:
        state = None
        if job.checkpoint:
            with board.storing(job.checkpoint.resource) if board is not None else contextlib.nullcontext():
                state = checkpoints.load(request.folder, job.checkpoint, request.checkpoint_base)
        if state is not None and not {"tracked", "random", "metrics"} <= set(state):
            raise CheckpointError(f"Checkpoint {job.checkpoint} holds no training state of this package.")
    except CheckpointError as error:
        return failed(Outcome.CHECKPOINT_BAD, str(error), "")
    except StorageError as error:
        return failed(Outcome.STORAGE, str(error), "")
    handle = TrialHandle(request, state, board)
    try:
        seed_all(request.seed)
        if request.style == "optuna":
            train_objective(function, handle, request)
        else:
            function(handle)
        metrics, curve, written = handle.finish()
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the function's doing, too
        leave_if_copy(me, error)
        handle.discard()
        if handle.unwritten is not None:  # whatever the function made of that
            return failed(Outcome.STORAGE, str(handle.unwritten), traceback_tail(error))
        return failed(_outcome(error, request.folder), _one_line(error), traceback_tail(error))
    bad = next((name for name in request.metrics if name in metrics and not math.isfinite(metrics[name])), None)
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED if bad is None else Outcome.DIVERGED,
        metrics=metrics,
        curve=curve,
        checkpoint=written,
        message="" if bad is None else f"Metric {bad!r} is {metrics[bad]} at step {job.target}.",
        started=started,
        ended=time.time(),
        unrestored=handle.unrestored,
    )


def _outcome(error: BaseException, folder: str) -> Outcome:
    """STORAGE halts the study and blames no trial, so it is for what is ours alone.

    A full disk that user code meets is the trial's own affair, for it may be any disk (/tmp, /dev/shm, a quota of a
    data folder), and one such trial must not halt the study at every resume. Only where the study's folder takes no
    further byte either, so that no other attempt could save anything, it is ours.
    """
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return Outcome.STORAGE if _is_full(folder) else Outcome.ERROR
    return Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.ERROR


def _is_full(folder: str) -> bool:
    """Asked by writing: free space says nothing of quotas and of inodes."""
    probe = Path(folder) / f".probe-{os.getpid()}"
    try:
        with probe.open("xb") as file:
            file.write(b"\0" * _PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in _DISK_FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Memory of the host or of a GPU ran out, by whatever name the libraries call it."""
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def traceback_tail(error: BaseException) -> str:
    """The end of the traceback, cut at ``TRACEBACK_TAIL`` characters."""
    text = _printable("".join(traceback.format_exception(error)))
    return text if len(text) <= TRACEBACK_TAIL else "..." + text[-TRACEBACK_TAIL:]


def _one_line(error: BaseException) -> str:
    try:
        text = _printable(" ".join(str(error).split()))
    except Exception:
        text = "(its text cannot be shown)"
    if len(text) > MESSAGE_LENGTH:
        text = text[:MESSAGE_LENGTH] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _printable(text: str) -> str:
    """Without lone surrogates (file names in unknown encodings), which no journal or message can carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
