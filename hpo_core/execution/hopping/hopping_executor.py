"""HoppingExecutor: an executor whose jobs are units of training that run where the data lie (Cerebro, Section 3).

To the loop it is one device with a slot for each configuration that may train at once. A job "train trial T to epoch
e" becomes a unit for each partition and epoch; the model's state travels between them through the study's folder.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from hpo_core.execution.executor import Executor, Inbox, OnReport, RunParts
from hpo_core.execution.hopping.hopped_job import HoppedJob, ProgressFiles
from hpo_core.hopper.board import PlannedUnit, UnitTimes
from hpo_core.hopper.hop_policies import POLICIES
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.errors import HpoError, StorageError
from hpo_core.model.partition_file import weights_of
from hpo_core.model.rng import Stream
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report
from hpo_core.partitioning.holdings import longest_look
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import all_at_once, create_method
from hpo_core.training.request import JobRequests

log = logging.getLogger(__name__)

FOR_EACH_WORKER = 2
"""Configurations for each worker where the search asks for them by results, or a sampler learns from these."""
MOST = 1_000
"""More cost more than they save: with 1,000 models on eight workers 16 at once end 0.7 % later than all, and a decision
among all takes a millisecond."""


MISSING_SECONDS = 60.0
"""Seconds for which a partition that some model needs may lie on no worker before the study stops.

