"""The one loop that runs studies: on a Dask cluster, in this process, or on a virtual clock.

Observe, tell, reconcile. No policy is here: who trains what is decided by ``Study``, on which slot by a placement
policy. Start-up, recovery after a crash and the normal tick are the same lines, and what holds in a simulation holds
in a real run, because it is the same code.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hpo_core.checkpoints.storage import CHECKPOINTS, Removals, all_files, attempt_files
from hpo_core.execution.executor import Executor, Inbox
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.errors import FencedError, HpoError, JournalError
from hpo_core.model.short_text import cut
from hpo_core.model.trial import RESULTS, Job, JobKey, Outcome, Report
from hpo_core.placement.placer import Placer
from hpo_core.security.masking import masked
from hpo_core.study import Study


class CheckpointCleanup:
    """Keeps the files of one study to what is live.

    Args:
        folder: the study's folder.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        self._study = study
        self._folder = folder
        self._base = study.spec.checkpoint_base
        self._removals = Removals(folder, self._base)

    def remove_dead(self) -> None:
        for uri in self._study.checkpoints.take_dead():
            self._removals.remove(uri)

    def remove_rest_of(self, report: Report) -> None:
        live, trial, attempt = self._study.checkpoints, report.trial, report.attempt
        if report.outcome in RESULTS if report.checkpoint is None else report.checkpoint.uri in live:
            return  # it wrote no other file

        def remove_rest() -> None:
            for uri in attempt_files(self._folder, self._base, trial, attempt):
                if uri not in live:
                    self._removals.remove(uri)

        self._removals.run(remove_rest)

    def sweep(self) -> None:
        """Remove every checkpoint file that nothing can need, recorded or not, and folders that are empty then.

        Call it while no attempt runs: its file may not be recorded yet.
        """
        live = self._study.checkpoints
        for uri in all_files(self._folder, self._base):
            if uri not in live:
                self._removals.remove(uri)
        root = self._folder / CHECKPOINTS
        for folder in [] if root.is_symlink() else root.glob("*"):
            if not folder.is_symlink():
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()

    def finish(self) -> None:
        """Sweep, and wait a limited time for removals at a URL."""
        self.sweep()
        self._removals.drain()


RENEW_SECONDS = 10.0
"""Seconds after which a controller renews its lease on the study."""
STANDSTILL_SECONDS = 5.0
"""A wait that took so much longer than asked for was a standstill (SIGSTOP, a machine that slept or swapped)."""

log = logging.getLogger("hpo.loop")


class Observer(Protocol):
    """Watches a study: a terminal, artifacts, logs. A subclass has the methods that it needs."""

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """The study took ``report`` and granted these jobs in turn."""
        return

    def on_tick(self) -> None:
        return

    def close(self) -> None:
        """For whoever made the observer, once the loop has ended; the loop itself may run again."""
        return


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """The first acts of a controller that takes over a study."""

    owner: Owner
    extend: int = 0
    """Number of further configurations to ask for."""
    objective: str = ""
    """Training function from here on; empty: the same as before."""


