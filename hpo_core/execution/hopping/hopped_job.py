"""Job whose model hops: its units, its report, and its progress in the study's folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.checkpoints import storage as paths
from hpo_core.checkpoints.storage import CHECKPOINTS, HOPS, Removals, exists, hop_base, hop_files, is_remote
from hpo_core.execution.executor import OnReport
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import HpoError, ObjectiveError, StorageError
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Point, Report, Unit, Visit
from hpo_core.security.private_files import check_folder, open_private, private_folder, write_private
from hpo_core.training.reported_metrics import ReportedCurve, check_required
from hpo_core.training.request import JobRequest


class JobProgress(msgspec.Struct, kw_only=True):
    """Progress of a job at the end of an epoch, which survives a crash of the controller."""

    origin: str | None
    """URI of the checkpoint that the job started from."""
    params: dict[str, Any]
    epoch: int
    """Epochs that the trial has behind it."""
    state: Checkpoint | None = None
    """State of the model at the end of that epoch; None: the job's own checkpoint."""
    visits: list[Visit] = []
    points: tuple[Point, ...] = ()
    elapsed: float = 0.0
    """Seconds that its units took."""
    warnings: tuple[str, ...] = ()


def progress_notes(jobs: Iterable[Job], folder: Path) -> Iterator[tuple[int, str]]:
    """Trials that hop, and how far their jobs have come, as the files of their progress say."""
    files = ProgressFiles(folder)
    for job in jobs:
        if (progress := files.find(job)) is not None:
            yield job.trial, f" ({progress.epoch:,} done)"


_STATE = re.compile(r"/attempt-([0-9]+)-unit-([0-9]+)\.safetensors")
_MOST_BYTES = 1 << 30
_progress = msgspec.msgpack.Decoder(JobProgress)


