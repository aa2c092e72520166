"""StudyParts: everything that a study's facts are folded into."""

from __future__ import annotations

from hpo_core.checkpoints.retention import Budget, LiveCheckpoints
from hpo_core.model.events import (
    AbandonRequested,
    ClockTicked,
    ControllerChanged,
    ControllerStarted,
    Event,
    JobGranted,
    JobPlaced,
    SlotFreed,
    Stimulus,
    StudyReopened,
    StudyRequested,
)
from hpo_core.model.features import feature
from hpo_core.samplers.sampler import Sampler
from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_method, create_sampler
from hpo_core.state import StudyState

_NO_TIME_BEFORE = (StudyRequested, ControllerStarted)
"""Stimuli before which no controller drove the study."""


class StopRules:
    """Says which stop rule is due, from the times of all stimuli and the state.

    A person who resumes a study that a rule ended wants more of it: the same resource and the same seconds
    again, and no stop at a target that is reached already. Seconds count while a controller drives the study,
    not while it is down or stands still.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._rules = spec.stop
        self._metric = spec.metric.name
        self._sign = spec.metric.sign
        self._last = 0.0
        self.seconds = 0.0
        """Driven since the study began or was last resumed after a halt."""
        self._used_before = 0
        self._reached_before = False

    def count_time(self, stimulus: Stimulus, time: float) -> None:
        kind = type(stimulus)
        if kind is AbandonRequested:  # by a person, perhaps while no controller drives it
            return
        if kind not in _NO_TIME_BEFORE:
            stood_still = stimulus.stood_still if isinstance(stimulus, ClockTicked) else 0.0
            self.seconds += max(0.0, time - self._last - stood_still)
        self._last = time

    def reopen(self, state: StudyState) -> None:
        self.seconds = 0.0
        self._used_before = state.resource_used
        self._reached_before = self._reached(state)

    def seconds_at(self, now: float) -> float:
        return self.seconds + max(0.0, now - self._last)

    def resource_left(self, state: StudyState) -> int | None:
        if self._rules.total_resource is None:
            return None
        used = state.resource_used - self._used_before
        return max(state.resource_running, self._rules.total_resource - used)

    def seconds_left(self, now: float) -> float | None:
        return None if self._rules.seconds is None else max(0.0, self._rules.seconds - self.seconds_at(now))

    def progress(self, state: StudyState, now: float) -> list[str]:
        rules, found = self._rules, []
        if rules.total_resource is not None:
            found.append(f"{state.resource_used - self._used_before:,} of {rules.total_resource:,} units trained")
        if rules.seconds is not None:
            found.append(f"{self.seconds_at(now):.0f} of {rules.seconds:g} seconds")
        if rules.target is not None:
            relation = "at most" if self._sign > 0 else "at least"
            word = " (reached before: no stop)" if self._reached_before else ""
            found.append(f"{self._metric} {relation} {rules.target:g}{word}")
        return found

    def _reached(self, state: StudyState) -> bool:
        target = self._rules.target
        best = state.incumbent
        return target is not None and best is not None and best.loss <= target * self._sign

    def due(self, state: StudyState, now: float | None = None) -> tuple[str, str] | None:
        rules = self._rules
        if not self._reached_before and self._reached(state):
            assert state.incumbent is not None
            value = state.incumbent.loss * self._sign
            return "target", f"target reached: {self._metric} = {value:.6g} (wanted {rules.target:g})"
        if rules.total_resource is not None:
            used = state.resource_used + state.resource_running - self._used_before
            if used >= rules.total_resource:
                return "total_resource", f"total_resource = {rules.total_resource:,} units of training are given out"
        if rules.seconds is not None:
            seconds = self.seconds if now is None else self.seconds_at(now)
            if seconds >= rules.seconds:
                return "seconds", f"{rules.seconds:g} seconds are over"
        return None


class JobSizes:
    """Ranks of a study's jobs: the same for all.

    Where models hop, a job is one configuration on one slot, whatever the number of workers that its units take
    (:mod:`hpo_core.hopper.board`).
    """

    def __init__(self, fixed: int, method: SearchMethod) -> None:
        self._fixed, self._method = fixed, method

    def next(self, failed: JobGranted | None = None) -> int:
        """Ranks of the next job. A rerun follows its record; a job that is tried again has as many ranks as before.

        Args:
            failed: the grant of the job that is tried again; None: it is a new one.
        """
        return failed.demand.slots if failed is not None else self._method.recorded_slots() or self._fixed

    def least(self) -> int:
        return self.next()

    def demanded(self, slots: int) -> int:
        return self.next()

    def grown(self, slots: int) -> int:
        """Slots of ``slots`` that all running trials could use, if each ended its job now and went on; 0: no more."""
        return 0

    def words(self) -> str:
        return f"{self._fixed} ranks a job" if self._fixed > 1 else ""


class StudyParts:
    """State, search method, sampler, stop rules and checkpoints of one study; decides nothing."""

    def __init__(self, spec: StudySpec, sampler: Sampler | None = None) -> None:
        self.spec = spec
        """Description of the study, with the training function that it was given last."""
        self.state = StudyState()
        self.method: SearchMethod = create_method(spec)
        self.sampler: Sampler = sampler or create_sampler(spec)
        self.rules = StopRules(spec)
        self.sizes: JobSizes
        if (fixed := spec.job_slots) is not None:
            self.sizes = JobSizes(fixed, self.method)
        else:
            self.sizes = feature("gangs", "growth").GrowingSizes(spec.scaling, self.state, self.method)
        self._checkpoints: LiveCheckpoints | None = None
        limited = spec.checkpoints.max_bytes is not None or spec.checkpoints.max_count is not None
        self.budget = Budget(spec, self.checkpoints) if limited else None
        """Limits on the checkpoints; None: there are none."""

    @property
    def checkpoints(self) -> LiveCheckpoints:
        if self._checkpoints is None:
            self._checkpoints = LiveCheckpoints(self.state, self.method)
        return self._checkpoints

    def apply(self, event: Event) -> None:
        self.state.apply(event)
        if type(event) not in (JobPlaced, SlotFreed):  # no matter of the search: where a job runs, or no longer does
            self.method.apply(event)
            self.sampler.apply(event)
        if type(event) is StudyReopened:
            self.rules.reopen(self.state)
        elif type(event) is ControllerChanged and event.objective:
            self.spec = self.spec.model_copy(update={"objective": event.objective})
        if self.budget is not None:
            self.budget.apply(event)
        elif self._checkpoints is not None:
            self._checkpoints.apply(event)

    def check(self) -> None:
        self.state.check()
        self.method.check()
        if self._checkpoints is not None:
            self._checkpoints.check()
        if self.budget is not None:
            self.budget.check()
