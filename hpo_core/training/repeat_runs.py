"""Runs the seed repeats of one job: each in a process of its own, one after the other, then their checkpoints as one.

A repeat is trained as a job of a study without repeats is: freshly forked, seeded, continued from its own part of the
trial's checkpoint. So its result is that of a separate study with that seed, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from hpo_core.checkpoints.files import merge_parts
from hpo_core.checkpoints.storage import remove
from hpo_core.model.devices.measurement import Usage, UsageField
from hpo_core.model.errors import CheckpointError, StorageError
from hpo_core.model.judged_results import best_repeat, mean_curve, mean_metrics, seed_of_repeat
from hpo_core.model.trial import UNRESTORED_LINES, Outcome, Report
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.request import JobRequest
from hpo_core.training.untracked_state import merged_warnings

_UNUSED_SEED = (
    "All {repeats} repeats of a job reported the same values: the objective does not use its seed, and repeats cost "
    "time for nothing. Draw from trial.seed or from the global generators (they are seeded), or drop repeats."
)


def run_repeats(run: Callable[[JobRequest], Report], request: JobRequest) -> Report:
    """One report for all repeats of a job: means, single values, one checkpoint with the best repeat's state on top.

    The first repeat that fails or diverges ends the job, as a job without repeats would end.

    Args:
        run: trains one request and reports, whatever happens.
    """
    if request.repeats == 1:
        return run(request)
    reports: list[Report] = []

    def run_next(**changes: object) -> Report:
        spent = request.elapsed + sum(one.seconds for one in reports)
        return run(msgspec.structs.replace(request, elapsed=spent, **changes))

    for repeat in range(request.repeats):
        report = run_next(repeat=repeat, seed=seed_of_repeat(request.seed, repeat))
        reports.append(report)
        if report.outcome is not Outcome.COMPLETED:
            message = f"{report.message} (repeat {repeat} of {request.repeats}, counted from 0)".lstrip()
            return _with_totals(msgspec.structs.replace(report, message=message, checkpoint=None), reports)
    metrics = [report.metrics for report in reports]
    parts = tuple(report.checkpoint for report in reports if report.checkpoint is not None)
    checkpoint = request.job.checkpoint  # the job asked for what was reached before
    if len(parts) < len(reports):
        checkpoint = None
    elif any(part != checkpoint for part in parts):
        sign = -1 if request.modes[0] == "max" else 1
        merged = run_next(parts=parts, best=best_repeat(metrics, (request.metric, sign), request.constraints))
        if merged.outcome is not Outcome.COMPLETED:
            return _with_totals(merged, reports)
        checkpoint = merged.checkpoint
    warnings = merged_warnings(report.warnings or () for report in reports)
    if all((report.metrics, report.curve) == (reports[0].metrics, reports[0].curve) for report in reports):
        warnings += (_UNUSED_SEED.format(repeats=request.repeats),)
    whole = msgspec.structs.replace(
        reports[-1],
        metrics=mean_metrics(metrics),
        curve=mean_curve([report.curve for report in reports]),
        checkpoint=checkpoint,
        unrestored=tuple(dict.fromkeys(line for one in reports for line in one.unrestored))[:UNRESTORED_LINES],
        warnings=warnings or msgspec.UNSET,
        repeats=tuple(metrics),
    )
    return _with_totals(whole, reports)


def _with_totals(report: Report, reports: Sequence[Report]) -> Report:
    """The report with the start and the usage of all repeats that ran."""
    return msgspec.structs.replace(report, started=reports[0].started, usage=usage_of_repeats(reports))


def usage_of_repeats(reports: Sequence[Report]) -> UsageField:
    """Usage of all repeats: their largest peaks, and means over all of their time; not set where none was measured.

    Start-up, and the seconds of a unit, are sums: so they add up to the time that the job takes.
    """
    known = [(one.usage, max(one.ended - one.started, 1e-6)) for one in reports if isinstance(one.usage, Usage)]
    if not known:
        return msgspec.UNSET

    def mean(weighted: Sequence[tuple[float, float]]) -> float | None:
        weight = sum(seconds for _, seconds in weighted)
        return sum(value * seconds for value, seconds in weighted) / weight if weight else None

    usages = [usage for usage, _ in known]
    return msgspec.structs.replace(
        usages[-1],
        memory=max(one.memory for one in usages),
        cores=round(mean([(one.cores, seconds) for one, seconds in known]) or 0.0, 3),
        startup_seconds=sum(one.startup_seconds for one in usages),
        unit_seconds=sum(one.unit_seconds for one in usages),
        device_memory=max((one.device_memory for one in usages if one.device_memory is not None), default=None),
        compute=mean([(one.compute, seconds) for one, seconds in known if one.compute is not None]),
    )


def merge_attempt(request: JobRequest, progress: SharedProgress) -> Report:
    """Train nothing: make the checkpoints of all repeats of a job one, and remove them."""
    job, started = request.job, time.time()
    try:
        with progress.storing(job.target):
            checkpoint = merge_parts(
                request.folder,
                request.checkpoint_path,
                request.parts,
                best=request.best,
                base=request.checkpoint_base,
                parent=job.checkpoint.uri if job.checkpoint else None,
            )
            for part in request.parts:
                if part != job.checkpoint:
                    remove(request.folder, part.uri, request.checkpoint_base)
    except (StorageError, CheckpointError) as error:  # a part that is damaged was written a moment ago
        return request.report(Outcome.STORAGE, str(error), started=started)
    return request.report(Outcome.COMPLETED, checkpoint=checkpoint, started=started)
