"""StudyState: all facts of a study, folded from its events. ``apply`` is the only mutator.

Statuses are computed from facts, never stored beside them. Nothing here decides, draws or does IO.
"""

from __future__ import annotations

from collections import deque

import msgspec

from hpo_core.events import (
    AttemptFailed,
    CapacityChanged,
    CeilingRaised,
    CheckpointCondemned,
    CheckpointRemoved,
    ControllerChanged,
    Event,
    JobCompleted,
    JobGranted,
    ReportIgnored,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    TrialAbandoned,
    TrialCreated,
    TrialStopped,
)
from hpo_core.spec import StudySpec
from hpo_core.trial import Checkpoint, Job, Metrics, Outcome, Params


class TrialRecord(msgspec.Struct, gc=False):
    """Everything known of one trial. Only :class:`StudyState` writes to it.

    Hundreds of thousands of them live at once: tuples instead of lists keep them out of the cycle
    collector's sight, which otherwise costs more than all decisions together.
    """

    number: int
    bracket: int
    params: Params
    parent: int | None = None
    results: tuple[JobCompleted, ...] = ()
    """Results in the order of their resource."""
    attempts: int = 0
    """Attempts granted so far; the next one gets this number."""
    granted: JobGranted | None = None
    """The latest grant."""
    running: bool = False
    """Whether the latest grant awaits its report."""
    failures: tuple[AttemptFailed, ...] = ()
    """Failed attempts at the present target."""
    condemned: frozenset[int] = frozenset()
    """Resources whose checkpoint is not there to use: it cannot be loaded, or was removed."""
    abandoned: TrialAbandoned | None = None
    stopped: TrialStopped | None = None
    """Set where the search said at a rung that the trial does not go on."""

    @property
    def resource(self) -> int:
        """Units of training behind the best-trained result (0: none)."""
        return self.results[-1].resource if self.results else 0

    @property
    def rung(self) -> int:
        """Highest rung reached (-1: none)."""
        return self.results[-1].rung if self.results else -1

    @property
    def loss(self) -> float | None:
        """Loss at the highest resource; None where there is none or it is not finite."""
        return self.results[-1].loss if self.results else None

    @property
    def status(self) -> str:
        """``running``, ``abandoned``, ``waiting`` (to be tried again), ``stopped``, ``paused`` (at a rung), ``new``."""
        if self.abandoned is not None:
            return "abandoned"
        if self.running:
            return "running"
        if self.failures:
            return "waiting"
        if self.stopped is not None:
            return "stopped"
        return "paused" if self.results else "new"

    def checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint not known to be bad: where the next attempt starts."""
        for result in reversed(self.results):
            if result.checkpoint is not None and result.resource not in self.condemned:
                return result.checkpoint
        return None


class Incumbent(msgspec.Struct, frozen=True):
    """Best finite loss seen at any rung (ASHA 3.3: intermediate losses count).

    Between equal losses the earlier one stays.
    """

    trial: int
    resource: int
    loss: float
    metrics: Metrics
    losses: tuple[float, ...] = ()
    """All objectives as losses, where there are several."""


class StudyState:
    """The fold of a study's events."""

    def __init__(self) -> None:
        self.spec: StudySpec | None = None
        self.trials: list[TrialRecord] = []
        self.running: dict[int, JobGranted] = {}
        """Grants that await a report, by trial, oldest first."""
        self.waiting: deque[int] = deque()
        """Trials whose last attempt failed and whose job is wanted again, oldest first."""
        self.capacity = 0
        self.extra_configs = 0
        self.controller = ""
        self.halted: StudyHalted | None = None
        self.incumbent: Incumbent | None = None
        self.completed_jobs = 0
        self.abandoned_trials = 0
        self.failed_attempts = 0
        self.ignored_reports = 0
        self.resource_used = 0
        """Units of training behind all results (what was trained, not what was repeated)."""
        self.resource_running = 0
        """Units that running jobs will add to it."""
        self.ceilings: list[CeilingRaised] = []
        self._appliers = {
            StudyCreated: self._created,
            ControllerChanged: self._controller_changed,
            CapacityChanged: self._capacity_changed,
            TrialCreated: self._trial_created,
            JobGranted: self._job_granted,
            JobCompleted: self._job_completed,
            AttemptFailed: self._attempt_failed,
            CheckpointCondemned: self._checkpoint_condemned,
            TrialAbandoned: self._trial_abandoned,
            CheckpointRemoved: self._checkpoint_removed,
            TrialStopped: self._trial_stopped,
            CeilingRaised: self._ceiling_raised,
            ReportIgnored: self._report_ignored,
            StudyExtended: self._extended,
            StudyHalted: self._halted,
            StudyReopened: self._reopened,
        }

    def apply(self, event: Event) -> None:
        """Take over one fact. Total: a recorded fact is never refused."""
        self._appliers[type(event)](event)  # type: ignore[operator]

    def _created(self, event: StudyCreated) -> None:
        self.spec = StudySpec.from_plain(event.spec, "journal")

    def _controller_changed(self, event: ControllerChanged) -> None:
        self.controller = event.controller

    def _capacity_changed(self, event: CapacityChanged) -> None:
        self.capacity = event.slots

    def _trial_created(self, event: TrialCreated) -> None:
        self.trials.append(TrialRecord(event.trial, event.bracket, event.params, event.parent))

    def _job_granted(self, event: JobGranted) -> None:
        trial = self.trials[event.trial]
        if event.retry and self.waiting and self.waiting[0] == event.trial:
            self.waiting.popleft()
        trial.attempts = event.attempt + 1
        trial.granted = event
        trial.running = True
        self.running[event.trial] = event
        self.resource_running += event.target - trial.resource

    def _job_completed(self, event: JobCompleted) -> None:
        trial = self.trials[event.trial]
        del self.running[event.trial]
        trial.running = False
        trial.failures = ()
        self.resource_running -= event.resource - trial.resource
        self.resource_used += event.resource - trial.resource
        trial.results += (event,)
        self.completed_jobs += 1
        loss = event.loss
        if loss is not None and (self.incumbent is None or loss < self.incumbent.loss):
            self.incumbent = Incumbent(event.trial, event.resource, loss, event.metrics)

    def _attempt_failed(self, event: AttemptFailed) -> None:
        trial = self.trials[event.trial]
        del self.running[event.trial]
        self.resource_running -= event.target - trial.resource
        trial.running = False
        trial.failures += (event,)
        self.waiting.append(event.trial)
        self.failed_attempts += 1

    def _checkpoint_condemned(self, event: CheckpointCondemned) -> None:
        trial = self.trials[event.trial]
        trial.condemned |= {event.resource}

    def _checkpoint_removed(self, event: CheckpointRemoved) -> None:
        trial = self.trials[event.trial]
        trial.condemned |= {event.resource}

    def _trial_stopped(self, event: TrialStopped) -> None:
        self.trials[event.trial].stopped = event

    def _ceiling_raised(self, event: CeilingRaised) -> None:
        self.ceilings.append(event)

    def _trial_abandoned(self, event: TrialAbandoned) -> None:
        self.trials[event.trial].abandoned = event
        if event.trial in self.waiting:
            self.waiting.remove(event.trial)
        self.abandoned_trials += 1

    def _report_ignored(self, _: ReportIgnored) -> None:
        self.ignored_reports += 1

    def _extended(self, event: StudyExtended) -> None:
        self.extra_configs += event.configs

    def _halted(self, event: StudyHalted) -> None:
        self.halted = event

    def _reopened(self, _: StudyReopened) -> None:
        self.halted = None

    def job(self, grant: JobGranted) -> Job:
        """The job behind a grant."""
        return Job(
            grant.trial, grant.attempt, grant.bracket, grant.rung, grant.target,
            self.trials[grant.trial].params, grant.checkpoint, grant.retry,
        )  # fmt: skip

    def wanted(self) -> list[Job]:
        """All jobs that should be running now, oldest first. Executors make this true."""
        return [self.job(grant) for grant in self.running.values()]

    def live_checkpoints(self) -> set[str]:
        """URIs that a future job, the user or a running attempt can still need.

        That is, per trial, the newest good checkpoint and the one before it (the fallback should the
        newest turn out to be damaged), what running attempts start from, and the incumbent's.
        """
        live: set[str] = set()
        for trial in self.trials:
            good = [
                result.checkpoint.uri
                for result in trial.results
                if result.checkpoint is not None and result.resource not in trial.condemned
            ]
            live.update(good[-2:])
            if trial.running and trial.granted is not None and trial.granted.checkpoint is not None:
                live.add(trial.granted.checkpoint.uri)
        best = self.best_checkpoint()
        if best is not None:
            live.add(best.uri)
        return live

    def dead_checkpoints(self, number: int) -> list[str]:
        """URIs of one trial's recorded checkpoints that :meth:`live_checkpoints` does not name.

        Costs O(rungs), so it can follow every report; a changed incumbent is left to the final sweep.
        """
        trial = self.trials[number]
        good = [r.checkpoint for r in trial.results if r.checkpoint is not None]
        kept = {c.uri for c in [c for c in good if c.resource not in trial.condemned][-2:]}
        if trial.running and trial.granted is not None and trial.granted.checkpoint is not None:
            kept.add(trial.granted.checkpoint.uri)
        best = self.best_checkpoint()
        if best is not None:
            kept.add(best.uri)
        return [c.uri for c in good if c.uri not in kept]

    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint behind the incumbent's result."""
        if self.incumbent is None:
            return None
        for result in self.trials[self.incumbent.trial].results:
            if result.resource == self.incumbent.resource:
                return result.checkpoint
        return None

    def check(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert set(self.running) == {t.number for t in self.trials if t.running}
        assert len(set(self.waiting)) == len(self.waiting)
        for number in self.waiting:
            trial = self.trials[number]
            assert not trial.running and trial.failures and trial.abandoned is None
        for i, trial in enumerate(self.trials):
            assert trial.number == i
            resources = [result.resource for result in trial.results]
            assert resources == sorted(set(resources)), f"trial {i} has a resource twice: {resources}"
            attempts = [result.attempt for result in trial.results]
            assert attempts == sorted(set(attempts)), f"trial {i} counts an attempt twice: {attempts}"
            assert not (trial.running and trial.abandoned), f"trial {i} runs although abandoned"
            if trial.running:
                assert trial.granted is not None and trial.granted.target > trial.resource
                assert trial.granted.attempt == trial.attempts - 1
        finite = [r.loss for t in self.trials for r in t.results if r.loss is not None]
        assert (self.incumbent.loss if self.incumbent else None) == (min(finite) if finite else None)
        running = [t for t in self.trials if t.running and t.granted is not None]
        assert self.resource_running == sum(t.granted.target - t.resource for t in running if t.granted is not None)
        assert self.completed_jobs == sum(len(t.results) for t in self.trials)
        assert self.abandoned_trials == sum(t.abandoned is not None for t in self.trials)

    def story(self, number: int) -> list[str]:
        """What happened to a trial, one line each."""
        trial = self.trials[number]
        lines = [f"trial {number} created in bracket {trial.bracket}: {trial.params}"]
        lines += [
            f"reached rung {r.rung} ({r.resource} units) in attempt {r.attempt}: loss {r.loss}" for r in trial.results
        ]
        lines += [f"attempt {f.attempt} to {f.target} failed ({f.outcome}): {f.message}" for f in trial.failures]
        if trial.stopped is not None:
            lines.append(
                f"stopped at rung {trial.stopped.rung}: place {trial.stopped.rank} of {trial.stopped.results} there"
            )
        if trial.abandoned is not None:
            lines.append(f"abandoned on the way to rung {trial.abandoned.rung}: {trial.abandoned.reason}")
        lines.append(f"now {trial.status}")
        return lines


def retries_left(state: StudyState, trial: TrialRecord, outcome: Outcome) -> bool:
    """Whether the failure just added may be followed by another attempt at the same target."""
    assert state.spec is not None
    same = sum(
        failure.outcome == outcome and (outcome is not Outcome.LOST or failure.worker != "")
        for failure in trial.failures  # a controller that went away (no worker named) says nothing at all
    )
    return same <= state.spec.training.allowed(outcome)
