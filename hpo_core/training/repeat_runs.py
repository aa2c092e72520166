"""Runs the seed repeats of one job: each in a process of its own, one after the other, then their checkpoints as one.

A repeat is trained as a job of a study without repeats is: freshly forked, seeded, continued from its own part of the
trial's checkpoint. So its result is that of a separate study with that seed, to the bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from hpo_core.checkpoints.repeat_parts import merge_parts
from hpo_core.checkpoints.storage import remove
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.seed_repeats import best_repeat, mean_curve, mean_metrics, seed_of_repeat
from hpo_core.model.trial import UNRESTORED_LINES, Checkpoint, Outcome, Report
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.exactness.untracked_state import merged_warnings
from hpo_core.training.request import JobRequest
from hpo_core.training.resources.merging import usage_of_repeats


def run_repeats(run: Callable[[JobRequest], Report], request: JobRequest) -> Report:
    """One report for all repeats of a job: means, single values, one checkpoint with the best repeat's state on top.

    The first repeat that fails or diverges ends the job, as a job without repeats would end.

    Args:
        run: trains one request and reports, whatever happens.
    """
    if request.repeats == 1:
        return run(request)
    reports: list[Report] = []
    for repeat in range(request.repeats):
        report = run(
            msgspec.structs.replace(
                request,
                repeat=repeat,
                seed=seed_of_repeat(request.seed, repeat),
                elapsed=request.elapsed + sum(one.seconds for one in reports),
            )
        )
        reports.append(report)
        if report.outcome is not Outcome.COMPLETED:
            return _ended_early(reports, request)
    metrics = [report.metrics for report in reports]
    sign = -1 if request.modes[0] == "max" else 1
    best = best_repeat(metrics, (request.metric, sign), request.constraints)
    parts = [report.checkpoint for report in reports if report.checkpoint is not None]
    checkpoint = request.job.checkpoint  # the job asked for what was reached before
    if len(parts) < len(reports):
        checkpoint = None
    elif any(part != checkpoint for part in parts):
        spent = request.elapsed + sum(one.seconds for one in reports)
        merged = run(msgspec.structs.replace(request, parts=tuple(parts), best=best, elapsed=spent))
        if merged.outcome is not Outcome.COMPLETED:
            return msgspec.structs.replace(merged, started=reports[0].started, usage=usage_of_repeats(reports))
        checkpoint = merged.checkpoint
    warnings = merged_warnings(report.warnings or () for report in reports)
    if all((report.metrics, report.curve) == (reports[0].metrics, reports[0].curve) for report in reports):
        warnings += (_UNUSED_SEED.format(repeats=request.repeats),)
    unrestored = tuple(dict.fromkeys(line for report in reports for line in report.unrestored))
    return msgspec.structs.replace(
        reports[-1],
        metrics=mean_metrics(metrics),
        curve=mean_curve([report.curve for report in reports]),
        checkpoint=checkpoint,
        started=reports[0].started,
        unrestored=unrestored[:UNRESTORED_LINES],
        warnings=warnings or msgspec.UNSET,
        repeats=tuple(metrics),
        usage=usage_of_repeats(reports),
    )


_UNUSED_SEED = (
    "All {repeats} repeats of a job reported the same values: the objective does not use its seed, and repeats cost "
    "time for nothing. Draw from trial.seed or from the global generators (they are seeded), or drop repeats."
)


def _ended_early(reports: Sequence[Report], request: JobRequest) -> Report:
    """The last report, which is no completed one, with the number of its repeat; the parts written so far go."""
    last = reports[-1]
    message = f"{last.message} (repeat {len(reports) - 1} of {request.repeats}, counted from 0)".lstrip()
    return msgspec.structs.replace(
        last, message=message, checkpoint=None, started=reports[0].started, usage=usage_of_repeats(reports)
    )


def merge_attempt(request: JobRequest, progress: SharedProgress | None = None) -> Report:
    """The last request of a job with repeats: their checkpoints become one, and are removed."""
    job, started = request.job, time.time()
    message, checkpoint = "", None
    try:
        with progress.storing(job.target) if progress is not None else contextlib.nullcontext():
            checkpoint = merge_parts(
                request.folder,
                request.checkpoint_path,
                request.parts,
                best=request.best,
                base=request.checkpoint_base,
                parent=job.checkpoint.uri if job.checkpoint else None,
            )
            _remove(request, request.parts)
    except (StorageError, CheckpointError) as error:  # a part that is damaged was written a moment ago
        message = str(error)
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED if checkpoint is not None else Outcome.STORAGE,
        message=message,
        checkpoint=checkpoint,
        started=started,
        ended=time.time(),
    )


def _remove(request: JobRequest, parts: Sequence[Checkpoint]) -> None:
    for part in parts:
        if part != request.job.checkpoint:
            remove(request.folder, part.uri, request.checkpoint_base)
