"""The loop that makes the cluster do what the study's state wants: observe, tell, reconcile.

The only appender of a journal while a study runs. No policy is here: who trains what is decided by
``Study``; start-up, recovery after a crash and the normal tick are the same lines.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hpo_core.checkpoints.storage import all_files, attempt_files, remove
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import PatientJournal
from hpo_core.model.errors import HpoError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.study import Study

RENEW_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Executor(Protocol):
    """Where jobs run."""

    def slots(self) -> int: ...

    def submit(self, job: Job, done: Callable[[Job, Report], None]) -> None: ...

    def cancel_all(self) -> None: ...

    def cancel(self, attempts: list[tuple[int, int]]) -> None: ...


class Wrapper(Protocol):
    """How a job is shown while it runs (Prefect task runs, or nothing)."""

    @property
    def task_runs(self) -> int: ...

    def dispatch(self, job: Job, done: Callable[[Job, Report], None]) -> None: ...

    def close(self) -> None: ...


class Bare:
    """Jobs go straight to the executor: for loops without Prefect."""

    task_runs = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def dispatch(self, job: Job, done: Callable[[Job, Report], None]) -> None:
        self._executor.submit(job, done)

    def close(self) -> None:
        """Nothing is open."""


class Observer(Protocol):
    """Somebody who watches: a terminal, artifacts, logs."""

    def told(self, report: Report, granted: list[Job]) -> None: ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


class Driver:
    """Drives one study until nothing is left to run.

    Args:
        study: opened with the journal's current epoch.
        executor: asked for its slots once a second; more or fewer are taken up at once.
        wrapper: starts jobs on the executor.
        observers: told of every report.
        folder: the study's folder; checkpoints that nothing can need are removed from it.
        extend: so many further configurations to ask for, once the study is ours.
        train: (trial, target) to train further beyond the search; a halted search then stays halted.
        owner: this controller.
    """

    def __init__(
        self,
        study: Study,
        executor: Executor,
        wrapper: Wrapper,
        *,
        observers: list[Observer],
        folder: Path,
        owner: Owner,
        extend: int = 0,
        train: tuple[int, int] | None = None,
    ) -> None:
        self.study = study
        self._executor = executor
        self._wrapper = wrapper
        self._observers = observers
        self._folder = folder
        self._owner = owner
        self._extend = extend
        self._train = train
        self._inbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._dispatched: set[tuple[int, int]] = set()
        self._renewed = 0.0
        self._looked = 0.0

    def run(self) -> str:
        """Drive to the end; returns the study's status (``finished`` or ``halted``).

        Raises:
            FencedError: another controller took the study over.
            JournalError: the journal cannot be written; everything recorded before is intact.
            KeyboardInterrupt: after the study was halted and its children ended.
        """
        study = self.study
        try:
            study.recover(self._owner.label(), keep_halt=self._train is not None)
            self.sweep()  # what a controller before us had no time to remove
            if self._extend:
                study.extend(self._extend)
            if self._train is not None:
                study.train_further(*self._train)
            self._renewed = time.monotonic()
            study.set_capacity(self._executor.slots())
            self._reconcile()
            while study.state.running or not self._nothing_left():
                self._wait()
        except BaseException as error:
            self._end_early(error)
            raise
        self._wrapper.close()
        self.sweep()
        return study.status

    def _nothing_left(self) -> bool:
        return self.study.at_rest

    def _wait(self) -> None:
        try:
            self._take(self._inbox.get(timeout=0.2))
            busy_until = time.monotonic() + LOOK_SECONDS
            while time.monotonic() < busy_until:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self.study.tick()
            self._cancel_what_a_rule_ended()
            self.study.set_capacity(self._executor.slots())
            self._reconcile()
            for observer in self._observers:
                observer.tick()
        if now - self._renewed >= RENEW_SECONDS:
            self._renewed = now
            self._renew()

    def _cancel_what_a_rule_ended(self) -> None:
        """Attempts that a stop rule wants cancelled come back preempted, and a resume grants their jobs again.

        Said again every second while one runs: it may still have been on its way to its worker.
        """
        if attempts := self.study.to_cancel():
            self._executor.cancel(attempts)

    def _renew(self) -> None:
        """A journal that does not answer for a moment is asked again by itself; a fence ends the study."""
        self.study.journal.renew(self.study.name, self.study.epoch, time.time())

    def _take(self, report: Report) -> None:
        if report.outcome is Outcome.LOST:  # else its job would be granted again for a worker that went with it
            self.study.set_capacity(self._executor.slots())
        granted = self.study.tell_report(report)
        self._dispatched.discard((report.trial, report.attempt))
        self._remove_rest_of(report)
        self._reconcile()
        for observer in self._observers:
            observer.told(report, granted)

    def _remove_rest_of(self, report: Report) -> None:
        """Of an attempt that failed or came too late, files may be left that no result names."""
        base = self.study.spec.checkpoint_base
        if report.checkpoint is None or report.checkpoint.uri not in self.study.checkpoints:
            for uri in attempt_files(self._folder, base, report.trial, report.attempt):
                if uri not in self.study.checkpoints:
                    remove(self._folder, uri, base)

    def _reconcile(self) -> None:
        """Remove checkpoints that nothing needs any more, then dispatch what the state wants and is not yet under way.

        In this order: the jobs were granted for the room that the removed ones leave.
        """
        for uri in self.study.checkpoints.take_dead():
            remove(self._folder, uri, self.study.spec.checkpoint_base)
        if len(self._dispatched) > len(self.study.state.running):  # the search stopped trials while they train
            running = {(grant.trial, grant.attempt) for grant in self.study.state.running.values()}
            self._executor.cancel(sorted(self._dispatched - running))
        for job in self.study.state.wanted():
            if (job.trial, job.attempt) not in self._dispatched:
                self._dispatched.add((job.trial, job.attempt))
                self._wrapper.dispatch(job, lambda _job, report: self._inbox.put(report))

    def _end_early(self, error: BaseException) -> None:
        """Children are ended, and the study says why it stopped, where the journal still takes it."""
        if isinstance(self.study.journal, PatientJournal):
            self.study.journal.seconds = 0.0  # whoever ends us waits for us
        try:
            self._executor.cancel_all()
        finally:
            if not isinstance(error, HpoError):
                reason = type(error).__name__ if isinstance(error, Exception) else "interrupted"
                with contextlib.suppress(HpoError):  # the first error is the one to show
                    self._halt(reason)
            self._wrapper.close()

    def _halt(self, reason: str) -> None:
        """Ctrl-C may come in the middle of an append; the journal knows whether that entry is there."""
        try:
            self.study.stop(reason)
        except HpoError:
            again = Study.open(self.study.name, self.study.journal, reading=True)
            again.epoch = self.study.epoch
            again.stop(reason)

    def sweep(self) -> None:
        """Remove every checkpoint file that nothing can need, recorded or not."""
        live, base = self.study.checkpoints, self.study.spec.checkpoint_base
        for uri in all_files(self._folder, base):
            if uri not in live:
                remove(self._folder, uri, base)
        root = self._folder / "checkpoints"
        for folder in [] if root.is_symlink() else root.glob("*"):
            if not folder.is_symlink():
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
