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
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from hpo_core.execution.checkpoint_cleanup import CheckpointCleanup
from hpo_core.execution.executor import Executor, Inbox
from hpo_core.journal.protocol import Owner
from hpo_core.journal.retrying import RetryingJournal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.errors import HpoError
from hpo_core.model.events import StudyHalted
from hpo_core.model.trial import Further, Job, JobKey, Outcome, Report
from hpo_core.placement import Placement, Placer, Slots
from hpo_core.study import Study


class AttemptState(StrEnum):
    """Where an attempt is."""

    WAITING = "waiting"
    """Granted, and without a slot."""
    PLACED = "placed"
    """Submitted to the executor: it starts or trains."""
    CANCELLING = "cancelling"
    """Submitted, and its end was asked for."""
    DOUBTED = "doubted"
    """Failed, and held back for a moment: an attempt on the same device may be to blame."""
    ENDED = "ended"
    """Reported; the study has not been told yet."""


_PLACED = (AttemptState.PLACED, AttemptState.CANCELLING)

TRANSITIONS: Mapping[str, tuple[tuple[AttemptState | None, ...], AttemptState | None]] = {
    "granted": ((None,), AttemptState.WAITING),
    "dropped": ((AttemptState.WAITING,), None),
    "withdrawn": ((AttemptState.WAITING,), AttemptState.ENDED),
    "placed": ((AttemptState.WAITING,), AttemptState.PLACED),
    "returned": (_PLACED, None),
    "cancelled": (_PLACED, AttemptState.CANCELLING),
    "doubted": (_PLACED, AttemptState.DOUBTED),
    "told": ((*_PLACED, AttemptState.DOUBTED, AttemptState.ENDED, None), None),
}
"""By transition: the states that it starts from, and the one that it leads to; None: the attempt is not known.

granted: the study wants it. dropped: the study no longer wants it. withdrawn: it was cancelled or refused before it was
placed. placed: it was submitted. returned: submitting it failed, so nobody will report it. cancelled: its end was asked
for. doubted: its report is held back. told: the study took its report; one that an earlier loop submitted is unknown.
"""

_NEXT = {(name, state): to for name, (froms, to) in TRANSITIONS.items() for state in froms}