def _reason(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "interrupted"
    words = cut(masked(str(error)).partition("\n")[0])
    if words and isinstance(error, HpoError):
        return words
    return ": ".join(filter(None, (type(error).__name__, words)))


class Loop:
    """Drives one study until nothing is left to run.

    Args:
        study: opened with the journal's current epoch.
        executor: where jobs run, and whose clock tells the time.
        placer: which waiting job begins, and where; default: each takes a free slot.
        checkpoints: removes files that nothing can need any more; None: there are none.
        observers: called after every report, and as time passes.
        ticks: functions called as time passes.
        takeover: for a study with an owner; None: a study of this process alone, as in tests and simulations.
    """

    def __init__(
        self,
        study: Study,
        executor: Executor,
        *,
        placer: Placer | None = None,
        checkpoints: CheckpointCleanup | None = None,
        observers: Sequence[Observer] = (),
        ticks: Sequence[Callable[[], None]] = (),
        takeover: Takeover | None = None,
    ) -> None:
        self.study = study
        self._executor = executor
        self._placer: Placer = Placer() if placer is None else placer
        self._checkpoints = checkpoints
        self._observers = observers
        self._ticks = [*(observer.on_tick for observer in observers), *ticks]
        self._takeover = takeover
        self._is_taken_over = takeover is None
        self._inbox = Inbox()
        # an attempt that was granted and not told is in one of these three
        self._waiting: dict[JobKey, Job] = {}
        """Jobs without a slot, the oldest first."""
        self._under_way: set[JobKey] = set()
        """Attempts that were submitted."""
        self._withdrawn: set[JobKey] = set()
        """Attempts that were cancelled or refused before they had a slot; their reports are in the inbox."""
        self._inventory: Inventory | None = None
        """As of the last look."""
        self._homeless: Sequence[JobKey] = ()
        """Attempts on devices that are gone, which nobody else would report."""
        self._submitted = 0
        """Jobs submitted so far."""
        self._polls = executor.poll_seconds < math.inf
        self._next_poll = 0.0 if self._polls else math.inf
        self._next_renewal = 0.0

    def run(self, *, until: float = math.inf, max_reports: int | None = None) -> str:
        """Drive to the end; returns the study's status (``finished``, ``halted``; ``open`` where it stopped before).

        Args:
            until: stop at this moment of the executor's clock.
            max_reports: stop after so many reports.

        Raises:
            FencedError: another controller took the study over.
            JournalError: the journal cannot be written; everything recorded before is intact.
            KeyboardInterrupt: after the study was halted and its children ended.
        """
        study = self.study
        try:
            if self._takeover is not None and not self._is_taken_over:
                self._take_over(self._takeover)
                self._is_taken_over = True
            self._synchronize()
            self._notice_capacity()  # whatever happened to the executor since this loop last ran
            self._act()
            reports = 0
            most = math.inf if max_reports is None else max_reports
            timed = self._polls or study.has_time_rule
            while reports < most and (study.state.running or not study.at_rest):
                goes_on = self._wait(self._wake_at(until) if timed else until)
                count = self._tell(most - reports)
                reports += count
                if count and not (self._polls and self._executor.now() >= self._next_poll):
                    continue
                changed = self._poll(look_for_work=not goes_on)
                if not count and not changed and (self._executor.now() >= until or not goes_on):
                    break
        except BaseException as error:
            self._end_early(error)
            raise
        if self._checkpoints is not None and not study.state.running:  # else a file may await its report
            self._checkpoints.finish()
        return study.status

    # Start.

    def _take_over(self, takeover: Takeover) -> None:
        self.study.recover(takeover.owner.label(), objective=takeover.objective)
        if self._checkpoints is not None:
            self._checkpoints.sweep()  # what a controller before us had no time to remove
        if takeover.extend:
            self.study.extend(takeover.extend)
        self._next_renewal = time.monotonic() + RENEW_SECONDS

    # While it runs.

    def _wake_at(self, until: float) -> float:
        now = self._executor.now()
        moment = min(until, now + self._executor.poll_seconds)
        left = self.study.seconds_to_rule()
        return moment if left is None else min(moment, max(now + left, math.nextafter(now, math.inf)))

    def _wait(self, until: float) -> bool:
        # Wait for the executor; where that took much longer than asked for, this process stood still.
        asked, began = max(0.0, until - self._executor.now()), self.study.now()
        goes_on = self._executor.wait(self._inbox, until)
        if self._polls and (late := self.study.now() - began - asked) > STANDSTILL_SECONDS:
            log.warning("study %r: its controller stood still for %.0f s, or its clock was set.", self.study.name, late)
            self._renew()  # another one may have taken the study meanwhile: then nothing begins here any more
            self.study.note_standstill(late)
        return goes_on

    def _renew(self) -> None:
        if self._takeover is not None:
            self._next_renewal = time.monotonic() + RENEW_SECONDS
            self.study.journal.renew(self.study.name, self.study.epoch)

    def _tell(self, most: float) -> int:
        # Tell the study of the reports that are here, until the next poll is due; returns how many.
        count, asks = 0, self.study.spec.asks_at_rungs
        reports = self._inbox.reports
        while reports and count < most:
            report = reports.popleft()
            if report.outcome is Outcome.LOST:  # else its job would be granted again for a worker that went with it
                self._notice_capacity()
            key = report.trial, report.attempt
            judged = self._placer.judge(report)
            granted = self.study.tell_report(judged)
            for known in (self._under_way, self._withdrawn):
                known.discard(key)
            self._placer.release(key)
            if asks and judged.outcome in RESULTS and report.trial not in self.study.state.running:
                self._executor.cancel([key])  # its process waits for a next job that was not granted
            if self._checkpoints is not None:
                self._checkpoints.remove_rest_of(judged)
            self._waiting |= {job.key: job for job in granted}
            self._act()
            for observer in self._observers:
                observer.on_report(judged, granted)
            count += 1
            if self._polls and self._executor.now() >= self._next_poll:
                break
        return count

    def _poll(self, *, look_for_work: bool) -> bool:
        """Check clock, capacity and lease.

        Args:
            look_for_work: also find out whether a job was started, where the executor has nothing to do otherwise.

        Returns:
            Whether the inventory changed, or there is work where there was none.
        """
        now = self._executor.now()
        self._next_poll = now + self._executor.poll_seconds
        inventory, submitted = self._inventory, self._submitted
        self.study.tick()
        self._notice_capacity()
        self._act()
        changed = self._inventory is not inventory
        if look_for_work and not changed:
            changed = len(self._inbox) > 0 or self._submitted > submitted
        for tick in self._ticks:
            tick()
        if time.monotonic() >= self._next_renewal:
            self._renew()
        return changed

    def _notice_capacity(self) -> None:
        inventory = self._executor.inventory()
        if inventory != self._inventory:
            self._inventory = inventory
        self._homeless = self._placer.update(self._inventory)
        self._waiting |= {job.key: job for job in self.study.set_capacity(self._placer.capacity())}

    def _synchronize(self) -> None:
        # Let those of the wanted jobs wait that were not submitted, and no others.
        begun = self._under_way | self._withdrawn
        self._waiting = {job.key: job for job in self.study.state.wanted() if job.key not in begun}

    def _act(self) -> None:
        # In this order: jobs were granted for the room that removed checkpoints leave.
        if self._checkpoints is not None:
            self._checkpoints.remove_dead()
        state = self.study.state
        known = len(self._waiting) + len(self._under_way) + len(self._withdrawn)
        if known != len(state.running):  # trials were stopped while they train, or an observer had jobs granted
            self._synchronize()
            self._cancel(self._under_way - {(grant.trial, grant.attempt) for grant in state.running.values()})
        if state.halted is not None and state.halted.rule != "total_resource":  # it counts granted jobs as used
            self._cancel(self._waiting)
        if self._homeless:  # a device that is lost may hold its jobs for ever
            self._cancel(self._homeless)
        if self._waiting:
            self._place()

    def _cancel(self, keys: Iterable[JobKey]) -> None:
        # Repeated at every poll while an attempt is under way: the first call may come before its worker has it.
        keys = list(keys)
        if waiting := [key for key in keys if key in self._waiting]:
            halted = self.study.state.halted
            why = "" if halted is None else halted.reason
            self._withdraw(
                Report(trial=trial, attempt=attempt, outcome=Outcome.PREEMPTED, message=why)
                for trial, attempt in waiting
            )
        if begun := self._under_way.intersection(keys):
            self._executor.cancel(sorted(begun))

    def _withdraw(self, reports: Iterable[Report]) -> None:
        for report in reports:
            key = report.trial, report.attempt
            del self._waiting[key]
            self._withdrawn.add(key)
            self._inbox.reports.append(report)

    def _place(self) -> None:
        # Place and submit what can be placed; where jobs share devices, the study may grant more for it.
        while self._waiting:
            begun, refused = self._placer.place(list(self._waiting.values()), now=self.study.now())
            self._withdraw(refused)
            for job, _ in begun:
                del self._waiting[job.trial, job.attempt]
            for number, (job, slot) in enumerate(begun):
                self._submitted += 1
                self._under_way.add((job.trial, job.attempt))
                try:
                    self._executor.submit(job, slot, self._inbox.put)
                except Exception:  # nobody will report it, and another run may start it
                    self._under_way.discard(job.key)
                    for left, _ in begun[number:]:
                        self._placer.release(left.key)
                    raise
            capacity = self._placer.capacity()
            granted = [] if capacity == self.study.state.inventory else self.study.set_capacity(capacity)
            if not granted:
                return
            self._waiting |= {job.key: job for job in granted}

    # An end before the end.

    def _end_early(self, error: BaseException) -> None:
        if isinstance(self.study.journal, RetryingJournal):
            self.study.journal.seconds = 0.0  # whoever ends us waits for us
        try:
            self._executor.cancel(sorted(self._under_way))
        finally:
            if not isinstance(error, FencedError | JournalError):
                with contextlib.suppress(HpoError):  # the first error is the one to show
                    self._halt(_reason(error))

    def _halt(self, reason: str) -> None:
        # Ctrl-C may come in the middle of an append; the journal knows whether that entry is there.
        try:
            self.study.stop(reason)
        except HpoError:
            again = Study.open(self.study.name, self.study.journal, reading=True, epoch=self.study.epoch)
            again.stop(reason)
