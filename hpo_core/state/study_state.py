"""StudyState: all facts of a study, folded from its events. ``apply`` is the only mutator.

Statuses are computed from facts, never stored beside them. Nothing here decides, draws or does IO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

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
    SlotFreed,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.model.trial import Checkpoint, Job, Outcome, Params
from hpo_core.spec import StudySpec
from hpo_core.state.best_results import BestResults, Incumbent
from hpo_core.state.measured_speeds import MeasuredSpeeds
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
        """Slots that the running jobs demand together."""
        self.without_slot: set[int] = set()
        """Running trials whose checkpoint is being written: another job has their slot."""
        self.speeds: MeasuredSpeeds | None = None
        """Measured speeds of gangs; None where nobody asks (``gang: auto`` without ``scaling.speedups``)."""
        self.placed: dict[int, JobPlaced] = {}
        """Running attempts that have a share of a device, by trial; with ``packing`` the others wait for one."""
        self.waiting: deque[int] = deque()
        """Trials whose last attempt failed and whose job is wanted again, oldest first."""
        self.inventory: Inventory = EMPTY
        """Devices that jobs can run on."""
        self.capacity = 0
        """Slots of the inventory: jobs of one slot that can run at once."""
        self.queue: deque[Params] = deque()
        """Configurations that are sampled next, perhaps in part: ``start_with``, then what was enqueued."""
        self.extra_configs = 0
        self.controller = ""
        self.halted: StudyHalted | None = None
        self.exhausted = False
        """True if the sampler has no further configurations."""
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
        self.has_worked = False
        """A job was completed since the study began or was last taken up: the training function can work."""
        self.failed_first = 0
        """Trials that were abandoned since then, before that job."""
        self.infeasible_results = 0
        """Finite results that violate a constraint; none of them is the incumbent or in the front."""
        self.failed_attempts = 0
        self.ignored_reports = 0
        self.resource_used = 0
        """Units of training behind all results (what was trained, not what was repeated)."""
        self.resource_running = 0
        """Units that running jobs will add to it."""
        self.losses = Losses()
        self.ceilings: list[CeilingRaised] = []
        self.has_members = False
        """True if trials are sessions of a population's members (PBT, or a rerun of it)."""
        self.reproduced: dict[int, Reproduced] = {}
        """By child: how it came to be (PBT)."""

    @property
    def incumbent(self) -> Incumbent | None:
        return self._best.incumbent

    @property
    def front(self) -> list[Incumbent]:
        return self._best.front

    def apply(self, event: Event) -> None:
        match event:
            case JobGranted():
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
                self.resource_running += event.target - trial.resource
            case JobCompleted():
                trial = self.trials[event.trial]
                self.losses.ended(event.trial)
                self.losses.forget(event.trial)
                if self.speeds is not None:
                    self.speeds.measure(event, self.running[event.trial])
                self.resource_used += self._no_longer_runs(trial, event.resource)
                trial.failures = ()
                trial.results += (event,)
                self.completed_jobs += 1
                self.has_worked = True
                self.finite_results += event.loss is not None or bool(event.losses)
                if event.loss is not None and event.violation:
                    self.infeasible_results += 1
                elif event.loss is not None:
                    self.best_of_all.take(event)
                    self.best_of_highest_rung.take(event)
            case TrialCreated():
                if event.queued:
                    self.queue.popleft()
                base = 0 if event.parent is None else self.trials[event.parent].resource
                queued = event.queued is True
                self.trials.append(
                    TrialRecord(event.trial, event.bracket, event.params, event.parent, queued=queued, base=base)
                )
            case Reproduced():
                self.reproduced[event.child] = event
            case JobPlaced():
                self.placed[event.trial] = event
            case SlotFreed():
                self.without_slot.add(event.trial)
                self.slots_in_use -= self.running[event.trial].demand.slots
            case AttemptFailed():
                self.losses.failed(event)
                trial = self.trials[event.trial]
                self._no_longer_runs(trial, event.target)
                trial.failures += (event,)
                self.waiting.append(event.trial)
                self.failed_attempts += 1
            case CheckpointCondemned():
                self.trials[event.trial].condemned |= {event.resource}
            case CheckpointRemoved():
                trial = self.trials[event.trial]
                trial.condemned |= {event.resource}
                trial.removed += (event,)
            case TrialStopped():
                self.losses.forget(event.trial, stays=False)
                trial = self.trials[event.trial]
                trial.stopped = event
                if trial.running:
                    assert trial.granted is not None
                    self._no_longer_runs(trial, trial.granted.target)
                if event.trial in self.waiting:
                    self.waiting.remove(event.trial)
            case TrialAbandoned():
                self.losses.forget(event.trial, stays=False)
                self.trials[event.trial].abandoned = event
                if event.trial in self.waiting:
                    self.waiting.remove(event.trial)
                self.abandoned_trials += 1
                self.failed_first += not self.has_worked
            case CeilingRaised():
                self.ceilings.append(event)
            case ReportIgnored():
                self.ignored_reports += 1
            case CapacityChanged():
                self.inventory = event.inventory
                self.capacity = event.inventory.slots
            case ConfigurationEnqueued():
                self.queue.append(event.params)
            case StudyExtended():
                self.extra_configs += event.configs
            case SamplerExhausted():
                self.exhausted = True
            case StudyHalted():
                self.halted = event
            case StudyReopened():
                self.halted = None
                self.reopened_at = len(self.trials)
            case ControllerChanged():
                self.controller = event.controller
                self.losses = Losses(self.losses.enders)
                self.has_worked, self.failed_first = False, 0
            case StudyCreated():
                self.spec = spec = StudySpec.from_journal(event.spec)
                self.has_members = spec.search.outline().members
                if spec.measures_speedups:
                    self.speeds = MeasuredSpeeds()
                self._best = self.best_of_highest_rung if spec.best_of == "highest_rung" else self.best_of_all
                self.queue.extend(spec.start_with)

    def _no_longer_runs(self, trial: TrialRecord, target: int) -> int:
        units = target - trial.resource
        slots = self.running.pop(trial.number).demand.slots
        if trial.number in self.without_slot:
            self.without_slot.remove(trial.number)
        else:
            self.slots_in_use -= slots
        self.placed.pop(trial.number, None)
        trial.running = False
        self.resource_running -= units
        return units

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
        trial = self.trials[number]
        while trial.parent is not None and all(r.checkpoint != checkpoint for r in trial.results):
            trial = self.trials[trial.parent]
        return trial.number

    def loaded(self, number: int) -> Checkpoint | None:
        trial = self.trials[number]
        start = trial.granted.checkpoint if trial.granted is not None else None
        if start is None or trial.running:
            return start if trial.running else None
        good = trial.waiting and start.resource not in self.trials[self.owner_of(number, start)].condemned
        return start if good else None

    def job(self, grant: JobGranted) -> Job:
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
        return [self.job(grant) for grant in self.running.values()]

    def trains(self, number: int) -> bool:
        if self.spec is None or not self.spec.packs:
            return number in self.running
        return number in self.placed

    def best_checkpoint(self) -> Checkpoint | None:
        return self._checkpoint_of(self.incumbent) if self.incumbent is not None else None

    def front_checkpoints(self) -> list[tuple[Incumbent, Checkpoint]]:
        found = [(member, self._checkpoint_of(member)) for member in self.front]
        return [(member, checkpoint) for member, checkpoint in found if checkpoint is not None]

    def _checkpoint_of(self, member: Incumbent) -> Checkpoint | None:
        trial = self.trials[member.trial]
        for result in trial.results:
            if result.resource == member.resource and result.checkpoint is not None:
                return None if result.checkpoint.resource in trial.condemned else result.checkpoint
        return None

    def check(self) -> None:
        assert set(self.running) == {t.number for t in self.trials if t.running}
        assert self.without_slot <= set(self.running)
        slots = (grant.demand.slots for trial, grant in self.running.items() if trial not in self.without_slot)
        assert self.slots_in_use == sum(slots)
        assert all(self.running[number].attempt == placed.attempt for number, placed in self.placed.items())
        assert len(set(self.waiting)) == len(self.waiting)
        for number in self.waiting:
            trial = self.trials[number]
            assert not trial.running and trial.failures and trial.abandoned is None
        for i, trial in enumerate(self.trials):
            assert trial.number == i
            resources = [result.resource for result in trial.results]
            assert resources == sorted(set(resources)), f"trial {i} has a resource twice: {resources}"
            assert not (trial.running and trial.abandoned), f"trial {i} runs although abandoned"
            if trial.running:
                assert trial.granted is not None
                assert trial.granted.target > trial.resource
                assert trial.granted.attempt == trial.attempts - 1
        assert self.resource_running == sum(g.target - self.trials[i].resource for i, g in self.running.items())
        assert self.completed_jobs == sum(len(t.results) for t in self.trials)
        found = [result for trial in self.trials for result in trial.results]
        assert self.finite_results == sum(result.loss is not None or bool(result.losses) for result in found)
        assert self.infeasible_results == sum(r.violation > 0 for t in self.trials for r in t.results)
        assert self.abandoned_trials == sum(t.abandoned is not None for t in self.trials)
        ranked = [
            result
            for trial in self.trials
            for result in trial.results
            if result.loss is not None and not result.violation
        ]
        self.best_of_all.check(ranked)
        self.best_of_highest_rung.check(ranked)


def retries_left(state: StudyState, trial: TrialRecord, outcome: Outcome) -> bool:
    assert state.spec is not None
    same = sum(
        failure.outcome == outcome and (outcome is not Outcome.LOST or failure.worker != "")
        for failure in trial.failures  # a controller that went away (no worker named) says nothing at all
    )
    return same <= state.spec.training.allowed(outcome)