class Attempts:
    """The attempts of one loop, by (trial, attempt)."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        """Jobs without a slot, the oldest first."""
        self._states: dict[JobKey, AttemptState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def state(self, key: JobKey) -> AttemptState | None:
        """None: it is not known here."""
        return self._states.get(key)

    def under_way(self) -> list[JobKey]:
        """Attempts that were submitted and that nobody told the study of, in order."""
        skipped = (AttemptState.WAITING, AttemptState.ENDED)
        return sorted(key for key, state in self._states.items() if state not in skipped)

    def synchronize(self, wanted: Iterable[Job]) -> None:
        """Wait with those of the wanted jobs that nobody works on yet, and with no others."""
        for job in self.waiting:
            self._move(job.key, "dropped")
        self.waiting = []
        self.granted([job for job in wanted if job.key not in self._states])

    def granted(self, jobs: Sequence[Job]) -> None:
        """Wait with these jobs, too."""
        self.waiting += jobs
        self._move_jobs(jobs, "granted")

    def placed(self, jobs: Sequence[Job]) -> None:
        """Note that these waiting jobs have their slots."""
        self._move_jobs(jobs, "placed")
        self._forget_waiting(len(jobs))

    def withdrawn(self, keys: Iterable[JobKey]) -> list[JobKey]:
        """Stop waiting with those of these jobs that wait; returns them."""
        found = [key for key in keys if self._states.get(key) is AttemptState.WAITING]
        for key in found:
            self._move(key, "withdrawn")
        self._forget_waiting(len(found))
        return found

    def cancelled(self, keys: Iterable[JobKey]) -> list[JobKey]:
        """Note that the end of these was asked for; returns those of them that were submitted, in order."""
        found = sorted(key for key in keys if self._states.get(key) in _PLACED)
        for key in found:
            self._move(key, "cancelled")
        return found

    def returned(self, key: JobKey) -> None:
        """Forget a job that could not be submitted."""
        self._move(key, "returned")

    def doubted(self, key: JobKey) -> None:
        """Hold its report back."""
        self._move(key, "doubted")

    def told(self, key: JobKey) -> None:
        """Forget an attempt that the study was told of."""
        if self._states.pop(key, None) not in TRANSITIONS["told"][0]:
            raise AssertionError(f"attempt {key} waits and cannot be told")

    def _move_jobs(self, jobs: Sequence[Job], transition: str) -> None:
        """Make the transition of many jobs at once: this is done for every job of every study."""
        states, ((before,), after) = self._states, TRANSITIONS[transition]
        assert after is not None
        for job in jobs:
            key = job.trial, job.attempt
            if states.get(key) is not before:
                raise AssertionError(f"attempt {key} is {states.get(key) or 'unknown'} and cannot be {transition}")
            states[key] = after

    def _move(self, key: JobKey, transition: str) -> None:
        state = self._states.get(key)
        try:
            to = _NEXT[transition, state]
        except KeyError:
            raise AssertionError(f"attempt {key} is {state or 'unknown'} and cannot be {transition}") from None
        if to is None:
            self._states.pop(key, None)
        else:
            self._states[key] = to

    def _forget_waiting(self, count: int) -> None:
        """Keep of the waiting jobs those that still wait, of which ``count`` do no longer."""
        if count == len(self.waiting):
            self.waiting = []
        elif count:
            states = self._states
            self.waiting = [job for job in self.waiting if states.get((job.trial, job.attempt)) is AttemptState.WAITING]


RENEW_SECONDS = 10.0
"""How often a controller renews its lease on the study."""
STANDSTILL_SECONDS = 5.0
"""A wait that took so much longer than asked for was a standstill (SIGSTOP, a machine that slept or swapped)."""
DOUBT_SECONDS = 1.0
"""A report that the placer doubts is told so much later: what a neighbour reports is here by then."""

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
    """Number of further configurations to ask for."""
    train: tuple[int, int] | None = None
    """(trial, target) to train further beyond the search; a halted search then stays halted."""


class Loop:
    """Drives one study until nothing is left to run.

    Args:
        study: opened with the journal's current epoch.
        executor: where jobs run, and whose clock tells the time.
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
        placer: Placer | None = None,
        checkpoints: CheckpointCleanup | None = None,
        observers: Sequence[Observer] = (),
        takeover: Takeover | None = None,
    ) -> None:
        self.study = study
        self._executor = executor
        self._placer: Placer = Slots() if placer is None else placer
        self._checkpoints = checkpoints
        self._observers = observers
        self._takeover = takeover
        self._is_taken_over = takeover is None
        self._inbox = Inbox()
        self._attempts = Attempts()
        self._inventory: Inventory | None = None
        """As of the last look."""
        self._homeless: Sequence[JobKey] = ()
        """Attempts on devices that are gone, which nobody else would report."""
        self._doubts: list[tuple[float, Report]] = []
        """Reports that are held back, and since when."""
        self._cancelled_for: StudyHalted | None = None
        """The halt for which running attempts were cancelled since the last poll."""
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
        self._attempts.synchronize(self.study.state.wanted())
        self._act()

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
            self._attempts.granted(self.study.note_standstill(late))
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
            if self._tell(inbox.reports.popleft()):
                count += 1
                if self._polls and self._executor.now() >= self._next_poll:
                    break
        return count

    def _tell(self, report: Report) -> bool:
        """Tell the study of a report; returns whether it was told, and not held back."""
        if report.outcome is Outcome.LOST:  # else its job would be granted again for a worker that went with it
            self._notice_capacity()
        key = report.trial, report.attempt
        judged = self._placer.judge(report, waited=self._attempts.state(key) is AttemptState.DOUBTED)
        if judged is None:
            self._attempts.doubted(key)
            self._doubts.append((self._executor.now(), report))
            return False
        granted = self.study.tell_report(judged)
        self._attempts.told(key)
        self._placer.release(key)
        if self._checkpoints is not None:
            self._checkpoints.remove_rest_of(judged)
        if granted:
            self._attempts.granted(granted)
        self._act()
        for observer in self._observers:
            observer.on_report(judged, granted)
        return True

    def _poll(self, *, look_for_work: bool) -> bool:
        """Check clock, capacity and lease.

        Args:
            look_for_work: also find out whether a job was started, where the executor has nothing to do otherwise.

        Returns:
            Whether the inventory changed, or there is work where there was none.
        """
        now = self._executor.now()
        self._next_poll = now + self._executor.poll_seconds
        while self._doubts and now >= self._doubts[0][0] + DOUBT_SECONDS:
            self._inbox.put(self._doubts.pop(0)[1])
        inventory, submitted = self._inventory, self._submitted
        self._cancelled_for = None
        self._attempts.granted(self.study.tick())
        self._notice_capacity()
        self._act()
        changed = self._inventory is not inventory
        if look_for_work and not changed:
            changed = len(self._inbox) > 0 or self._submitted > submitted
        for observer in self._observers:
            observer.on_tick()
        if time.monotonic() >= self._next_renewal:
            self._renew()
        return changed

    def _notice_capacity(self) -> None:
        inventory = self._executor.inventory()
        if inventory != self._inventory:
            self._inventory = inventory
        self._homeless = self._placer.update(self._inventory)
        if granted := self.study.set_capacity(self._placer.capacity()):
            self._attempts.granted(granted)

    def _act(self) -> None:
        """Remove checkpoints that nothing needs, cancel what the study does not want, place what it wants.

        In this order: jobs were granted for the room that removed checkpoints leave.
        """
        if self._checkpoints is not None:
            self._checkpoints.remove_dead()
        state, attempts = self.study.state, self._attempts
        if len(attempts) != len(state.running):  # trials were stopped while they train, or an observer had jobs granted
            attempts.synchronize(state.wanted())
            wanted = {(grant.trial, grant.attempt) for grant in state.running.values()}
            self._cancel(set(attempts.under_way()) - wanted)
        if state.halted is not None:
            if state.halted is not self._cancelled_for:  # asked at every report it would take workers squared
                self._cancelled_for = state.halted
                self._cancel(self.study.to_cancel())
            if state.halted.rule != "total_resource":  # granted jobs count as used there, so they finish
                self._cancel([job.key for job in attempts.waiting if type(job.stage) is not Further])
        if self._homeless:  # a device that is lost may hold its jobs for ever
            self._cancel(self._homeless)
        if attempts.waiting:
            self._place()

    def _cancel(self, keys: Iterable[JobKey]) -> None:
        """Said again at every poll while an attempt is under way: it may have been on its way to its worker."""
        keys = list(keys)
        halted = self.study.state.halted
        for trial, attempt in self._attempts.withdrawn(keys):
            why = "" if halted is None else halted.reason
            self._inbox.put(Report(trial=trial, attempt=attempt, outcome=Outcome.PREEMPTED, message=why))
        if begun := self._attempts.cancelled(keys):
            self._executor.cancel(begun)

    def _place(self) -> None:
        """Place what can be placed; where jobs share devices, that decides for how many more the study may grant."""
        attempts = self._attempts
        while attempts.waiting:
            placed = self._placer.place(attempts.waiting, now=self.study.now())
            for report in placed.refused:
                attempts.withdrawn([(report.trial, report.attempt)])
                self._inbox.put(report)
            self._submit(placed.begun)
            capacity = self._placer.capacity()
            granted = [] if capacity == self.study.state.inventory else self.study.set_capacity(capacity)
            if not granted:
                return
            attempts.granted(granted)

    def _submit(self, placements: Sequence[Placement]) -> None:
        self._attempts.placed([job for job, _ in placements])
        on_report = self._on_report
        for number, (job, slot) in enumerate(placements):
            self._submitted += 1
            try:
                self._executor.submit(job, slot, on_report)
            except Exception:  # nobody will report it, and another run may start it
                for left, _ in placements[number:]:
                    self._attempts.returned(left.key)
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
            self._executor.cancel(self._attempts.under_way())
        finally:
            if not isinstance(error, HpoError):
                reason = type(error).__name__ if isinstance(error, Exception) else "interrupted"
                with contextlib.suppress(HpoError):  # the first error is the one to show
                    self._halt(reason)

    def _halt(self, reason: str) -> None:
        """Ctrl-C may come in the middle of an append; the journal knows whether that entry is there."""
        try:
            self.study.stop(reason)
        except HpoError:
            again = Study.open(self.study.name, self.study.journal, reading=True, epoch=self.study.epoch)
            again.stop(reason)
