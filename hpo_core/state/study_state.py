"""StudyState: all facts of a study, folded from its events. ``apply`` is the only mutator.

Statuses are computed from facts, never stored beside them. Nothing here decides, draws or does IO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import msgspec

from hpo_core.model.devices.inventory import EMPTY, Inventory
from hpo_core.model.events import (
    AttemptFailed,
    CapacityChanged,
    CeilingRaised,
    CheckpointCondemned,
    CheckpointRemoved,
    ConfigurationEnqueued,
    ControllerChanged,
    Event,
    JobCompleted,
    JobGranted,
    JobPlaced,
    ReportIgnored,
    Reproduced,
    SamplerExhausted,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialCreated,
    TrialExtended,
    TrialExtensionEnded,
    TrialStopped,
)
from hpo_core.model.trial import Checkpoint, Further, Job, Outcome, Params, Stage
from hpo_core.spec import StudySpec
from hpo_core.state.best_results import BestResults, Incumbent
from hpo_core.state.invariants import check_state
from hpo_core.state.measured_speeds import MeasuredSpeeds, unit_seconds
from hpo_core.state.trial_record import TrialRecord
from hpo_core.state.worker_losses import Losses


class StudyState:
    """The fold of a study's events."""

    def __init__(self) -> None:
        self.spec: StudySpec | None = None
        self.trials: list[TrialRecord] = []
        self.running: dict[int, JobGranted] = {}
        """Grants that await a report, by trial, oldest first."""
        self.slots_in_use = 0
        """Slots that they demand together."""
        self.speeds: MeasuredSpeeds | None = None
        """How fast gangs trained; None where nobody asks (``gang: auto`` without ``scaling.speedups``)."""
        self.placed: dict[int, JobPlaced] = {}
        """Running attempts that have a share of a device, by trial; with ``packing`` the others wait for one."""
        self.waiting: deque[int] = deque()
        """Trials whose last attempt failed and whose job is wanted again, oldest first."""
        self.inventory: Inventory = EMPTY
        """What jobs can run on."""
        self.capacity = 0
        """Slots of the inventory: jobs of one slot that can run at once."""
        self.queue: deque[Params] = deque()
        """Configurations that are sampled next, perhaps in part: ``start_with``, then what was enqueued."""
        self.requests: set[str] = set()
        """Requests of other processes that were enqueued (``hpo enqueue``)."""
        self.extra_configs = 0
        self.controller = ""
        self.halted: StudyHalted | None = None
        self.exhausted = False
        """Whether the sampler has no further configurations."""
        self.best_of_all = BestResults()
        """Over the results of all rungs (ASHA 3.3: intermediate losses count)."""
        self.best_of_highest_rung = BestResults(highest_rung=True)
        """Over those of the highest rung that has one."""
        self._best = self.best_of_all
        self.completed_jobs = 0
        self.finite_results = 0
        """Completed jobs with a finite value; the others diverged."""
        self.reopened_at = 0
        """Trials that there were when the study was resumed after a halt (0: it never was)."""
        self.abandoned_trials = 0
        self.infeasible_results = 0
        """Finite results that violate a constraint; none of them is the incumbent or in the front."""
        self.failed_attempts = 0
        self.ignored_reports = 0
        self.resource_used = 0
        """Units of training behind all results (what was trained, not what was repeated)."""
        self.resource_running = 0
        """Units that running jobs will add to it."""
        self.further_used = 0
        """Units of :attr:`resource_used` that were trained beyond the search."""
        self.further_running = 0
        """Units of :attr:`resource_running` that are trained beyond the search."""
        self.extended: dict[int, TrialExtended] = {}
        """By trial: training beyond the search that is wanted and not done, in the order it was asked for."""
        self.further_held = False
        """Whether no training beyond the search is granted: a person halted the study since it was asked for."""
        self.losses = Losses()
        self.ceilings: list[CeilingRaised] = []
        self.has_members = False
        """Whether trials are sessions of a population's members (PBT, or a rerun of it)."""
        self.reproduced: dict[int, Reproduced] = {}
        """By child: how it came to be (PBT)."""
        self._appliers = {
            StudyCreated: self._created,
            ControllerChanged: self._controller_changed,
            CapacityChanged: self._capacity_changed,
            ConfigurationEnqueued: self._configuration_enqueued,
            TrialCreated: self._trial_created,
            Reproduced: self._reproduced,
            JobGranted: self._job_granted,
            JobPlaced: self._job_placed,
            JobCompleted: self._job_completed,
            AttemptFailed: self._attempt_failed,
            CheckpointCondemned: self._checkpoint_condemned,
            TrialAbandoned: self._trial_abandoned,
            CheckpointRemoved: self._checkpoint_removed,
            TrialStopped: self._trial_stopped,
            CeilingRaised: self._ceiling_raised,
            ReportIgnored: self._report_ignored,
            StudyExtended: self._extended,
            TrialExtended: self._trial_extended,
            TrialExtensionEnded: self._trial_extension_ended,
            SamplerExhausted: self._sampler_exhausted,
            StudyHalted: self._halted,
            StudyReopened: self._reopened,
        }

    @property
    def incumbent(self) -> Incumbent | None:
        """The best result by the study's rule (``best_of``)."""
        return self._best.incumbent

    @property
    def front(self) -> list[Incumbent]:
        """The Pareto front by the study's rule; with one objective the incumbent alone."""
        return self._best.front

    def apply(self, event: Event) -> None:
        """Take over one fact. Total: a recorded fact is never refused."""
        self._appliers[type(event)](event)  # type: ignore[operator]
        self.losses.apply(event)

    def member_of(self, trial: int) -> int:
        """The trial's place in the population (PBT); trials of the first generation are numbered by theirs."""
        born = self.reproduced.get(trial)
        return trial if born is None else born.member

    def _created(self, event: StudyCreated) -> None:
        self.spec = StudySpec.from_journal(event.spec)
        self.has_members = self.spec.search.outline().members
        if self.spec.grows and not self.spec.scaling.speedups and not self.spec.hops:
            self.speeds = MeasuredSpeeds()
        self._best = self.best_of_highest_rung if self.spec.best_of == "highest_rung" else self.best_of_all
        self.queue.extend(self.spec.first_configurations)

    def _controller_changed(self, event: ControllerChanged) -> None:
        self.controller = event.controller

    def _capacity_changed(self, event: CapacityChanged) -> None:
        self.inventory = event.inventory
        self.capacity = event.inventory.slots

    def _configuration_enqueued(self, event: ConfigurationEnqueued) -> None:
        self.queue.append(event.params)
        if event.request is not msgspec.UNSET:
            self.requests.add(event.request)

    def _trial_created(self, event: TrialCreated) -> None:
        if event.queued:
            self.queue.popleft()
        base = 0 if event.parent is None else self.trials[event.parent].searched
        queued = event.queued is True
        self.trials.append(
            TrialRecord(event.trial, event.bracket, event.params, event.parent, queued=queued, base=base)
        )

    def _reproduced(self, event: Reproduced) -> None:
        self.reproduced[event.child] = event

    def _job_granted(self, event: JobGranted) -> None:
        trial = self.trials[event.trial]
        if event.retry and event.trial in self.waiting:
            self.waiting.remove(event.trial)
        trial.attempts = event.attempt + 1
        trial.granted = event
        trial.running = True
        self.running[event.trial] = event
        self.slots_in_use += event.demand.slots
        if self.speeds is not None and event.demand.slots > 1:
            self.speeds.has_gangs = True
        units = self._units(event.trial, event.stage, event.target)
        self.resource_running += units
        if type(event.stage) is Further:
            self.further_running += units

    def _job_placed(self, event: JobPlaced) -> None:
        self.placed[event.trial] = event

    def _units(self, number: int, stage: Stage, target: int) -> int:
        """Return the units that a job to ``target`` trains for the first time, in all seed repeats together."""
        trial = self.trials[number]
        repeats = 1 if self.spec is None else self.spec.repeats
        return repeats * (target - (trial.resource if type(stage) is Further else trial.searched))

    def _no_longer_runs(self, number: int, stage: Stage, target: int) -> int:
        """Returns the units of the job."""
        units = self._units(number, stage, target)
        self.slots_in_use -= self.running.pop(number).demand.slots
        self.placed.pop(number, None)
        self.trials[number].running = False
        self.resource_running -= units
        if type(stage) is Further:
            self.further_running -= units
        return units

    def _job_completed(self, event: JobCompleted) -> None:
        trial = self.trials[event.trial]
        if self.speeds is not None:
            self._measure_speed(self.speeds, event)
        units = self._no_longer_runs(event.trial, event.stage, event.resource)
        trial.failures = ()
        self.resource_used += units
        if type(event.stage) is Further:
            self.further_used += units
            trial.further += (event,)
        else:
            trial.results += (event,)
        wanted = self.extended.get(event.trial)
        if wanted is not None and wanted.target <= trial.resource:
            del self.extended[event.trial]
        self.completed_jobs += 1
        loss = event.loss
        if loss is not None or event.losses:
            self.finite_results += 1
        if loss is None:
            return
        if event.infeasible:
            self.infeasible_results += 1
            return
        self.best_of_all.take(event, trial.searched)
        self.best_of_highest_rung.take(event, trial.searched)

    def _measure_speed(self, speeds: MeasuredSpeeds, event: JobCompleted) -> None:
        grant = self.running[event.trial]
        begun = 0 if grant.checkpoint is None else grant.checkpoint.resource
        seconds = unit_seconds(event, event.resource - begun)
        if seconds is not None:
            speeds.count(event.trial, slots=grant.demand.slots, seconds=seconds)

    def _attempt_failed(self, event: AttemptFailed) -> None:
        trial = self.trials[event.trial]
        self._no_longer_runs(event.trial, event.stage, event.target)
        trial.failures += (event,)
        if type(event.stage) is not Further:
            self.waiting.append(event.trial)
        self.failed_attempts += 1

    def _checkpoint_condemned(self, event: CheckpointCondemned) -> None:
        trial = self.trials[event.trial]
        trial.condemned |= {event.resource}

    def _checkpoint_removed(self, event: CheckpointRemoved) -> None:
        trial = self.trials[event.trial]
        trial.condemned |= {event.resource}
        trial.removed += (event,)

    def _trial_stopped(self, event: TrialStopped) -> None:
        trial = self.trials[event.trial]
        trial.stopped = event
        if trial.running:
            assert trial.granted is not None
            self._no_longer_runs(event.trial, trial.granted.stage, trial.granted.target)
        if event.trial in self.waiting:
            self.waiting.remove(event.trial)

    def _ceiling_raised(self, event: CeilingRaised) -> None:
        self.ceilings.append(event)

    def _trial_abandoned(self, event: TrialAbandoned) -> None:
        self.trials[event.trial].abandoned = event
        if event.trial in self.waiting:
            self.waiting.remove(event.trial)
        self.extended.pop(event.trial, None)
        self.abandoned_trials += 1

    def _report_ignored(self, _: ReportIgnored) -> None:
        self.ignored_reports += 1

    def _extended(self, event: StudyExtended) -> None:
        self.extra_configs += event.configs

    def _trial_extended(self, event: TrialExtended) -> None:
        self.extended[event.trial] = event
        self.further_held = False
        if not self.trials[event.trial].running:  # asked for anew: what failed before counts no longer
            self.trials[event.trial].failures = ()

    def _trial_extension_ended(self, event: TrialExtensionEnded) -> None:
        trial = self.trials[event.trial]
        del self.extended[event.trial]
        trial.failures = ()
        trial.given_up += (event,)

    def _sampler_exhausted(self, _: SamplerExhausted) -> None:
        self.exhausted = True

    def _halted(self, event: StudyHalted) -> None:
        self.halted = event
        self.further_held = self.further_held or not event.rule

    def _reopened(self, _: StudyReopened) -> None:
        self.halted = None
        self.further_held = False
        self.reopened_at = len(self.trials)

    def start_of(self, number: int, removed: Container[int] = ()) -> Checkpoint | None:
        """Return where the trial's next attempt starts: its own checkpoint, else its nearest ancestor's, else None.

        Args:
            removed: trials whose checkpoints were removed, and those of all their ancestors with them.
        """
        trial = self.trials[number]
        while (checkpoint := trial.checkpoint()) is None and trial.parent is not None and trial.parent not in removed:
            trial = self.trials[trial.parent]
        return checkpoint

    def owner_of(self, number: int, checkpoint: Checkpoint) -> int:
        """The trial, this one or an ancestor, whose result a checkpoint is."""
        trial = self.trials[number]
        while trial.parent is not None and all(r.checkpoint != checkpoint for r in trial.all_results):
            trial = self.trials[trial.parent]
        return trial.number

    def loaded(self, number: int) -> Checkpoint | None:
        """Return what the running attempt started from, or what the one to be repeated can start from again."""
        trial = self.trials[number]
        start = trial.granted.checkpoint if trial.granted is not None else None
        if start is None or trial.running:
            return start if trial.running else None
        good = trial.waiting and start.resource not in self.trials[self.owner_of(number, start)].condemned
        return start if good else None

    def job(self, grant: JobGranted) -> Job:
        """The job behind a grant."""
        parent = None
        if grant.checkpoint is not None and self.trials[grant.trial].parent is not None:
            owner = self.owner_of(grant.trial, grant.checkpoint)
            parent = owner if owner != grant.trial else None
        assert self.spec is not None
        params = self.spec.constants | self.trials[grant.trial].params
        return Job(
            grant.trial,
            grant.attempt,
            grant.stage,
            target=grant.target,
            params=params,
            checkpoint=grant.checkpoint,
            retry=grant.retry,
            parent=parent,
            demand=grant.demand,
        )

    def wanted(self) -> list[Job]:
        """All jobs that should be running now, oldest first. Executors make this true."""
        return [self.job(grant) for grant in self.running.values()]

    def trains(self, number: int) -> bool:
        """Whether the trial's job runs: not where it was granted and waits for its place on a shared device."""
        if self.spec is None or not self.spec.packs:
            return number in self.running
        return number in self.placed

    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint behind the incumbent's result; None where it has none, or it is condemned."""
        return self._checkpoint_of(self.incumbent) if self.incumbent is not None else None

    def front_checkpoints(self) -> list[tuple[Incumbent, Checkpoint]]:
        """The members of the front that have a checkpoint, with it; the incumbent is the first member."""
        found = [(member, self._checkpoint_of(member)) for member in self.front]
        return [(member, checkpoint) for member, checkpoint in found if checkpoint is not None]

    def _checkpoint_of(self, member: Incumbent) -> Checkpoint | None:
        trial = self.trials[member.trial]
        for result in trial.all_results:
            if result.resource == member.resource and result.checkpoint is not None:
                return None if result.checkpoint.resource in trial.condemned else result.checkpoint
        return None

    def check(self) -> None:
        """Assert every invariant; tests call it after each event."""
        check_state(self)


def retries_left(state: StudyState, trial: TrialRecord, outcome: Outcome) -> bool:
    """Whether the failure just added may be followed by another attempt at the same target."""
    assert state.spec is not None
    same = sum(
        failure.outcome == outcome and (outcome is not Outcome.LOST or failure.worker != "")
        for failure in trial.failures  # a controller that went away (no worker named) says nothing at all
    )
    return same <= state.spec.training.allowed(outcome)