Not counted while some worker has not said what it holds, or reads one again, for as long as reading all may take.
"""
REASONS = 3
"""Maximum number of missing partitions explained in the error."""


class PartitionsMissingError(HpoError):
    """A partition lies on no worker."""


class MissingPartitions:
    """Since when which partitions have been missing.

    Args:
        study: its name.
        longest_look: seconds that a worker may take to say which partitions it holds.
    """

    def __init__(self, study: str, longest_look: float) -> None:
        self._study = study
        self._longest_look = longest_look
        self._since: dict[str, tuple[float, float]] = {}
        """Since when a partition lies on no worker, and since when no worker might still announce it, by its name."""
        self._useless = ""

    def give_up(self, name: str, why: str) -> None:
        """Have the study stop for a partition that is found to be right again and again, and that no unit can use.

        Args:
            why: the last unit was lost.
        """
        self._useless = (
            f"Partition {name} of study {self._study!r} failed again and again while models trained on it, and was in "
            f"its place each time that it was looked at: {why} Nothing recorded is lost: look at the disk or the mount "
            f"that it lies on, and that the training function does not write to it, then `hpo resume {self._study}`."
        )

    def check(self, halted: Sequence[str], inventory: Inventory, now: float) -> None:
        """Note which are missing now.

        Args:
            halted: partitions that models wait for and that lie on no worker.
            inventory: the workers.

        Raises:
            PartitionsMissingError: one has been missing for a minute, or was given up.
        """
        if self._useless:
            raise PartitionsMissingError(self._useless)
        held = [device.partitions for device in inventory.devices]
        self._since = {name: self._since.get(name, (now, now)) for name in halted}
        if any(each.announcing for each in held):
            for partition, (began, _) in self._since.items():
                if now < began + self._longest_look:
                    self._since[partition] = began, now
        late = [name for name in halted if now - self._since[name][1] >= MISSING_SECONDS]
        if late:
            problems = {name: problem for each in held for name, problem in each.problems.items()}
            why = "".join(f" {problems[name]}" for name in late[:REASONS] if name in problems)
            raise PartitionsMissingError(
                f"Partition{'s' * (len(late) > 1)} {', '.join(late)} of study {self._study!r} ha"
                f"{'ve' if len(late) > 1 else 's'} been on no worker for {MISSING_SECONDS:.0f} s, and models wait for "
                f"that.{why} Nothing recorded is lost: start a worker that holds "
                f"{'them' if len(late) > 1 else 'it'} (data.folder, or HPO_PARTITION_FOLDER on the worker), or put "
                f"{'them' if len(late) > 1 else 'it'} back, then "
                f"`hpo resume {self._study}`."
            )


MOST_TURNS = 10_000
"""Most turns of starting units and taking their reports in one call."""
LOSSES = 5
"""Losses of one unit in a row after which its job is lost."""


class HoppingExecutor:
    """Runs jobs as units on another executor.

    Args:
        inner: runs one unit at once on each of its devices, where the device's partitions lie.
        spec: the study, with ``data``.
        folder: of the study; states travel through it. None: there are no files (a simulation).
        running: trials that train or are to be tried again, as far as an earlier controller came; others left nothing
            of use.
    """

    def __init__(
        self,
        inner: Executor,
        spec: StudySpec,
        folder: str | Path | None,
        *,
        running: Iterable[int] = (),
    ) -> None:
        data = spec.partitioned
        self.poll_seconds = inner.poll_seconds
        self._inner = inner
        self._spec = spec
        self._requests = JobRequests(spec, str(folder))
        self._files = None if folder is None else ProgressFiles(folder, spec.checkpoint_base)
        all_of_them = create_method(spec).grantable(MOST) if all_at_once(spec) else 0
        self._at_once: Callable[[int], int] = lambda workers: (
            data.concurrent or max(FOR_EACH_WORKER * workers, all_of_them)
        )
        """Models that train at once on so many workers. One that waits is a file in the study's folder."""
        self.keep_only(running)
        files = data.all_files
        self._names = [file.name for file in files]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._trained_on = len(data.files)
        self._weights = weights_of(files)
        self._schedule = HopSchedule(
            self._names[: self._trained_on],
            POLICIES[data.scheduler](Stream(spec.seed, "hops", 0)),
            times=UnitTimes(self._weights, trained_on=self._trained_on),
            validation=self._names[self._trained_on :],
        )
        self._lock = threading.RLock()
        self._trainings: dict[int, HoppedJob] = {}
        """Jobs under way, by trial."""
        self._held: dict[str, frozenset[int]] = {}
        """Partitions of each worker as they were told to the schedule."""
        self._ended: deque[tuple[PlannedUnit, Job, Report]] = deque()
        self._advancing = False
        self._missing = MissingPartitions(spec.study, longest_look(files))
        self.on_unit: Callable[[Job, int], None] = lambda job, epoch: None
        """Called as a unit of a job begins, with its epoch; from any thread, so it must not wait."""

    def tell_units(self, function: Callable[[Job, int], None]) -> None:
        self.on_unit = function

    # What the loop asks.

    def inventory(self) -> Inventory:
        """A slot for each configuration that may train at once.

        Raises:
            PartitionsMissingError: a partition has been on no worker for a minute.
        """
        inventory = self._inner.inventory()
        with self._lock:
            self._notice(inventory)
            self._advance()
            self._missing.check([*self._schedule.halted()], inventory, self.now())
            workers = inventory.workers
            return Inventory.of(self._at_once(workers) if workers else 0, "model hopper")

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Begin the units of a job as workers become free."""
        with self._lock:
            training = HoppedJob(job, on_report, names=self._names, weights=self._weights, trained_on=self._trained_on)
            if self._files is not None and (progress := self._files.find(job)) is not None:
                training.go_on_from(progress)
            self._trainings[job.trial] = training
            self._add(training)  # its units begin once all jobs of this moment are known: see `wait`

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        """End these attempts, between two units or in the middle of one."""
        keys = set(attempts)
        with self._lock:
            running = {unit.configuration for unit in self._schedule.in_flight()}
            for training in [each for each in self._trainings.values() if each.job.key in keys]:
                training.cancelled = True
                if training.job.trial not in running:
                    self._end(training, training.failed(Outcome.PREEMPTED, "The attempt was ended between two units."))
            self._inner.cancel(sorted(keys))

    def keep_only(self, trials: Iterable[int]) -> None:
        """Remove states of all other trials: a lost worker may have written one after its job had ended."""
        if self._files is not None:
            self._files.keep_only(trials)
            self._files.drain()

    def now(self) -> float:
        return self._inner.now()

    def wait(self, inbox: Inbox, until: float) -> bool:
        with self._lock:
            self._advance()
        return self._inner.wait(inbox, until)

    # Workers.

    def _places_of(self, names: Iterable[str]) -> frozenset[int]:
        return frozenset(self._places[each] for each in names if each in self._places)

    def _notice(self, inventory: Inventory) -> None:
        for name in self._held.keys() - {device.name for device in inventory.devices}:
            self._lose(name)
        for device in inventory.devices:
            name = device.name
            held = self._places_of(device.partitions.names)
            if name not in self._held:
                self._schedule.worker_joined(name, held)
            elif held != self._held[name]:
                self._schedule.worker_holds(name, held)
            self._held[name] = held

    def _lose(self, worker: str) -> None:
        if worker in self._held:
            del self._held[worker]
            self._schedule.worker_lost(worker)

    # Units.

    def _add(self, training: HoppedJob) -> None:
        job = training.job
        orders = {
            epoch: order
            for epoch, order in self._spec.search.order_of_visits(job.trial).items()
            if training.behind.epoch < epoch <= job.target
        }
        self._schedule.add(job.trial, to=job.target, after=training.behind.epoch, orders=orders)

    def _advance(self) -> None:
        # Take what ended and start what can start, until neither is left or the next call; not entered twice.
        if self._advancing:
            return
        self._advancing = True
        try:
            for _ in range(MOST_TURNS):
                while self._ended:
                    self._take(*self._ended.popleft())
                units = self._schedule.next_units()
                if not units and not self._ended:
                    return
                for unit in units:
                    self._start(unit)
        finally:
            self._advancing = False

    def _start(self, unit: PlannedUnit) -> None:
        training = self._trainings[unit.configuration]
        place = len(self._schedule.visits(unit.configuration))
        workers = max(1, len(self._held))
        job = training.unit_job(
            unit.partition, place, base=self._spec.checkpoint_base, cached=-(-len(self._names) // workers) + 1
        )

        def on_report(_: Job, report: Report) -> None:
            with self._lock:
                self._ended.append((unit, job, report))
                self._advance()

        self.on_unit(training.job, unit.epoch)
        self._inner.submit(job, Slot(0, 0, unit.worker), on_report)

    def _take(self, unit: PlannedUnit, job: Job, report: Report) -> None:
        training = self._trainings.get(unit.configuration)
        in_flight = any(each.number == unit.number for each in self._schedule.in_flight())
        if training is None or training.job.key != job.key or not in_flight:
            self._schedule.unit_failed(unit)  # of a worker that was lost, or a job that was ended: its worker is free
            return
        if report.outcome is Outcome.COMPLETED:
            self._completed(training, unit, job, report)
        elif report.outcome is Outcome.LOST and not training.cancelled:
            self._lost(training, unit, report)
        else:
            self._schedule.unit_failed(unit)
            self._failed(training, job, report)

    def _completed(self, training: HoppedJob, unit: PlannedUnit, job: Job, report: Report) -> None:
        self._remove_state(training.take(job, report))
        end = self._schedule.unit_ended(unit, seconds=max(0.0, report.ended - report.started))
        before = None if end.order is None else training.end_epoch()
        if end.job_ended:
            self._end(training, training.finished(self._requests.of(training.job)))
            return
        try:
            if end.order is not None and self._files is not None:
                self._files.save(training.job.trial, training.progress())
        except StorageError as error:
            self._end(training, training.failed(Outcome.STORAGE, str(error)))
            return
        self._remove_state(before)  # not earlier: the progress that was saved before names it
        if training.cancelled:
            self._end(training, training.failed(Outcome.PREEMPTED, "The attempt was ended between two units."))

    def _lost(self, training: HoppedJob, unit: PlannedUnit, report: Report) -> None:
        worker, most = unit.worker, LOSSES
        doubt = None if report.doubt is msgspec.UNSET else report.doubt.partition
        if doubt is None:
            self._lose(worker)
        elif worker in self._held:  # it is well, and looks at that partition again
            self._held[worker] -= self._places_of([doubt])
            self._schedule.worker_holds(worker, self._held[worker])
            most = LOSSES * len(self._held)  # they may have it from one file server
        self._schedule.unit_failed(unit)
        training.losses += 1
        log.warning("trial %d repeats epoch %d on %s: %s", unit.configuration, unit.epoch,
                    self._names[unit.partition], report.message)  # fmt: skip
        if training.losses >= most:
            if doubt is not None:
                self._missing.give_up(doubt, report.message)
            at_fault = report.worker if doubt is None else ""
            self._end(training, training.failed(Outcome.LOST, report.message, report.detail, at_fault))

    def _failed(self, training: HoppedJob, job: Job, report: Report) -> None:
        assert job.unit is not None
        if report.outcome is Outcome.DIVERGED:
            self._end(training, training.diverged(report))
        elif report.outcome is Outcome.CHECKPOINT_BAD and training.state is not None:  # not the job's own
            log.warning("trial %d goes back: %s", job.trial, report.message)
            self._go_back(training, report)
        else:
            seen = f"epoch {job.target}, {job.unit.partition}: {report.message}" if report.message else ""
            self._end(training, training.failed(report.outcome, seen, report.detail, report.worker))

    def _go_back(self, training: HoppedJob, report: Report) -> None:
        # A state on its way is gone or damaged: not the fault of the trial, nor of its checkpoint.
        # To the end of the last epoch, and from the second time on to the beginning of the job.
        training.restarts += 1
        if training.restarts >= LOSSES or training.cancelled:
            self._end(training, training.failed(Outcome.LOST, report.message, report.detail, report.worker))
            return
        self._schedule.remove(training.job.trial)
        training.forget()
        if self._files is not None:
            progress = self._files.find(training.job) if training.restarts == 1 else None
            if progress is not None:
                training.go_on_from(progress)
            else:
                self._files.remove(training.job.trial, training.next_unit)
        self._add(training)

    def _remove_state(self, state: Checkpoint | None) -> None:
        if state is not None and self._files is not None:
            self._files.remove_state(state)

    def _end(self, training: HoppedJob, report: Report) -> None:
        trial = training.job.trial
        del self._trainings[trial]
        if trial in self._schedule.configurations():
            self._schedule.remove(trial)
        if self._files is not None and report.outcome not in _KEEPS_PROGRESS:
            self._files.remove(trial, training.next_unit)
        training.on_report(training.job, report)


_KEEPS_PROGRESS = frozenset({Outcome.LOST, Outcome.PREEMPTED, Outcome.STORAGE})
"""Outcomes after which the same job is granted again."""


def hopping(parts: RunParts) -> None:
    state = parts.study.state
    executor = HoppingExecutor(parts.executor, parts.study.spec, parts.folder, running=[*state.running, *state.waiting])
    parts.executor = executor
    parts.on_unit = executor.tell_units
    parts.after.append(lambda: executor.keep_only([*state.waiting]))
