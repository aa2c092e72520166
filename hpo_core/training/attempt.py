"""Runs one attempt within this process: loads, seeds, calls the training function, reports.

Whatever the user's code does becomes a Report.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import files as checkpoints
from hpo_core.checkpoints.storage import hop_base
from hpo_core.model.errors import CheckpointError, HpoError, StorageError
from hpo_core.model.features import feature
from hpo_core.model.short_text import did_you_mean, some
from hpo_core.model.trial import Checkpoint, Doubt, LogLine, Metrics, Outcome, Point, Report
from hpo_core.training.child.processes import is_out_of_memory, refused
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.handle import TrialHandle
from hpo_core.training.objective import objective_callable
from hpo_core.training.partition_data import is_away
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import seed_all
from hpo_core.training.user_code import exit_code, exit_if_forked_copy, one_line_message, own_frames, traceback_tail

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_RUN_LOGGER = "hpo_flows.prefect_pages.run_logger"
"""By its name: the core imports nothing of Prefect."""
_PROBE_BYTES = 1 << 20
"""Bytes written to the study's folder to find out whether its disk is full."""


def run_attempt(
    function: Callable[[TrialHandle], Any],
    request: JobRequest,
    progress: SharedProgress | None = None,
    *,
    raised: tuple[type[BaseException], ...] = (),
    log: Callable[[str], None] | None = None,
    ask: Callable[[Report], JobRequest | None] | None = None,
) -> Report:
    """Train as ``request`` says and report; raises nothing of what ``function`` does, unless told to.

    Args:
        function: the training function, or the Optuna objective (``request.setup.style``).
        progress: where steps done are recorded for the zygote; None where no limit is enforced.
        raised: exceptions of the function that are raised again and not reported: in the user's own process Ctrl-C is
            no failure of it.
        log: gets the whole traceback of an error of ours, such as a refused callback: its report shows where in the
            user's code that was, for the frames between are of libraries.
        ask: takes the report of a job at whose target the trial may go on, and returns the request of its next job,
            which is then the one that is reported; None: the trial is over, and what is reported says nothing.
    """
    progress = SharedProgress() if progress is None else progress
    started, pid, job = time.time(), os.getpid(), request.job
    state = None
    try:
        if job.checkpoint:
            base = request.setup.checkpoint_base
            if job.unit is not None and job.unit.hopped:
                base = hop_base(base)
            with progress.storing(job.checkpoint.resource):
                state = checkpoints.load(request.setup.folder, job.checkpoint, base)
    except (CheckpointError, StorageError) as error:
        bad = Outcome.CHECKPOINT_BAD if isinstance(error, CheckpointError) else Outcome.STORAGE
        return request.report(bad, str(error), started=started)
    ranks = feature("gangs", "ranks").Ranks(request.gang) if request.gang.size > 1 else None
    if ranks is not None and state is not None:
        state = ranks.state_for(state)
    handle = TrialHandle(request, state, progress, ranks)
    if ask is not None:

        def go_on(metrics: Metrics, curve: tuple[Point, ...], written: Checkpoint | None) -> JobRequest | None:
            nonlocal request, started
            following = ask(_result(handle, request, metrics, curve, written, started=started, lines=lines))
            if following is not None:
                request, started = following, time.time()
            return following

        handle.ask = go_on
    lines: deque[LogLine] = deque()
    try:
        if ranks is not None:
            ranks.join(stall_timeout=request.setup.stall_timeout, alive=handle.alive)
        seed_all(request.seed)
        if request.setup.threads is not None and (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(request.setup.threads)  # the module may have set another number
        with _around(function, request.setup.flow_run) as lines:
            if request.setup.style == "optuna":
                returned = None  # the objective's value is reported by its trial
                feature("Optuna", "optuna_objective").train_optuna_objective(function, handle, request)
            else:
                returned = _returned(objective_callable(function), handle)
        metrics, curve, written = handle.finish(returned)
        if ranks is not None:
            ranks.leave()
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the function's doing, too
        exit_if_forked_copy(pid, error)
        handle.discard()
        if isinstance(error, raised):
            raise
        return _failure(error, handle, request, started=started, log=log, lines=lines)
    return _result(handle, request, metrics, curve, written, started=started, lines=lines)


def _around(function: Callable[..., Any], flow_run: tuple[str, str]) -> AbstractContextManager[deque[LogLine]]:
    # Prefect's run logger and runtime, for a function that uses Prefect; gives the lines that are logged.
    code = getattr(function, "__code__", None)
    if "prefect" in sys.modules or "prefect" in getattr(code, "co_names", ()):
        with contextlib.suppress(ImportError):  # the core alone is installed here
            found: AbstractContextManager[deque[LogLine]] = import_module(_RUN_LOGGER).in_flow_run(flow_run)
            return found
    return contextlib.nullcontext(deque())


def _taken(lines: deque[LogLine]) -> tuple[LogLine, ...] | msgspec.UnsetType:
    log = tuple(lines)
    lines.clear()
    return log or msgspec.UNSET


def _result(
    handle: TrialHandle,
    request: JobRequest,
    metrics: Metrics,
    curve: tuple[Point, ...],
    written: Checkpoint | None,
    *,
    started: float,
    lines: deque[LogLine],
) -> Report:
    bad_metric = request.setup.not_finite(metrics)
    return request.report(
        Outcome.COMPLETED if bad_metric is None else Outcome.DIVERGED,
        "" if bad_metric is None else f"Metric {bad_metric!r} is {metrics[bad_metric]} at step {request.job.target}.",
        metrics=metrics,
        curve=curve,
        checkpoint=written,
        started=started,
        warnings=handle.warnings or msgspec.UNSET,
        log=_taken(lines),
    )


def _returned(function: Callable[[TrialHandle], Any], handle: TrialHandle) -> Any:
    # Value that the training function returns; None if it ends as a good script: `sys.exit(main())`.
    try:
        return function(handle)
    except SystemExit as error:
        if exit_code(error) != 0:
            raise
    return None


def _failure(
    error: BaseException,
    handle: TrialHandle,
    request: JobRequest,
    *,
    started: float,
    log: Callable[[str], None] | None,
    lines: deque[LogLine],
) -> Report:
    # The report of an attempt whose training function raised; see run_attempt.
    unit = request.job.unit
    outcome, message, detail = _outcome(error, request.setup.folder), one_line_message(error), traceback_tail(error)
    doubt: Doubt | msgspec.UnsetType = msgspec.UNSET
    if handle.save_error is not None:  # whatever the function made of it
        outcome, message = Outcome.STORAGE, str(handle.save_error)
    elif is_away(error, request):
        # a job that is no unit trains where the study runs: all trials need what is missing there
        outcome = Outcome.STORAGE if unit is None else Outcome.LOST
        doubt = Doubt(unit.partition) if unit is not None else msgspec.UNSET
    else:
        if handle.ranks is not None and (lost := handle.ranks.lost(error, message)):
            outcome, message = Outcome.LOST, lost
        if isinstance(error, KeyError):
            message += _asked_of_params(error, handle, request)
        if outcome is Outcome.OUT_OF_MEMORY:
            message += refused(request.portion)
        if isinstance(error, SystemExit):
            code = exit_code(error)
            message += f" (the training function ended its process with exit code {code}; 0 would be a result)"
        if isinstance(error, HpoError):
            if log is not None:
                log(detail)
            detail = own_frames(error)
    return request.report(
        outcome,
        message,
        detail=detail,
        started=started,
        doubt=doubt,
        log=_taken(lines),
    )


PARAMS_HAVE = " (trial.params has "
"""Begins what is added to the message of a KeyError."""


def _asked_of_params(error: KeyError, handle: TrialHandle, request: JobRequest) -> str:
    # The names of the parameters, where code that sees them has asked for another one; else empty.
    asked, names, raised = error.args[0] if error.args else None, request.job.params, error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    seen = [] if raised is None else raised.tb_frame.f_locals.values()
    if not isinstance(asked, str) or asked in names or not any(one is handle or one is handle.params for one in seen):
        return ""
    return f"{PARAMS_HAVE}{'; '.join(filter(None, (some(names) or 'none', did_you_mean(asked, names))))})"


def _outcome(error: BaseException, folder: str) -> Outcome:
    # The outcome for an exception of user code.
    # STORAGE halts the study and blames no trial. A full disk in user code may be any disk (/tmp, /dev/shm, a quota of
    # a data folder), and one such trial must not halt the study at every resume. So it counts as STORAGE only if the
    # study's folder is full as well, where no other attempt could save anything either.
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return Outcome.STORAGE if _is_full(folder) else Outcome.ERROR
    return Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.ERROR


def _is_full(folder: str) -> bool:
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
