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
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from hpo_core.execution.checkpoint_cleanup import CheckpointCleanup
from hpo_core.execution.dispatch import DirectDispatcher, Dispatcher
from hpo_core.execution.executor import Executor, Inbox
from hpo_core.execution.new_placements import NewPlacements
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.model.errors import HpoError
from hpo_core.model.events import StudyHalted
from hpo_core.model.stage import Further
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.placement import Placement, Placer, Slots
from hpo_core.placement.attempt_judge import BLAME_SECONDS
from hpo_core.study import Study

RENEW_SECONDS = 10.0
"""How often a controller renews its lease on the study."""
STANDSTILL_SECONDS = 5.0
"""A wait that took so much longer than asked for was a standstill (SIGSTOP, a machine that slept or swapped)."""

log = logging.getLogger("hpo.loop")


class Observer(Protocol):
    """Watches a study: a terminal, artifacts, logs."""

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """The study took ``report`` and granted these jobs in turn."""
        ...

    def on_tick(self) -> None:
        """Time passed."""
        ...

    def close(self) -> None:
        """For whoever made the observer, once the loop has ended; the loop itself may run again."""
        ...


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """What a controller does first with a study that it drives from now on."""

    owner: Owner
    extend: int = 0
    """So many further configurations to ask for."""
    train: tuple[int, int] | None = None
    """(trial, target) to train further beyond the search; a halted search then stays halted."""


