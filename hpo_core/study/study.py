"""Study: state + method + sampler + journal. The one place where decisions are made and recorded.

::

    entry = decide(stimulus)      # each event is applied as it is decided: the next decision must see it
    journal.append(entry)         # durable before anybody acts upon it
    return jobs                   # then acted upon

Should the append fail, nothing was promised to anybody: the study refuses further use and is opened again
from the journal, which holds the state before the stimulus.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hpo_core.checkpoints.budget import Budget
from hpo_core.checkpoints.live import LiveCheckpoints
from hpo_core.journal.damage import damaged_entry
from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError, JournalError, ObjectiveError, SpecError
from hpo_core.model.events import (
    AbandonRequested,
    AttemptFailed,
    AttemptReported,
    CapacityChanged,
    CapacityNoticed,
    CheckpointCondemned,
    ClockTicked,
    ControllerChanged,
    ControllerStarted,
    Entry,
    Event,
    ExtensionRequested,
    JobAsked,
    JobCompleted,
    JobGranted,
    ReportIgnored,
    Reproduced,
    Stimulus,
    StopRequested,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    StudyRequested,
    TrainingRequested,
    TrialAbandoned,
    TrialCreated,
    TrialExtended,
    TrialExtensionEnded,
    concerns_search,
)
from hpo_core.model.trial import FURTHER, Checkpoint, Job, Outcome, Params, Report
from hpo_core.samplers.recorded_params import RecordedSampler
from hpo_core.samplers.sampler import Sampler
from hpo_core.search.method import WAIT, Action, Done, Promote, Reproduce, Sample, SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method, create_sampler
from hpo_core.state import Incumbent, StudyState, TrialRecord, retries_left
from hpo_core.state.worker_losses import MOST_DEFERRED
from hpo_core.study.further import check_training, next_in_turn, recorded_training
from hpo_core.study.stop_rules import StopRules

Decide = Callable[[Any], Iterator[Event]]


def _plain(spec: Any) -> Any:
    """Any mapping as the dictionary that a spec is validated from; what is none is refused there."""
    return dict(spec) if isinstance(spec, Mapping) else spec


class Study:
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
        self._limits_resource = spec.stop.total_resource is not None
        limits = spec.checkpoints.max_bytes is not None or spec.checkpoints.max_count is not None
        self._checkpoints = LiveCheckpoints(self.state, self.method) if limits else None
        self._budget = Budget(spec.checkpoints, self._checkpoints) if self._checkpoints is not None else None
        self._metric, self._sign = spec.metric.name, spec.metric.sign
        self._objectives = [(metric.name, metric.sign) for metric in spec.objectives]
        self._deciders: dict[type, Decide] = {
            StudyRequested: self._on_study_requested,
            ControllerStarted: self._on_controller_started,
            CapacityNoticed: self._on_capacity,
            JobAsked: self._on_asked,
            AttemptReported: self._on_report,
            ExtensionRequested: self._on_extension,
            TrainingRequested: self._on_training,
            StopRequested: self._on_stop,
            AbandonRequested: self._on_abandon,
            ClockTicked: self._on_tick,
        }

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
        clock: Callable[[], float] = time.time,
    ) -> Study:
        """The study as of entry ``at`` (included; default: the last one), rebuilt by replay.

        With ``at`` or ``reading`` the result is for looking, not for driving: its sampler is not rebuilt
        (some of Optuna's must be asked for every trial again), or the journal refuses its appends.

        Raises:
            StudyNotFoundError: the journal holds no study of that name.
        """
        entries = journal.entries(name, 0, None if at is None else at + 1)
        sampler = RecordedSampler([]) if reading or at is not None else None
        study = cls.from_entries(entries, journal=journal, sampler=sampler, clock=clock)
        study.epoch = journal.info(name).epoch
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
        """Time passed until this stimulus; told before its events."""
        self.rules.notice(stimulus, time, searching=not self._trains_further)

    # Stimuli.

    def ask(self) -> Job | None:
        """One job to train, or None while there is nothing to do (or nothing more: see :attr:`finished`)."""
        entry = self._take(JobAsked())
        return next(iter(self._granted(entry)), None)

    def tell(
        self,
        job: Job,
        metrics: Mapping[str, float],
        *,
        checkpoint: Checkpoint | None = None,
        worker: str = "",
        started: float = 0.0,
    ) -> list[Job]:
        """Report the metrics a job reached; returns jobs granted in turn (see :meth:`set_capacity`).

        Raises:
            ObjectiveError: a metric of the study is absent or no number.
        """
        bad = [name for name, _ in self._objectives if name not in metrics]
        if self.spec.any_metric and len(bad) < len(self._objectives):
            bad = []
        bad += [k for k, item in metrics.items() if isinstance(item, bool | str) or not hasattr(item, "__float__")]
        if bad:
            raise ObjectiveError(
                f"Study {self.name!r}, trial {job.trial}: metric {bad[0]!r} is {metrics.get(bad[0])!r} in "
                f"{dict(metrics)!r}; tell needs it as a number. Report it, or name another one in the study."
            )
        finite = all(math.isfinite(float(metrics.get(name, 0.0))) for name, _ in self._objectives)
        report = Report(
            trial=job.trial,
            attempt=job.attempt,
            outcome=Outcome.COMPLETED if finite else Outcome.DIVERGED,
            metrics={name: float(item) for name, item in metrics.items()},
            checkpoint=checkpoint,
            worker=worker,
            started=started,
            ended=self._clock(),
        )
        return self.tell_report(report)

    def tell_report(self, report: Report) -> list[Job]:
        """Report how an attempt ended, good or bad; returns jobs granted in turn."""
        return self._granted(self._take(AttemptReported(report)))

    def set_capacity(self, slots: int) -> list[Job]:
        """So many jobs can run at once: from now on every report is answered with new jobs up to it.

        Fewer slots than running jobs end none of them. 0 (the start) is for loops by hand.
        """
        if slots == self.state.capacity and len(self.state.running) >= slots:
            return []
        return self._granted(self._take(CapacityNoticed(slots)))

    def recover(self, controller: str, *, keep_halt: bool = False) -> list[Job]:
        """A new controller begins: attempts of the one before it are lost, their jobs wanted again.

        Args:
            keep_halt: a halted study stays halted (for :meth:`train_further`); else it goes on with its search.
        """
        return self._granted(self._take(ControllerStarted(controller, keep_halt)))

    def extend(self, configs: int) -> list[Job]:
        """Ask for so many more configurations."""
        if configs < 1:
            raise HpoError(f"extend(configs={configs}): give at least 1 further configuration.")
        if refusal := self.spec.search.refuse_extension(self.name, self.method):
            raise HpoError(refusal)
        return self._granted(self._take(ExtensionRequested(configs)))

    def train_further(self, trial: int | None = None, to: int = 0) -> list[Job]:
        """Train one trial on, beyond the search and its maximum resource, once that is finished or halted.

        The job goes on from the trial's newest checkpoint; where none was kept, from the start. No search method
        ranks its result and no stop rule counts it, but it can be the incumbent. A halted search stays halted.

        Args:
            trial: its number; None: the best trial.
            to: units of training in all, those behind it included.

        Raises:
            HpoError: what :meth:`trial_to_train` says.
        """
        return self._granted(self._take(TrainingRequested(self.trial_to_train(trial, to), to)))

    def trial_to_train(self, trial: int | None, to: int) -> int:
        """The trial that :meth:`train_further` would train; records nothing.

        Raises:
            HpoError: there is no such trial, it has no finite result, it was trained so far already, or the search
                is not over yet.
        """
        return check_training(self.state, self.name, trial, to, searching=self._searching)

    def tick(self) -> None:
        """Time passed: stop rules about time are looked at. Records nothing unless one is due."""
        if self.state.halted is None and not self._trains_further and self.rules.due(self.state, self._clock()):
            self._take(ClockTicked())

    def stop(self, reason: str) -> None:
        """Grant no further jobs until the study is recovered or extended."""
        self._take(StopRequested(reason))

    def abandon(self, trial: int) -> None:
        """Give a trial up, whether it runs, waits to be tried again, or stands at a rung.

        Grants nothing by itself; whoever drives the study goes on as usual.

        Raises:
            HpoError: there is no such trial, or nothing is left of it to give up.
        """
        trials = self.state.trials
        if not 0 <= trial < len(trials):
            known = f"it has trials 0 to {len(trials) - 1}" if trials else "it has none yet"
            raise HpoError(f"Study {self.name!r} has no trial {trial}; {known}.")
        record = trials[trial]
        if record.abandoned is not None or record.stopped is not None:
            raise HpoError(f"Study {self.name!r}: trial {trial} is {record.status} already.")
        goes_on = record.running or record.waiting or trial in self.state.extended
        if not goes_on and trial in self.method.ruled_out:
            raise HpoError(f"Study {self.name!r}: trial {trial} will not go on anyway; there is nothing to give up.")
        self._take(AbandonRequested(trial))

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
        return self.finished or (self.state.halted is not None and self._next_further() is None)

    @property
    def _searching(self) -> bool:
        """Whether the search may go on by itself."""
        state = self.state
        if state.halted is not None:
            return False
        running = any(grant.rung != FURTHER for grant in state.running.values())
        return running or bool(state.waiting) or not isinstance(self.method.next_action(), Done)

    @property
    def _trains_further(self) -> bool:
        """Whether a job beyond the search runs."""
        return self.state.further_running > 0

    @property
    def status(self) -> str:
        """``finished``, ``halted`` (by a person or a rule; resumable) or ``open``."""
        if self.finished:
            return "finished"
        return "halted" if self.state.halted is not None else "open"

    @property
    def best(self) -> Incumbent | None:
        """The incumbent: best finite loss over all rungs."""
        return self.state.incumbent

    @property
    def front(self) -> list[Incumbent]:
        """The Pareto front over all rungs, ascending by loss; with one objective the incumbent alone."""
        return list(self.state.front)

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
        return [(grant.trial, grant.attempt) for grant in self.state.running.values() if grant.rung != FURTHER]

    def metric_value(self, loss: float) -> float:
        """A loss as the user's metric (``mode: max`` flipped back)."""
        return loss * self._sign

    def check(self) -> None:
        """Assert the invariants of state and method."""
        self.state.check()
        self.method.check()
        if self._checkpoints is not None:
            self._checkpoints.check()
        if self._budget is not None:
            self._budget.check()
        if self.state.capacity > len(self.state.running) and (further := self._next_further()) is not None:
            full = self._budget is not None and bool(self.state.running) and self._budget.over(1)
            assert full, f"a slot is idle although trial {further} is to be trained further"
        if self.state.halted is None and self.state.capacity > len(self.state.running):
            again, action = self._next_again()
            idle = again is None and not isinstance(action, Sample | Promote | Reproduce)
            idle = idle or (self._budget is not None and bool(self.state.running) and self._budget.over(1))
            idle = idle or (isinstance(action, Promote) and self.state.trials[action.trial].running)
            assert idle or self.seq == 0, f"a slot is idle although {action} could run"

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
            for event in self.decide(stimulus):
                self._apply(event)
                events.append(event)
            entry = Entry(self.seq, now, self.epoch, stimulus, tuple(events))
            if not events:
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
        """All policy: the facts that follow from a stimulus. Each must be applied before the next is drawn."""
        return self._deciders[type(stimulus)](stimulus)

    def _apply(self, event: Event) -> None:
        self.state.apply(event)
        if concerns_search(event):
            self.method.apply(event)
            self.sampler.apply(event)
        self.rules.apply(event, self.state)
        if self._budget is not None:
            self._budget.apply(event)
        elif self._checkpoints is not None:
            self._checkpoints.apply(event)

    def _granted(self, entry: Entry) -> list[Job]:
        return [self.state.job(event) for event in entry.events if type(event) is JobGranted]

    # Policy.

    def _on_study_requested(self, stimulus: StudyRequested) -> Iterator[Event]:
        yield StudyCreated(stimulus.spec)

    def _on_controller_started(self, stimulus: ControllerStarted) -> Iterator[Event]:
        yield ControllerChanged(stimulus.controller)
        yield CapacityChanged(0)
        if self.state.halted is not None and not stimulus.keep_halt:
            yield StudyReopened()
        for grant in list(self.state.running.values()):
            lost = Report(
                trial=grant.trial,
                attempt=grant.attempt,
                outcome=Outcome.LOST,
                message="the controller that ran this attempt is gone",
            )
            yield from self._failure(self.state.trials[grant.trial], grant, lost)

    def _on_capacity(self, stimulus: CapacityNoticed) -> Iterator[Event]:
        if stimulus.slots != self.state.capacity:
            yield CapacityChanged(stimulus.slots)
        yield from self._fill()

    def _on_asked(self, _: JobAsked) -> Iterator[Event]:
        yield from self._grant_one()
        yield from self._stop_rules()

    def _on_extension(self, stimulus: ExtensionRequested) -> Iterator[Event]:
        yield StudyExtended(stimulus.configs)
        if self.state.halted is not None:
            yield StudyReopened()
        yield from self._fill()

    def _on_training(self, stimulus: TrainingRequested) -> Iterator[Event]:
        start = self.checkpoints.further_start(stimulus.trial)
        yield TrialExtended(stimulus.trial, stimulus.target, start)
        yield from self._fill()

    def _on_stop(self, stimulus: StopRequested) -> Iterator[Event]:
        if self.state.halted is None or (self.state.extended and not self.state.further_held):
            yield StudyHalted(stimulus.reason)

    def _on_abandon(self, stimulus: AbandonRequested) -> Iterator[Event]:
        trial = self.state.trials[stimulus.trial]
        grant, reason = trial.granted, "a person abandoned it"
        assert grant is not None
        if trial.running:
            yield AttemptFailed(grant.trial, grant.attempt, grant.rung, grant.target, Outcome.PREEMPTED, reason)
        # where it was heading for, or where its result stands; training beyond the search is at no rung
        rung = trial.rung if grant.rung == FURTHER else grant.rung
        yield TrialAbandoned(trial.number, grant.bracket, rung, reason)
        while (fact := self.method.verdict()) is not None:
            yield fact

    def _on_tick(self, _: ClockTicked) -> Iterator[Event]:
        yield from self._stop_rules()
        if self.state.extended:
            yield from self._fill()

    def _stop_rules(self) -> Iterator[Event]:
        searching = self.state.halted is None and not self._trains_further
        due = self.rules.due(self.state) if searching else None
        if due is not None:
            yield StudyHalted(due[1], due[0])

    def _on_report(self, stimulus: AttemptReported) -> Iterator[Event]:
        report = stimulus.report
        grant = self.state.running.get(report.trial)
        if grant is None or grant.attempt != report.attempt:
            current = "none is running" if grant is None else f"attempt {grant.attempt} is running"
            yield ReportIgnored(report.trial, report.attempt, f"late: {current}")
            return
        if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            yield self._result(report, grant)
        else:
            yield from self._failure(self.state.trials[report.trial], grant, report)
        while (fact := self.method.verdict()) is not None:
            yield fact
        yield from self._stop_rules()
        yield from self._make_room(0)
        yield from self._fill()

    def _make_room(self, more: int, turn: int | None = None) -> Iterator[Event]:
        """Checkpoints go until ``more`` jobs fit into the budget for them, or nothing can go."""
        while self._budget is not None and (removal := self._budget.removal(more, turn)) is not None:
            yield removal

    def _result(self, report: Report, grant: JobGranted) -> JobCompleted:
        losses = tuple(report.metrics.get(name, math.nan) * sign for name, sign in self._objectives)
        there = [loss for (name, _), loss in zip(self._objectives, losses, strict=True) if name in report.metrics]
        finite = bool(there) and all(map(math.isfinite, there))
        if len(there) < len(losses) and not self.spec.any_metric:
            finite = False
        curve: tuple[tuple[int, float], ...] = ()
        if self.method.reads_curves and grant.rung != FURTHER:
            name, sign = self._objectives[0]
            curve = tuple((p.resource, p.metrics[name] * sign) for p in report.curve if name in p.metrics)
        return JobCompleted(
            report.trial, report.attempt, grant.bracket, grant.rung, grant.target,
            losses[0] if finite and losses[0] == losses[0] else None,
            report.metrics, report.checkpoint, report.worker, report.started, report.ended,
            losses if finite and len(losses) > 1 else (), curve,
        )  # fmt: skip

    def _failure(self, trial: TrialRecord, grant: JobGranted, report: Report) -> Iterator[Event]:
        yield AttemptFailed(
            grant.trial, grant.attempt, grant.rung, grant.target,
            report.outcome, report.message, report.worker, report.started, report.ended,
        )  # fmt: skip
        if report.outcome is Outcome.CHECKPOINT_BAD and grant.checkpoint is not None:
            yield CheckpointCondemned(self.state.owner_of(grant.trial, grant.checkpoint), grant.checkpoint.resource)
        if grant.rung == FURTHER:
            yield from self._further_failure(trial, grant, report)
        elif report.outcome is Outcome.STORAGE:
            if self.state.halted is None:
                yield StudyHalted(report.message)
        elif report.outcome is Outcome.LOST and self.spec.training.max_lost is not None:
            if report.worker:
                yield from self._loss(grant, report, self.spec.training.max_lost)
        elif retries_left(self.state, trial, report.outcome):
            pass
        elif report.outcome is Outcome.LOST:  # an attempt's fate, never a trial's: a person must look
            if self.state.halted is None:
                yield StudyHalted(
                    f"trial {grant.trial} lost its worker {len(trial.failures)} times at {grant.target}, the last "
                    f"time with: {report.message}"
                )
        else:
            failed = sum(failure.outcome == report.outcome for failure in trial.failures)
            times = "once" if failed == 1 else f"{failed} times"
            yield from self._give_up(grant, f"{report.outcome} {times}: {report.message}", report.message)

    def _loss(self, grant: JobGranted, report: Report, most: int) -> Iterator[Event]:
        """A trial lost its worker; the rule is that of :mod:`hpo_core.state.worker_losses`."""
        losses = self.state.losses
        count, patience = losses.count(grant.trial), self.spec.training.allowed(Outcome.LOST)
        ended, lost = losses.others(grant.trial)
        if losses.is_at_fault(grant.trial, most):
            times = "once" if count == 1 else f"{count} times"
            yield from self._give_up(
                grant,
                f"its worker or zygote died {times} while it ran; of the other trials meanwhile {ended} ended by "
                f"themselves and {lost} lost theirs: {report.message}",
                report.message,
            )
        elif count > patience and self.state.halted is None:
            yield StudyHalted(
                f"trial {grant.trial} lost its worker {count} times at {grant.target}, and other trials did no better; "
                f"the last time with: {report.message} If the trial itself is at fault: "
                f"hpo abandon {self.name} --trial {grant.trial}"
            )

    def _give_up(self, grant: JobGranted, reason: str, message: str) -> Iterator[Event]:
        yield TrialAbandoned(grant.trial, grant.bracket, grant.rung, reason)
        limit, state = self.spec.training.fail_fast, self.state
        if limit and not state.completed_jobs and state.abandoned_trials >= limit and not state.halted:
            yield StudyHalted(f"{state.abandoned_trials} trials failed before any succeeded, the last with: {message}")

    def _further_failure(self, trial: TrialRecord, grant: JobGranted, report: Report) -> Iterator[Event]:
        """A job beyond the search that is given up costs the trial nothing that it had."""
        if report.outcome is Outcome.STORAGE:
            yield StudyHalted(report.message)  # also where it is halted: this holds the job back as well
        elif not retries_left(self.state, trial, report.outcome):
            failed = sum(failure.outcome == report.outcome for failure in trial.failures)
            times = "once" if failed == 1 else f"{failed} times"
            target = self.state.extended[trial.number].target
            yield TrialExtensionEnded(trial.number, target, f"{report.outcome} {times}: {report.message}")

    def _propose(self, number: int) -> Params:
        try:
            return self.sampler.propose(number)
        except HpoError:
            raise
        except Exception as error:
            raise SpecError(
                f"Study {self.name!r}: sampler {self.spec.sampler.name} cannot propose trial {number}: "
                f"{type(error).__name__}: {error}. Nothing was recorded for it; mend the sampler's arguments or "
                "choose another one."
            ) from error

    def _fill(self) -> Iterator[Event]:
        state = self.state
        while len(state.running) < state.capacity:
            before = len(state.running)
            yield from self._grant_one()
            if len(state.running) == before:
                return
            if self._limits_resource:
                yield from self._stop_rules()

    def _grant_one(self) -> Iterator[Event]:
        running = len(self.state.running)
        yield from self._grant_by_search()
        if len(self.state.running) == running:
            yield from self._grant_further()

    def _grant_further(self) -> Iterator[Event]:
        """A job beyond the search, where there is nothing left to grant for the search."""
        state = self.state
        recorded = recorded_training(self.spec, self.state) if state.halted is None and not self._searching else None
        if recorded is not None:
            yield TrialExtended(*recorded, self.checkpoints.further_start(recorded[0]))
        number = self._next_further()
        if number is None:
            return
        if self._budget is not None:
            yield from self._make_room(1)
            if self._budget.over(1):
                if not state.running:
                    yield StudyHalted(self._budget.shortage())
                return
        trial, target = state.trials[number], state.extended[number].target
        again = bool(trial.failures) and trial.granted is not None and trial.granted.target == target
        start = self.checkpoints.further_start(number)
        yield JobGranted(number, trial.attempts, trial.bracket, FURTHER, target, start, again)

    def _next_further(self) -> int | None:
        """The trial whose training beyond the search can be granted now; None: there is none."""
        state = self.state
        if not state.extended or state.further_held or self._searching:
            return None
        return next_in_turn(state)

    def _grant_by_search(self) -> Iterator[Event]:
        state = self.state
        if state.halted is not None:
            return
        again, action = self._next_again()
        if self._budget is not None and (again is not None or isinstance(action, Sample | Promote | Reproduce)):
            loaded = action.trial if isinstance(action, Promote) else getattr(action, "parent", None)
            yield from self._make_room(1, loaded)
            if self._budget.over(1):
                if not state.running:
                    yield StudyHalted(self._budget.shortage())
                return
        if again is not None:
            trial = state.trials[again]
            failed = trial.granted
            assert failed is not None
            yield JobGranted(
                trial.number,
                trial.attempts,
                failed.bracket,
                failed.rung,
                failed.target,
                self._start_of(trial),
                True,
            )
            return
        if isinstance(action, Promote):
            trial = state.trials[action.trial]
            if trial.running:
                return  # a person has it trained further meanwhile, and a trial has one job at a time
            start = state.start_of(action.trial)
            yield JobGranted(action.trial, trial.attempts, action.bracket, action.rung, action.target, start)
        elif isinstance(action, Sample):
            number = len(state.trials)
            yield TrialCreated(number, action.bracket, self._propose(number))
            yield JobGranted(number, 0, action.bracket, action.rung, action.target, None)
        elif isinstance(action, Reproduce):
            number = len(state.trials)
            params = self._propose(number) if action.params is None else action.params
            yield TrialCreated(number, 0, params, action.parent)
            yield Reproduced(number, action.initiator, action.opponent, action.parent, action.member, action.generation)
            yield JobGranted(number, 0, 0, action.generation, action.target, self._start_of(state.trials[number]))

    def _next_again(self) -> tuple[int | None, Action]:
        """The trial to be tried again now, or None, and what the method wants instead.

        Failed ones come first, but those that keep losing their workers let other work go before them.
        """
        waiting = self.state.waiting
        if not waiting:
            return None, self.method.next_action()
        most, losses = self.spec.training.max_lost, self.state.losses
        if most is None:
            return waiting[0], WAIT
        ready = next((number for number in waiting if not losses.defers(number, most)), None)
        if ready is None and len(waiting) <= MOST_DEFERRED:
            action = self.method.next_action()
            if self.state.running or isinstance(action, Sample | Promote | Reproduce):
                return None, action
        return (waiting[0] if ready is None else ready), WAIT

    def _start_of(self, trial: TrialRecord) -> Checkpoint | None:
        """Ancestors are asked only where trial and parent have nothing to load; the oldest ones are removed already."""
        parent = None if trial.parent is None else self.state.trials[trial.parent]
        if trial.checkpoint() is not None or parent is None or parent.checkpoint() is not None:
            return self.state.start_of(trial.number)
        return self.state.start_of(trial.number, set(self.method.ruled_out))
