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

from hpo_core.checkpoints.retention import LiveCheckpoints
from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import Journal, damaged_entry
from hpo_core.model.devices.inventory import Inventory
from hpo_core.model.errors import HpoError, JournalError, SpecError
from hpo_core.model.events import (
    AbandonRequested,
    AttemptReported,
    CapacityNoticed,
    ClockTicked,
    ConfigurationRequested,
    ControllerStarted,
    Entry,
    Event,
    ExtensionRequested,
    JobAsked,
    JobGranted,
    JobPlaced,
    PlacementsNoticed,
    Stimulus,
    StopRequested,
    StudyRequested,
)
from hpo_core.model.features import feature
from hpo_core.model.trial import Checkpoint, Job, Report
from hpo_core.samplers.sampler import RecordedSampler, Sampler
from hpo_core.search.method import Finish
from hpo_core.spec import StudySpec
from hpo_core.state import Incumbent
from hpo_core.study.decider import (
    Decider,
    check_abandoned,
    checked_configuration,
    is_known,
    told_report,
)
from hpo_core.study.job_grants import Grants
from hpo_core.study.parts import StudyParts

if TYPE_CHECKING:
    import optuna


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
        self.parts = StudyParts(spec, sampler)
        self.state, self.method = self.parts.state, self.parts.method
        self.sampler, self.rules = self.parts.sampler, self.parts.rules
        self.name = spec.study
        self.journal = journal
        self.epoch = epoch
        """Number of the controller that drives it, as the journal's ``claim`` gave it; entries carry it."""
        self.seq = 0
        """Number of entries applied; the next entry gets this number."""
        self._clock = clock
        self._broken = ""
        self.has_time_rule = spec.stop.seconds is not None
        """True if a stop rule depends on time."""
        self._grants = Grants(self.parts)
        self._decider = Decider(self.parts, self._grants)

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
        valid = (
            spec
            if isinstance(spec, StudySpec)
            else StudySpec.from_plain(
                dict(spec) if isinstance(spec, Mapping) else spec  # what is no mapping is refused there
            )
        )
        if valid.warm_start is not None and valid.warm_start.past is None:
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
        study._decide_and_record(StudyRequested(valid.plain()))
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
    def current_spec(cls, name: str, journal: Journal) -> StudySpec:
        """The description of a recorded study, with the training function that it was given last."""
        spec = cls.open(name, journal, at=0).spec
        for entry in journal.entries(name, 1):
            if isinstance(entry.stimulus, ControllerStarted) and entry.stimulus.objective:
                spec = spec.model_copy(update={"objective": entry.stimulus.objective})
        return spec

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
            self.rules.count_time(entry.stimulus, entry.time)
            for event in entry.events:
                self.parts.apply(event)
        except HpoError:
            raise
        except Exception as error:
            raise damaged_entry(self.name, entry.seq, error) from error
        self.seq += 1

    # What a loop asks and tells.

    def ask(self) -> Job | None:
        """One job to train, or None while there is nothing to do (or nothing more: see :attr:`finished`)."""
        return next(iter(self._decide_and_record(JobAsked())), None)

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

        Args:
            metrics: by name.

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
        return self._decide_and_record(AttemptReported(report))

    def set_capacity(self, capacity: int | Inventory) -> list[Job]:
        """Set what jobs can run on: from now on every report is answered with new jobs up to it.

        Less capacity than running jobs ends none of them. 0 (the start) is for loops by hand.

        Args:
            capacity: devices with their slots; a number means so many slots of one device.

        Raises:
            HpoError: it is neither, or below 0.
        """
        inventory = capacity if isinstance(capacity, Inventory) else self._slots(capacity)
        if inventory == self.state.inventory and self.state.slots_in_use >= self.state.capacity:
            return []
        return self._decide_and_record(CapacityNoticed(inventory))

    def _slots(self, count: Any) -> Inventory:
        try:
            return Inventory.of(operator.index(count))  # also an integer of numpy
        except (TypeError, ValueError):
            raise HpoError(
                f"Study {self.name!r}: set_capacity({count!r}): give the number of jobs that can run at once, 0 or "
                "more."
            ) from None

    def now(self) -> float:
        return self._clock()

    def note_placements(self, placements: Sequence[JobPlaced]) -> None:
        """Record where running jobs are, for people; no decision follows. Nothing for those that do not run."""
        if placements:
            self._decide_and_record(PlacementsNoticed(tuple(placements)))

    def recover(self, controller: str, *, objective: str = "") -> list[Job]:
        """A new controller begins: attempts of the one before it are lost, their jobs wanted again.

        Args:
            objective: the training function from here on; empty: the same as before.
        """
        return self._decide_and_record(ControllerStarted(controller, objective))

    def tick(self) -> None:
        """Check stop rules about time; records nothing unless one is due."""
        if self.state.halted is None and self.rules.due(self.state, self._clock()):
            self._decide_and_record(ClockTicked())

    def note_standstill(self, seconds: float) -> None:
        """The controller did not run for so long; noted where a stop rule about time would count it."""
        if self.has_time_rule and self.state.halted is None:
            self._decide_and_record(ClockTicked(round(seconds, 3)))

    def seconds_to_rule(self) -> float | None:
        """Seconds of the study's clock until a stop rule about time is due; None: there is none to wait for."""
        if not self.has_time_rule or self.state.halted is not None:
            return None
        return self.rules.seconds_left(self._clock())

    # What a person asks for.

    def extend(self, configs: int) -> list[Job]:
        if configs < 1:
            raise HpoError(f"extend(configs={configs}): give at least 1 further configuration.")
        if refusal := self.refuse_extension():
            raise HpoError(refusal)
        return self._decide_and_record(ExtensionRequested(configs))

    def enqueue(self, params: Mapping[str, Any], *, skip_if_exists: bool = False) -> list[Job]:
        """Have a configuration tried next: the next one that the search samples, after those enqueued before.

        It counts as one of the configurations of the study, but in a grid, which gets one more. Where the search has
        sampled all it wants, the queue waits for :meth:`extend`.

        Args:
            params: values by name; those left out are the sampler's to add.
            skip_if_exists: do nothing where a trial, or one in the queue, has these values already.

        Returns:
            Jobs granted in turn (see :meth:`set_capacity`).

        Raises:
            HpoError: the study takes no configurations (a rerun), or the space does not take these values.
        """
        if self.state.exhausted:
            raise HpoError(f"{self.refuse_extension()}")
        given = checked_configuration(self.spec, params)
        if skip_if_exists and is_known(self.state, given):
            return []
        return self._decide_and_record(ConfigurationRequested(given))

    def refuse_extension(self) -> str | None:
        """Why the study takes no more configurations; None: it takes them."""
        if self.state.exhausted:
            return (
                f"Study {self.name!r}: {self.spec.sampler.name} has no further configurations; all "
                f"{len(self.state.trials)} were tried. Start a new study with a larger space or another sampler."
            )
        return self.spec.search.refuse_extension(self.name, self.method)

    def stop(self, reason: str) -> None:
        """Grant no further jobs until the study is recovered or extended."""
        self._decide_and_record(StopRequested(reason))

    def abandon(self, trial: int) -> None:
        """Give a trial up, whether it runs, waits to be tried again, or stands at a rung.

        Grants nothing by itself; whoever drives the study goes on as usual.

        Raises:
            HpoError: there is no such trial, or nothing is left of it to give up.
        """
        check_abandoned(self.state, self.name, trial, ruled_out=self.method.ruled_out)
        self._decide_and_record(AbandonRequested(trial))

    # Questions.

    @property
    def spec(self) -> StudySpec:
        return self.parts.spec

    @property
    def best(self) -> Incumbent | None:
        """The incumbent: best finite loss, of all rungs or of the highest one, as ``best_of`` of the study says."""
        return self.state.incumbent

    @property
    def best_of_all_rungs(self) -> Incumbent | None:
        """Best finite loss over the results of all rungs (ASHA 3.3: intermediate losses count)."""
        return self.state.best_of_all.incumbent

    @property
    def best_of_highest_rung(self) -> Incumbent | None:
        """Best finite loss among the results at the largest resource that has one.

        A smaller sample, compared at equal training: the better choice where the winner is trained on.
        """
        return self.state.best_of_highest_rung.incumbent

    @property
    def front(self) -> list[Incumbent]:
        """The Pareto front by ``best_of``, ascending by loss; with one objective the incumbent alone."""
        return list(self.state.front)

    def metric_value(self, loss: float) -> float:
        """A loss as the user's metric (``mode: max`` flipped back)."""
        return loss * self.spec.metric.sign

    def demand(self, most: int) -> int:
        """Slots that it could use now: of running jobs, of those to be tried again, and of those it could grant.

        The size of the stack of jobs (Li et al. 2020, 5.3), times kappa where trials grow. Counted up to ``most``, so
        that a study without an end costs no more than another.
        """
        size = self.parts.sizes.demanded(most)
        state, slots = self.state, self.state.slots_in_use
        if state.halted is not None:
            return min(most, slots)
        again = (state.trials[number].granted for number in state.waiting)
        slots += sum(grant.demand.slots for grant in again if grant is not None)  # as many as before
        jobs = self.method.grantable(-(-max(0, most - slots) // size))
        left = self.rules.resource_left(state)
        if left is not None:
            jobs = min(jobs, max(0, left - state.resource_running))
        return min(most, slots + self._grants.fitting(jobs) * size)

    def spare(self, most: int) -> int:
        """Slots beyond its demand that it could use once a job ends, counted up to ``most``: where trials grow.

        A trial that is promoted as its job ends may have kappa slots, where its job had fewer.
        """
        if self.state.halted is not None:
            return 0
        return max(0, min(most, self.parts.sizes.grown(most)) - self.state.slots_in_use)

    @property
    def job_slots(self) -> int:
        """Slots that the next job needs; one that grows needs one and takes more."""
        return self.parts.sizes.least()

    @property
    def finished(self) -> bool:
        """True if no job runs and none will be granted any more."""
        state = self.state
        return not (state.running or state.waiting) and isinstance(self.method.next_action(), Finish)

    @property
    def at_rest(self) -> bool:
        """True if nothing will be granted, unless somebody asks for more or resumes the study."""
        return self.finished or self.state.halted is not None

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
        budget = self.parts.budget
        if budget is None or self.state.halted is None or self.state.running:
            return ""
        if not budget.over(1) or budget.removal(1) is not None:
            return ""
        name, least = budget.least
        return f"checkpoints.{name}={least}"

    @property
    def checkpoints(self) -> LiveCheckpoints:
        return self.parts.checkpoints

    def to_optuna(self, storage: Any = None, name: str | None = None) -> optuna.Study:
        """A copy as an Optuna study, for Optuna's figures: all trials as they are now.

        Args:
            storage: a storage of Optuna or its URL; default: in memory.
            name: of the Optuna study, which must be new; default: this study's.
        """
        entries = self.journal.entries(self.name, 0, self.seq)
        copied: optuna.Study = feature("Optuna", "optuna_trials").copy_to_optuna(
            entries, storage, name or self.name, ended=self.status != "open"
        )
        return copied

    def check(self) -> None:
        self.parts.check()
        if self.seq:
            self._grants.check()

    # One entry.

    def _decide_and_record(self, stimulus: Stimulus) -> list[Job]:
        # Decide what follows, apply it, append the entry to the journal; returns the jobs that it granted.
        if self._broken:
            raise JournalError(
                f"Study {self.name!r} could not record its last decision ({self._broken}) and is closed. "
                "Mend the cause, then open the study again: nothing recorded is lost."
            )
        now = self._clock()
        self.rules.count_time(stimulus, now)
        events: list[Event] = []
        try:
            for event in self._decider.decide(stimulus):
                self.parts.apply(event)
                events.append(event)
            entry = Entry(self.seq, now, self.epoch, stimulus, tuple(events))
            if not (events or (isinstance(stimulus, ClockTicked) and stimulus.stood_still)):
                return []  # nothing was decided, nothing is recorded
            if self.seq:
                self.journal.append(self.name, entry)
            else:
                self.journal.create(self.name, entry)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise
        self.seq += 1
        return [self.state.job(event) for event in events if type(event) is JobGranted]

    def decide(self, stimulus: Stimulus) -> Iterator[Event]:
        """The facts that follow from a stimulus. Each must be applied before the next is drawn."""
        return self._decider.decide(stimulus)