class Loop:
    """Drives one study until nothing is left to run.

    Args:
        study: opened with the journal's current epoch.
        executor: where jobs run, and whose clock tells the time.
        dispatcher: how jobs get there; default: directly.
        placer: which waiting job begins, and where; default: each takes a free slot.
        checkpoints: removes files that nothing can need any more; None: there are none.
        observers: called after every report, and as time passes.
        takeover: for a study with an owner; None: a study of this process alone, as in tests and simulations.
    """

    def __init__(
        self,
        study: Study,
        executor: Executor,
        *,
        dispatcher: Dispatcher | None = None,
        placer: Placer | None = None,
        checkpoints: CheckpointCleanup | None = None,
        observers: Sequence[Observer] = (),
        takeover: Takeover | None = None,
    ) -> None:
        self.study = study
        self._executor = executor
        self._dispatcher = dispatcher or DirectDispatcher(executor)
        self._placer: Placer = Slots() if placer is None else placer
        self._checkpoints = checkpoints
        self._observers = observers
        self._takeover = takeover
        self._is_taken_over = takeover is None
        self._inbox = Inbox()
        self._waiting: list[Job] = []
        """Granted and without a slot, the oldest first."""
        self._under_way: set[tuple[int, int]] = set()
        """(trial, attempt) dispatched and not reported."""
        self._withdrawn: set[tuple[int, int]] = set()
        """(trial, attempt) cancelled before it was dispatched, whose report is in the inbox."""
        self._doubted: dict[tuple[int, int], tuple[float, Report]] = {}
        """Reports that are told a moment later, and when they came: a neighbour may be to blame."""
        self._cancelled_for: StudyHalted | None = None
        """The halt for which running attempts were cancelled since the last poll."""
        self._new_placements = NewPlacements()
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
            reports = 0
            most = math.inf if max_reports is None else max_reports
            timed = self._polls or study.has_time_rule
            while reports < most and (study.state.running or not study.at_rest):
                goes_on = self._wait(self._wake_at(until) if timed else until)
                count = self._tell_all(most - reports)
                reports += count
                if count and not (self._polls and self._executor.now() >= self._next_poll):
                    continue
                changed = self._poll(look_for_work=not goes_on)
                if not count and not changed and (self._executor.now() >= until or not goes_on):
                    break
        except BaseException as error:
            self._end_early(error)
            raise
        self._dispatcher.close()
        if self._checkpoints is not None and not study.state.running:  # else a file may await its report
            self._checkpoints.sweep()
        return study.status

    # Start.

    def _take_over(self, takeover: Takeover) -> None:
        self.study.recover(takeover.owner.label(), keep_halt=takeover.train is not None)
        if self._checkpoints is not None:
            self._checkpoints.sweep()  # what a controller before us had no time to remove
        if takeover.extend:
            self.study.extend(takeover.extend)
        if takeover.train is not None:
            self.study.train_further(*takeover.train)
        self._next_renewal = time.monotonic() + RENEW_SECONDS

    def _synchronize(self) -> None:
        """Make the executor do what the study wants, whatever happened to it since this loop last ran."""
        self._notice_capacity()
        self._find_waiting()
        self._act()

    def _find_waiting(self) -> None:
        known = self._under_way | self._withdrawn
        self._waiting = [job for job in self.study.state.wanted() if job.key not in known]

    # While it runs.

    def _wake_at(self, until: float) -> float:
        now = self._executor.now()
        moment = min(until, now + self._executor.poll_seconds)
        left = self.study.seconds_to_rule()
        return moment if left is None else min(moment, max(now + left, math.nextafter(now, math.inf)))

    def _wait(self, until: float) -> bool:
        """Wait for the executor; where that took much longer than asked for, this process stood still."""
        asked, began = max(0.0, until - self._executor.now()), self.study.now()
        goes_on = self._executor.wait(self._inbox, until)
        if self._polls and (late := self.study.now() - began - asked) > STANDSTILL_SECONDS:
            log.warning("study %r: its controller stood still for %.0f s.", self.study.name, late)
            self._renew()  # another one may have taken the study meanwhile: then nothing begins here any more
            self._waiting += self.study.note_standstill(late)
        return goes_on

    def _renew(self) -> None:
        if self._takeover is not None:
            self._next_renewal = time.monotonic() + RENEW_SECONDS
            self.study.journal.renew(self.study.name, self.study.epoch, time.time())

    def _tell_all(self, most: float) -> int:
        """Tell the reports that are here, but not past the time of the next poll; returns how many."""
        count = 0
        inbox = self._inbox
        while inbox.reports and count < most:
            report = inbox.reports.popleft()
            key = report.trial, report.attempt
            if key not in self._doubted and self._placer.is_doubtful(report):
                self._doubted[key] = self._executor.now(), report
                continue
            self._doubted.pop(key, None)
            self._tell(report)
            count += 1
            if self._polls and self._executor.now() >= self._next_poll:
                break
        return count

    def _tell(self, report: Report) -> None:
        if report.outcome is Outcome.LOST:  # else its job would be granted again for a worker that went with it
            self._notice_capacity()
        key = report.trial, report.attempt
        report = self._placer.judge(report)
        granted = self.study.tell_report(report)
        self._under_way.discard(key)
        self._withdrawn.discard(key)
        self._placer.release(key)
        self._new_placements.end(key)
        if self._checkpoints is not None:
            self._checkpoints.remove_rest_of(report)
        if granted:
            self._waiting += granted
        self._act()
        for observer in self._observers:
            observer.on_report(report, granted)

    def _poll(self, *, look_for_work: bool) -> bool:
        """Check clock, capacity and lease.

        Args:
            look_for_work: also find out whether a job was started, where the executor has nothing to do otherwise.

        Returns:
            Whether the inventory changed, or there is work where there was none.
        """
        now = self._executor.now()
        self._next_poll = now + self._executor.poll_seconds
        for seen, report in list(self._doubted.values()):  # what a neighbour reports is here by now
            if now >= seen + BLAME_SECONDS:
                self._doubted[report.trial, report.attempt] = math.inf, report  # put in once
                self._inbox.put(report)
        inventory = self._placer.inventory
        before = set(self._under_way) if look_for_work else set()
        self._cancelled_for = None
        self._waiting += self.study.tick()
        self._notice_capacity()
        self._act()
        self.study.note_placements(self._new_placements.take())
        changed = self._placer.inventory is not inventory
        if look_for_work and not changed:
            changed = len(self._inbox) > 0 or not self._under_way <= before
        for observer in self._observers:
            observer.on_tick()
        if time.monotonic() >= self._next_renewal:
            self._renew()
        return changed

    def _notice_capacity(self) -> None:
        self._placer.update(self._executor.inventory(), self._executor.usages())
        for key, memory in self._placer.lowered():
            self._executor.limit(key, memory)
            self._new_placements.lower(key, memory)
        self._waiting += self.study.set_capacity(self._placer.capacity())

    def _act(self) -> None:
        """Remove checkpoints that nothing needs, cancel what the study does not want, place what it wants.

        In this order: jobs were granted for the room that removed checkpoints leave.
        """
        if self._checkpoints is not None:
            self._checkpoints.remove_dead()
        state = self.study.state
        known = len(self._under_way) + len(self._withdrawn) + len(self._waiting)
        if known != len(state.running):  # trials were stopped while they train, or an observer had jobs granted
            self._find_waiting()
            wanted = {(grant.trial, grant.attempt) for grant in state.running.values()}
            self._cancel(sorted(self._under_way - wanted))
        if state.halted is not None:
            if state.halted is not self._cancelled_for:  # asked at every report it would take workers squared
                self._cancelled_for = state.halted
                self._cancel(self.study.to_cancel())
            if state.halted.rule != "total_resource":  # granted jobs count as used there, so they finish
                self._cancel([job.key for job in self._waiting if type(job.stage) is not Further])
        self._cancel(self._placer.homeless())  # a device that is lost may hold its jobs for ever
        if self._waiting:
            self._place()

    def _cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Said again at every poll while one is under way: it may have been on its way to its worker."""
        keys = set(attempts)
        if not keys:
            return
        halted = self.study.state.halted
        for job in [job for job in self._waiting if job.key in keys]:  # it never began
            self._waiting.remove(job)
            self._withdrawn.add(job.key)
            why = "" if halted is None else halted.reason
            self._inbox.put(Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED, message=why))
        if begun := sorted(keys & self._under_way):
            self._executor.cancel(begun)

    def _place(self) -> None:
        """Place what can be placed; where jobs share devices, that decides for how many more the study may grant."""
        while self._waiting:
            for report in self._placer.refused(self._waiting):
                self._refuse(report)
            self._dispatch(self._placer.place(self._waiting, now=self.study.now()))
            capacity = self._placer.capacity()
            granted = [] if capacity == self.study.state.inventory else self.study.set_capacity(capacity)
            if not granted:
                return
            self._waiting += granted

    def _refuse(self, report: Report) -> None:
        key = report.trial, report.attempt
        self._waiting = [job for job in self._waiting if job.key != key]
        self._withdrawn.add(key)
        self._inbox.put(report)

    def _dispatch(self, placements: Sequence[Placement]) -> None:
        if len(placements) == len(self._waiting):
            self._waiting = []
        else:
            placed = {job.key for job, _ in placements}
            self._waiting = [job for job in self._waiting if job.key not in placed]
        on_report = self._on_report
        for number, (job, slot) in enumerate(placements):
            key = job.trial, job.attempt
            self._under_way.add(key)
            self._new_placements.begin(key, slot.share, self.study.now())
            try:
                self._dispatcher.dispatch(job, slot, on_report)
            except Exception:  # nobody will report it, and another run may start it
                self._under_way.discard(key)
                self._new_placements.end(key)
                for left, _ in placements[number:]:
                    self._placer.release(left.key)
                raise

    def _on_report(self, _: Job, report: Report) -> None:
        self._inbox.put(report)

    # An end before the end.

    def _end_early(self, error: BaseException) -> None:
        """Children are ended, and the study says why it stopped, where the journal still takes it."""
        if isinstance(self.study.journal, RetryingJournal):
            self.study.journal.seconds = 0.0  # whoever ends us waits for us
        try:
            self._executor.cancel_all()
        finally:
            if not isinstance(error, HpoError):
                reason = type(error).__name__ if isinstance(error, Exception) else "interrupted"
                with contextlib.suppress(HpoError):  # the first error is the one to show
                    self._halt(reason)
            self._dispatcher.close()

    def _halt(self, reason: str) -> None:
        """Ctrl-C may come in the middle of an append; the journal knows whether that entry is there."""
        try:
            self.study.stop(reason)
        except HpoError:
            again = Study.open(self.study.name, self.study.journal, reading=True)
            again.epoch = self.study.epoch
            again.stop(reason)
