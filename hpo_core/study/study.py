"""Study: state + method + sampler + journal. The one place where decisions are made and recorded.

::

    entry = decide(stimulus)      # each event is applied as it is decided: the next decision must see it
    journal.append(entry)         # durable before anybody acts upon it
    return jobs                   # then acted upon

Should the append fail, nothing was promised to anybody: the study refuses further use and is opened again
from the journal, which holds the state before the stimulus.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpo_core.checkpoints.budget import Budget
from hpo_core.checkpoints.retention import LiveCheckpoints
from hpo_core.journal.damage import damaged_entry
from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.errors import HpoError, JournalError, SpecError
from hpo_core.model.events import (
    AttemptReported,
    CapacityNoticed,
    ClockTicked,
    ControllerStarted,
    Entry,
    Event,
    JobAsked,
    JobGranted,
    JobPlaced,
    PlacementsNoticed,
    Stimulus,
    StudyReopened,
    StudyRequested,
    concerns_search,
)
from hpo_core.model.stage import Further
from hpo_core.model.trial import Checkpoint, Job, Report
from hpo_core.samplers.recorded_params import RecordedSampler
from hpo_core.samplers.sampler import Sampler
from hpo_core.search.method import Done, SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method, create_sampler
from hpo_core.state import StudyState
from hpo_core.study.best_trials import BestTrials
from hpo_core.study.decider import Decider
from hpo_core.study.further_training import recorded_training
from hpo_core.study.job_grants import Grants
from hpo_core.study.person_requests import PersonRequests
from hpo_core.study.slot_claims import SlotClaims
from hpo_core.study.stop_rules import StopRules
from hpo_core.study.told_results import told_report

if TYPE_CHECKING:
    import optuna


def _plain(spec: Any) -> Any:
    """Any mapping as the dictionary that a spec is validated from; what is none is refused there."""
    return dict(spec) if isinstance(spec, Mapping) else spec


class Study(PersonRequests, SlotClaims, BestTrials):
    """One search. Create it with :meth:`create`, or open a recorded one with :meth:`open`.

    Driven by hand::

        study = Study.create(spec)
        while (job := study.ask()) is not None:
            study.tell(job, {"val_loss": train(job.params, job.target)})
        print(study.best)
    """

    def __init__(
        self,
        spec: StudySpec,
        journal: Journal,
        *,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.time,
        epoch: int = 0,
    ) -> None:
        self.spec = spec
        self.name = spec.study
        self.journal = journal
        self.state = StudyState()
        self.method: SearchMethod = create_method(spec)
        self.sampler: Sampler = sampler or create_sampler(spec)
        self.rules = StopRules(spec)
        self.epoch = epoch
        self.seq = 0
        """Number of entries applied; the next entry gets this number."""
        self._clock = clock
        self._broken = ""
        self.has_time_rule = spec.stop.seconds is not None
        """Whether a stop rule depends on time."""
        limits = spec.checkpoints.max_bytes is not None or spec.checkpoints.max_count is not None
        self._checkpoints = LiveCheckpoints(self.state, self.method) if limits else None
        self._budget = Budget(spec, self._checkpoints) if self._checkpoints is not None else None

        def checkpoints() -> LiveCheckpoints:
            return self.checkpoints

        self._grants = Grants(
            spec,
            self.state,
            method=self.method,
            sampler=self.sampler,
            rules=self.rules,
            checkpoints=checkpoints,
            budget=self._budget,
        )
        self._decider = Decider(spec, self.state, method=self.method, grants=self._grants, checkpoints=checkpoints)

    @classmethod
    def create(
        cls,
        spec: StudySpec | Mapping[str, Any],
        journal: Journal | None = None,
        *,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Study:
        """A new study, recorded in ``journal`` (in memory if None).

        Raises:
            SpecError: ``spec`` is a mapping and describes no valid study.
            StudyExistsError: the journal holds a study of that name.
        """
        valid = spec if isinstance(spec, StudySpec) else StudySpec.from_plain(_plain(spec))
        if valid.warm_start is not None and valid.warm_start.proposals is None:
            raise SpecError(
                f"Study {valid.study!r}: warm_start names {', '.join(valid.warm_start.studies)}, and nothing was read "
                "from there yet. Fill it in first: hpo_core.replay.past_results.with_past(spec, journal)."
            )
        if valid.data is not None and not valid.data.is_resolved:
            raise SpecError(
                f"Study {valid.study!r}: data names its partitions by a pattern or a manifest, and the journal keeps "
                "their list. Fill it in first: hpo_core.partitioning.with_partitions(spec)."
            )
        study = cls(valid, journal if journal is not None else MemoryJournal(), sampler=sampler, clock=clock)
        study._take(StudyRequested(valid.plain()))
        return study

    @classmethod
    def open(
        cls,
        name: str,
        journal: Journal,
        *,
        at: int | None = None,
        reading: bool = False,
        epoch: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Study:
        """The study as of entry ``at`` (included; default: the last one), rebuilt by replay.

        With ``at`` or ``reading`` the result is for looking, not for driving: its sampler is not rebuilt
        (some of Optuna's must be asked for every trial again), or the journal refuses its appends.

        Args:
            epoch: of the controller that drives it, as the journal's ``claim`` gave it; default: the journal's latest.

        Raises:
            StudyNotFoundError: the journal holds no study of that name.
        """
        entries = journal.entries(name, 0, None if at is None else at + 1)
        sampler = RecordedSampler([]) if reading or at is not None else None
        study = cls.from_entries(entries, journal=journal, sampler=sampler, clock=clock)
        study.epoch = journal.info(name).epoch if epoch is None else epoch
        return study

    @classmethod
    def from_entries(
        cls,
        entries: Iterable[Entry],
        *,
        journal: Journal | None = None,
        sampler: Sampler | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Study:
        """Replay entries; the first must be the one that created the study."""
        iterator = iter(entries)
        first = next(iterator, None)
        if first is None or not isinstance(first.stimulus, StudyRequested):
            raise JournalError("A journal begins with the entry that created its study; this one does not.")
        try:
            spec = StudySpec.from_journal(first.stimulus.spec)
            study = cls(
                spec,
                journal if journal is not None else MemoryJournal(),
                sampler=sampler,
                clock=clock,
                epoch=first.epoch,
            )
        except HpoError:
            raise
        except Exception as error:
            raise damaged_entry(str(first.stimulus.spec.get("study")), 0, error) from error
        study.replay(first)
        for entry in iterator:
            study.replay(entry)
        return study

    def replay(self, entry: Entry) -> None:
        """Apply a recorded entry without deciding anything."""
        if entry.seq != self.seq:
            raise JournalError(
                f"Study {self.name!r}: entry {entry.seq} follows entry {self.seq - 1}; entries are missing or "
                "out of order. Restore the journal from a backup."
            )
        try:
            self.notice(entry.stimulus, entry.time)
            for event in entry.events:
                self._apply(event)
        except HpoError:
            raise
        except Exception as error:
            raise damaged_entry(self.name, entry.seq, error) from error
        self.seq += 1

    def notice(self, stimulus: Stimulus, time: float) -> None:
        """Count the time until this stimulus; called before its events are applied."""
        self.rules.notice(stimulus, time, searching=not self.state.further_running)

    # What a loop asks and tells; what a person asks for is in PersonRequests.

    def ask(self) -> Job | None:
        """One job to train, or None while there is nothing to do (or nothing more: see :attr:`finished`)."""
        entry = self._take(JobAsked())
        return next(iter(self._granted(entry)), None)

    def tell(
        self,
        job: Job,
        metrics: Mapping[str, float] | Sequence[Mapping[str, float]],
        *,
        checkpoint: Checkpoint | None = None,
        worker: str = "",
        started: float = 0.0,
    ) -> list[Job]:
        """Report the metrics a job reached; returns jobs granted in turn (see :meth:`set_capacity`).

        Args:
            metrics: by name; where the study has ``repeats``, those of each repeat, or their means.

        Raises:
            ObjectiveError: a metric of the study is absent or no number.
        """
        report = told_report(self.spec, job, metrics)
        report = msgspec.structs.replace(
            report, checkpoint=checkpoint, worker=worker, started=started, ended=self._clock()
        )
        return self.tell_report(report)

    def tell_report(self, report: Report) -> list[Job]:
        """Report how an attempt ended, good or bad; returns jobs granted in turn."""
        return self._granted(self._take(AttemptReported(report)))

    def set_capacity(self, capacity: int | Inventory) -> list[Job]:
        """What jobs can run on: from now on every report is answered with new jobs up to it.

        Less capacity than running jobs ends none of them. 0 (the start) is for loops by hand.

        Args:
            capacity: devices with their slots; a number means so many slots of one device.

        Raises:
            HpoError: it is neither, or below 0.
        """
        inventory = capacity if isinstance(capacity, Inventory) else self._slots(capacity)
        if inventory == self.state.inventory and self.state.slots_in_use >= self.state.capacity:
            return []
        return self._granted(self._take(CapacityNoticed(inventory)))

    def _slots(self, count: Any) -> Inventory:
        try:
            return Inventory.of(operator.index(count))  # also an integer of numpy
        except (TypeError, ValueError):
            raise HpoError(
                f"Study {self.name!r}: set_capacity({count!r}): give the number of jobs that can run at once, 0 or "
                "more."
            ) from None

    def now(self) -> float:
        """Of the study's clock: seconds since the epoch, or virtual ones."""
        return self._clock()

    def note_placements(self, placements: Sequence[JobPlaced]) -> None:
        """Record where running jobs are, for people; no decision follows. Nothing for those that do not run."""
        if placements:
            self._take(PlacementsNoticed(tuple(placements)))

    def recover(self, controller: str, *, keep_halt: bool = False) -> list[Job]:
        """A new controller begins: attempts of the one before it are lost, their jobs wanted again.

        Args:
            keep_halt: a halted study stays halted (for :meth:`train_further`); else it goes on with its search.
        """
        return self._granted(self._take(ControllerStarted(controller, keep_halt)))

    def tick(self) -> list[Job]:
        """Check stop rules about time; records nothing unless one is due.

        Returns:
            Jobs beyond the search that were granted because a rule ended it.
        """
        if self.state.halted is None and not self._grants.trains_further and self.rules.due(self.state, self._clock()):
            return self._granted(self._take(ClockTicked()))
        return []

    def note_standstill(self, seconds: float) -> list[Job]:
        """The controller did not run for so long; noted where a stop rule about time would count it.

        Returns:
            Jobs as of :meth:`tick`.
        """
        if self.has_time_rule and self.state.halted is None and not self._grants.trains_further:
            return self._granted(self._take(ClockTicked(round(seconds, 3))))
        return []

    def seconds_to_rule(self) -> float | None:
        """Seconds of the study's clock until a stop rule about time is due; None: there is none to wait for."""
        if not self.has_time_rule or self.state.halted is not None or self._grants.trains_further:
            return None
        return self.rules.seconds_left(self._clock())

    # Questions.

    @property
    def finished(self) -> bool:
        """Whether no job runs and none will be granted any more."""
        state = self.state
        if state.running or state.waiting or state.extended or recorded_training(self.spec, self.state) is not None:
            return False
        return isinstance(self.method.next_action(), Done)

    @property
    def at_rest(self) -> bool:
        """Whether nothing will be granted, unless somebody asks for more or resumes the study."""
        return self.finished or (self.state.halted is not None and self._grants.next_further() is None)

    @property
    def status(self) -> str:
        """``finished``, ``halted`` (by a person or a rule; resumable) or ``open``."""
        if self.finished:
            return "finished"
        return "halted" if self.state.halted is not None else "open"

    @property
    def room_needed(self) -> str:
        """The least limit of checkpoints that a halted study could go on with; empty where one more fits.

        ``checkpoints.max_count=4``; a study keeps its limits, so a new one needs it.
        """
        budget = self._budget
        if budget is None or self.state.halted is None or self.state.running:
            return ""
        if not budget.over(1) or budget.removal(1) is not None:
            return ""
        name, least = budget.least
        return f"checkpoints.{name}={least}"

    @property
    def checkpoints(self) -> LiveCheckpoints:
        """Which checkpoints may still be needed; from its first use on it follows the study."""
        if self._checkpoints is None:
            self._checkpoints = LiveCheckpoints(self.state, self.method)
        return self._checkpoints

    def to_cancel(self) -> list[tuple[int, int]]:
        """Running attempts (trial, attempt) that a stop rule wants cancelled now; whoever runs them asks.

        A job that a person asked for (:meth:`train_further`) is no part of what the rule ends.
        """
        if not self.rules.cancels(self.state):
            return []
        return [
            (grant.trial, grant.attempt) for grant in self.state.running.values() if type(grant.stage) is not Further
        ]

    def to_optuna(self, storage: Any = None, name: str | None = None) -> optuna.Study:
        """A copy as an Optuna study, for Optuna's figures: all trials as they are now.

        Args:
            storage: a storage of Optuna or its URL; default: in memory.
            name: of the Optuna study, which must be new; default: this study's.
        """
        from hpo_core.study.optuna_trials import copy_to_optuna

        entries = self.journal.entries(self.name, 0, self.seq)
        return copy_to_optuna(entries, storage, name or self.name, ended=self.status != "open")

    def check(self) -> None:
        """Assert the invariants of state and method."""
        self.state.check()
        self.method.check()
        if self._checkpoints is not None:
            self._checkpoints.check()
        if self._budget is not None:
            self._budget.check()
        if self.seq:
            self._grants.check()

    # One entry.

    def _take(self, stimulus: Stimulus) -> Entry:
        if self._broken:
            raise JournalError(
                f"Study {self.name!r} could not record its last decision ({self._broken}) and is closed. "
                "Mend the cause, then open the study again: nothing recorded is lost."
            )
        now = self._clock()
        self.notice(stimulus, now)
        events: list[Event] = []
        try:
            for event in self._decider.decide(stimulus):
                self._apply(event)
                events.append(event)
            entry = Entry(self.seq, now, self.epoch, stimulus, tuple(events))
            if not (events or (isinstance(stimulus, ClockTicked) and stimulus.stood_still)):
                return entry  # nothing was decided, nothing is recorded
            if self.seq:
                self.journal.append(self.name, entry)
            else:
                self.journal.create(self.name, entry)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise
        self.seq += 1
        return entry

    def decide(self, stimulus: Stimulus) -> Iterator[Event]:
        """The facts that follow from a stimulus. Each must be applied before the next is drawn."""
        return self._decider.decide(stimulus)

    def _apply(self, event: Event) -> None:
        self.state.apply(event)
        if concerns_search(event):
            self.method.apply(event)
            self.sampler.apply(event)
        if type(event) is StudyReopened:
            self.rules.reopen(self.state)
        if self._budget is not None:
            self._budget.apply(event)
        elif self._checkpoints is not None:
            self._checkpoints.apply(event)

    def _granted(self, entry: Entry) -> list[Job]:
        return [self.state.job(event) for event in entry.events if type(event) is JobGranted]
