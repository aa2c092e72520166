"""Runs one attempt within this process: loads, seeds, calls the training function, reports.

Whatever the user's code does becomes a Report.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import files as checkpoints
from hpo_core.model.errors import CheckpointError, HpoError, StorageError
from hpo_core.model.hops import Doubt
from hpo_core.model.trial import Outcome, Report
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.error_text import one_line_message, own_frames, traceback_tail
from hpo_core.training.handle import TrialHandle
from hpo_core.training.optuna.trial_adapter import train_optuna_objective
from hpo_core.training.out_of_memory import is_out_of_memory, refused
from hpo_core.training.partition_data import is_away
from hpo_core.training.process_group import LOST_PEER, GangError, is_lost_peer, join, leave
from hpo_core.training.ranks import Ranks
from hpo_core.training.repeat_runs import merge_attempt, run_repeats
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import seed_all
from hpo_core.training.user_process import exit_if_forked_copy

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_PROBE_BYTES = 1 << 20
"""Bytes written to the study's folder to find out whether its disk is full."""


def run_attempt(
    function: Callable[[TrialHandle], Any],
    request: JobRequest,
    progress: SharedProgress | None = None,
    *,
    raised: tuple[type[BaseException], ...] = (),
    log: Callable[[str], None] | None = None,
) -> Report:
    """Train as ``request`` says and report; raises nothing of what ``function`` does, unless told to.

    Args:
        function: the training function, or the Optuna objective (``request.style``).
        progress: where steps done are recorded for the zygote; None where no limit is enforced.
        raised: exceptions of the function that are raised again and not reported: in the user's own process Ctrl-C is
            no failure of it.
        log: gets the whole traceback of an error of ours, such as a refused callback: its report shows where in the
            user's code that was, for the frames between are of libraries.
    """
    progress = SharedProgress() if progress is None else progress
    if request.repeats > 1 and request.repeat is None and not request.parts:
        return run_repeats(lambda one: run_attempt(function, one, progress, raised=raised, log=log), request)
    if request.parts:
        return merge_attempt(request, progress)
    started, pid, job = time.time(), os.getpid(), request.job
    state = None
    try:
        if job.checkpoint:
            with progress.storing(job.checkpoint.resource):
                state = checkpoints.load(request.folder, job.checkpoint, request.start_base, repeat=request.repeat)
    except (CheckpointError, StorageError) as error:
        bad = Outcome.CHECKPOINT_BAD if isinstance(error, CheckpointError) else Outcome.STORAGE
        return request.report(bad, str(error), started=started)
    handle = TrialHandle(request, state, progress)
    try:
        if request.gang is not None:
            join(request.gang, stall_timeout=request.stall_timeout, alive=handle.alive)
            handle.ranks = Ranks(request.gang, own_data=job.unit is not None)
        seed_all(request.seed)
        if request.repeat is not None:
            print(f"hpo: repeat {request.repeat} of {request.repeats}, seed {request.seed}", file=sys.stderr)
        if request.threads is not None and (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(request.threads)  # the module may have set another number
        if request.style == "optuna":
            train_optuna_objective(function, handle, request)
        else:
            function(handle)
        metrics, curve, written = handle.finish()
        if request.gang is not None:
            leave()
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the function's doing, too
        exit_if_forked_copy(pid, error)
        handle.discard()
        if isinstance(error, raised):
            raise
        return _failure(error, handle, request, started=started, log=log)
    judged = (*request.metrics, *request.constraints)
    bad_metric = next((name for name in judged if name in metrics and not math.isfinite(metrics[name])), None)
    return request.report(
        Outcome.COMPLETED if bad_metric is None else Outcome.DIVERGED,
        "" if bad_metric is None else f"Metric {bad_metric!r} is {metrics[bad_metric]} at step {job.target}.",
        metrics=metrics,
        curve=curve,
        checkpoint=written,
        started=started,
        unrestored=handle.unrestored,
        warnings=handle.warnings or msgspec.UNSET,
    )


def _failure(
    error: BaseException,
    handle: TrialHandle,
    request: JobRequest,
    *,
    started: float,
    log: Callable[[str], None] | None,
) -> Report:
    """The report of an attempt whose training function raised; see :func:`run_attempt`."""
    unit = request.job.unit
    outcome, message, detail = _outcome(error, request.folder), one_line_message(error), traceback_tail(error)
    doubt: Doubt | msgspec.UnsetType = msgspec.UNSET
    if handle.save_error is not None:  # whatever the function made of it
        outcome, message = Outcome.STORAGE, str(handle.save_error)
    elif is_away(error, request):
        # a job that is no unit trains where the study runs: all trials need what is missing there
        outcome = Outcome.STORAGE if unit is None else Outcome.LOST
        doubt = Doubt(unit.partition) if unit is not None else msgspec.UNSET
    else:
        if request.gang is not None and is_lost_peer(error):
            outcome, message = Outcome.LOST, f"It {LOST_PEER} ({message})"
        if outcome is Outcome.OUT_OF_MEMORY:
            message += refused(request.portion)
        if isinstance(error, HpoError):
            if log is not None:
                log(detail)
            detail = own_frames(error)
    return request.report(outcome, message, detail=detail, started=started, unrestored=handle.unrestored, doubt=doubt)


def _outcome(error: BaseException, folder: str) -> Outcome:
    """The outcome for an exception of user code.

    STORAGE halts the study and blames no trial. A full disk in user code may be any disk (/tmp, /dev/shm, a quota of
    a data folder), and one such trial must not halt the study at every resume. So it counts as STORAGE only if the
    study's folder is full as well, where no other attempt could save anything either.

    LOST: not the trial's fault; its unit is repeated.
    """
    if isinstance(error, GangError):
        return Outcome.LOST
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return Outcome.STORAGE if _is_full(folder) else Outcome.ERROR
    return Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.ERROR


def _is_full(folder: str) -> bool:
    """Whether a file cannot be written there. Free space alone says nothing about quotas and inodes."""
    probe = Path(folder) / f".probe-{os.getpid()}"
    try:
        with probe.open("xb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in _DISK_FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return False