class ProgressFiles:
    """Reads and writes the progress of jobs below one study's folder, and removes the states that their units left.

    Args:
        folder: of the study.
        base: of the study's checkpoints; if it is a URL, the states lie below it.
    """

    def __init__(self, folder: str | Path, base: str = CHECKPOINTS) -> None:
        self._root = Path(folder)
        self._checkpoints, self._base = base, hop_base(base)
        self._removals = Removals(folder, self._base)

    def save(self, trial: int, progress: JobProgress) -> None:
        """Write the progress, so that it survives the end of this process; a crash of the computer may lose it.

        After such a crash an older progress, or none, is found, and more is repeated. Nothing waits for the disk here:
        the caller may be the thread that takes the reports of all other units.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._path(trial)
        try:
            private_folder(path.parent, below=self._root)
            write_private(path, msgspec.msgpack.encode(progress))
        except OSError as error:
            raise StorageError(
                f"Progress of trial {trial} ({path}) cannot be written: {error.strerror or error}. Free space on that "
                "disk or make the folder writable, then resume the study."
            ) from error

    def find(self, job: Job) -> JobProgress | None:
        """Progress of an earlier attempt that the job can go on from; None: there is none."""
        found = self.read(job.trial)
        if found is None:
            return None
        start = job.checkpoint.resource if job.checkpoint else 0
        origin = job.checkpoint.uri if job.checkpoint else None
        fits = found.origin == origin and found.params == job.params and start < found.epoch < job.target
        state = found.state
        return found if fits and state is not None and exists(self._root, state.uri, self._base) else None

    def read(self, trial: int) -> JobProgress | None:
        """Progress that was saved last; None: none is there, or it cannot be read."""
        path = self._path(trial)
        try:
            check_folder(path.parent, below=self._root)
            with open_private(path, "rb") as file:
                return _progress.decode(file.read(_MOST_BYTES))
        except (OSError, msgspec.MsgspecError, HpoError):
            return None

    def remove_state(self, state: Checkpoint) -> None:
        """Remove the state of a unit, once nothing can need it."""
        if state.uri.startswith(f"{self._base}/"):
            self._removals.remove(state.uri)

    def remove(self, trial: int, next_unit: tuple[int, int]) -> None:
        """Remove all files of a job that has ended.

        Args:
            next_unit: attempt and number of the first unit that may still write a state.
        """
        self._remove_folder(self._path(trial).parent)
        if is_remote(self._base):
            self._removals.run(lambda: self._remove_states(trial, next_unit))

    def _remove_states(self, trial: int, next_unit: tuple[int, int]) -> None:
        for uri in hop_files(self._root, self._checkpoints, trial):
            found = _STATE.search(uri)
            if found is not None and (int(found[1]), int(found[2])) < next_unit:
                self._removals.remove(uri)

    def keep_only(self, trials: Iterable[int]) -> None:
        """Remove the files of all other jobs; no unit runs."""
        kept = {self._path(trial).parent.name for trial in trials}
        top = self._root / HOPS
        for folder in [] if top.is_symlink() or not top.is_dir() else list(top.iterdir()):
            if folder.name not in kept:
                self._remove_folder(folder)
        for uri in hop_files(self._root, self._checkpoints) if is_remote(self._base) else ():
            if uri.rsplit("/", 2)[1] not in kept:
                self._removals.remove(uri)

    def drain(self) -> None:
        """Wait a limited time for removals at a URL."""
        self._removals.drain()

    def _remove_folder(self, folder: Path) -> None:
        if not folder.is_symlink() and not folder.parent.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, trial: int) -> Path:
        return self._root / HOPS / f"trial-{trial:05d}" / "progress.msgpack"


class HoppedJob:
    """A job that was granted, unit by unit.

    Args:
        job: from the study.
        on_report: called with its report.
        names: of the partitions, those of validation at the end.
        weights: of the partitions, in the same order: their numbers of examples, or ones.
        trained_on: so many of them are trained on.
    """

    def __init__(
        self, job: Job, on_report: OnReport, *, names: Sequence[str], weights: Sequence[float], trained_on: int
    ) -> None:
        self.job = job
        self.on_report = on_report
        self._names, self._weights, self._trained_on = names, weights, trained_on
        self.cancelled = False
        self.losses = 0
        """Units in a row that were lost."""
        self.restarts = 0
        self._started = 0
        """Number of units started: no two have one number."""
        self.forget()

    def forget(self) -> None:
        """Begin at the job's own checkpoint."""
        start = self.job.checkpoint
        origin, epoch = (None, 0) if start is None else (start.uri, start.resource)
        self.go_on_from(JobProgress(origin=origin, params=self.job.params, epoch=epoch))

    def go_on_from(self, progress: JobProgress) -> None:
        """Begin at the progress of an earlier attempt, whose controller ended."""
        self.behind = progress
        self.state = progress.state
        """State that the next unit starts from; None: the job's own checkpoint."""
        self.curve = ReportedCurve()
        for point in progress.points:
            self.curve.add(point.resource, point.metrics)
        self._metrics: Metrics = {}
        self._sums: dict[str, list[float]] = {}
        """Weighted sum and sum of weights of each metric that is evaluated on the validation data in this epoch."""
        self._usages: list[Usage] = []
        self._measured_after = progress.epoch
        """Epochs before those that ``_usages`` are of."""

    def progress(self) -> JobProgress:
        """Progress for a later controller, which goes on from the end of this epoch."""
        self.behind.points = self.curve.downsampled()
        return self.behind

    @property
    def next_unit(self) -> tuple[int, int]:
        """Attempt and number of the unit that starts next."""
        return self.job.attempt, self._started

    def unit_job(self, partition: int, place: int, *, base: str, cached: int) -> Job:
        """The job of the next unit.

        Args:
            partition: index of the partition that it sees.
            place: partitions of this epoch that were trained on before.
            base: of the study's checkpoints.
            cached: partitions that its worker may keep in memory.
        """
        job, state, epoch, number = self.job, self.state, self.behind.epoch + 1, self._started
        self._started += 1
        trains = partition < self._trained_on
        ends_epoch = trains and place + 1 == self._trained_on
        where = ""
        if trains:
            where = paths.hop_path(job.trial, job.attempt, number, base)
            if ends_epoch and epoch == job.target:
                # no other unit writes to it, not even one that was lost and is repeated
                folder, _, name = paths.checkpoint_path(job, base).rpartition("/")
                where = f"{folder}/unit-{number}-{name}"
        start = job.checkpoint if state is None else msgspec.structs.replace(state, resource=epoch - trains)
        return msgspec.structs.replace(
            job,
            target=epoch,
            checkpoint=start,
            parent=job.parent if state is None else None,
            unit=Unit(
                partition=self._names[partition],
                index=partition,
                place=place,
                count=self._trained_on,
                number=number,
                state=where,
                durable=ends_epoch,
                hopped=state is not None and state.uri.startswith(f"{hop_base(base)}/"),
                trains=trains,
                cached=cached,
                elapsed=self.behind.elapsed,
            ),
        )

    def take(self, unit: Job, report: Report) -> Checkpoint | None:
        """A unit ended well; returns the state that nothing needs any more."""
        assert unit.unit is not None
        self.losses = 0
        behind, partition = self.behind, unit.unit.index
        came_with = unit.checkpoint.size if unit.checkpoint else 0
        started, ended = round(report.started, 3), round(report.ended, 3)
        behind.visits.append(Visit(unit.target - 1, partition, report.worker, started, ended, came_with))
        behind.elapsed += report.seconds
        warnings = () if report.warnings is msgspec.UNSET else report.warnings
        behind.warnings += tuple(line for line in warnings if line not in behind.warnings)
        if isinstance(report.usage, Usage):
            self._usages.append(report.usage)
        if not unit.unit.trains:
            for name, value in report.metrics.items():
                entry = self._sums.setdefault(name, [0.0, 0.0])
                entry[0] += self._weights[partition] * value
                entry[1] += self._weights[partition]
            return None
        self._metrics |= report.metrics
        before, self.state = self.state, report.checkpoint
        return before if before is not None and before != self.behind.state else None

    def end_epoch(self) -> Checkpoint | None:
        """All partitions were seen; returns the state of the epoch before, which nothing needs any more."""
        self.behind.epoch += 1
        metrics = self._metrics | {name: total / weight for name, (total, weight) in self._sums.items()}
        self.curve.add(self.behind.epoch, metrics)
        self._metrics, self._sums = {}, {}
        before, self.behind.state = self.behind.state, self.state
        return before

    def finished(self, request: JobRequest) -> Report:
        """The report of the whole job, at its target.

        Args:
            request: of the job; it names the metrics that must be there.
        """
        metrics = self.curve.at(self.job.target)
        bad = request.setup.not_finite(metrics)
        try:
            check_required(request.setup, metrics, self.job.target)
        except ObjectiveError as error:
            return self.failed(Outcome.ERROR, str(error))
        assert self.state is not None
        return msgspec.structs.replace(
            self._report(Outcome.COMPLETED if bad is None else Outcome.DIVERGED),
            metrics=metrics,
            curve=self.curve.downsampled(),
            checkpoint=None if bad is not None else msgspec.structs.replace(self.state, parent=self.behind.origin),
            message="" if bad is None else f"Metric {bad!r} is {metrics[bad]} at epoch {self.job.target}.",
        )

    def diverged(self, report: Report) -> Report:
        """A metric was not finite after a unit: the job ends here."""
        return msgspec.structs.replace(
            self._report(Outcome.DIVERGED),
            metrics=report.metrics,
            curve=(*self.curve.downsampled(), Point(self.behind.epoch + 1, report.metrics)),
            message=report.message,
            worker=report.worker,
            ended=report.ended,
        )

    def failed(self, outcome: Outcome, message: str, detail: str = "", worker: str = "") -> Report:
        """The job ended without a result."""
        return msgspec.structs.replace(self._report(outcome), message=message, detail=detail, worker=worker)

    def _report(self, outcome: Outcome) -> Report:
        behind, visits = self.behind, self.behind.visits
        return Report(
            trial=self.job.trial,
            attempt=self.job.attempt,
            outcome=outcome,
            worker=visits[-1].worker if visits else "",
            started=visits[0].started if visits else 0.0,
            ended=visits[-1].ended if visits else 0.0,
            warnings=behind.warnings or msgspec.UNSET,
            usage=self._usage() or msgspec.UNSET,
            visits=tuple(visits) or msgspec.UNSET,
        )

    def _usage(self) -> Usage | None:
        usages = self._usages
        if not usages:
            return None
        epochs = max(1, self.behind.epoch - self._measured_after)
        known = [usage.device_memory for usage in usages if usage.device_memory is not None]
        return msgspec.structs.replace(
            usages[-1],
            memory=max(usage.memory for usage in usages),
            cores=sum(usage.cores for usage in usages) / len(usages),
            startup_seconds=sum(usage.startup_seconds for usage in usages) / len(usages),
            unit_seconds=sum(usage.unit_seconds for usage in usages) / epochs,
            device_memory=max(known) if known else None,
        )
