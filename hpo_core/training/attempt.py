"""One attempt within this process: load, seed, call, judge. Whatever the user's code does becomes a Report."""

from __future__ import annotations

import errno
import math
import time
import traceback
from collections.abc import Callable
from typing import Any

from hpo_core.errors import CheckpointError, StorageError
from hpo_core.training import checkpoint as checkpoints
from hpo_core.training.generators import seed_all
from hpo_core.training.handle import TrialHandle
from hpo_core.training.optuna_trial import train_objective
from hpo_core.training.request import JobRequest
from hpo_core.trial import Outcome, Report

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS and its kin, which make their workspace on first use
)
MESSAGE_LENGTH = 500
"""Characters of an exception's text that a report's one-line message keeps; the traceback has the rest."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}

TRACEBACK_TAIL = 4096


def attempt(
    function: Callable[[TrialHandle], Any], request: JobRequest, progress: Callable[[int], None] | None = None
) -> Report:
    """Train as ``request`` says and report; never raises for what ``function`` does."""
    started = time.time()
    job = request.job

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
        state = checkpoints.load(request.folder, job.checkpoint) if job.checkpoint else None
        if state is not None and not {"tracked", "random", "metrics"} <= set(state):
            raise CheckpointError(f"Checkpoint {job.checkpoint} holds no training state of this package.")
    except CheckpointError as error:
        return failed(Outcome.CHECKPOINT_BAD, str(error), "")
    except StorageError as error:
        return failed(Outcome.STORAGE, str(error), "")
    handle = TrialHandle(request, state, progress)
    try:
        seed_all(request.seed)
        if request.style == "optuna":
            train_objective(function, handle, request)
        else:
            function(handle)
        metrics, curve, written = handle.finish()
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the function's doing, too
        handle.discard()
        return failed(_outcome(error), _one_line(error), traceback_tail(error))
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


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno in _DISK_FULL):
        return Outcome.STORAGE
    return Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.ERROR


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
