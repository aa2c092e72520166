"""All policy of a study: the facts that follow from what was noticed. Pure but for the draws of the sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import EMPTY
from hpo_core.model.events import (
    AbandonRequested,
    AttemptFailed,
    AttemptReported,
    CapacityChanged,
    CapacityNoticed,
    ClockTicked,
    ConfigurationEnqueued,
    ConfigurationRequested,
    ControllerChanged,
    ControllerStarted,
    Event,
    ExtensionRequested,
    JobAsked,
    JobCompleted,
    JobGranted,
    PlacementsNoticed,
    ReportIgnored,
    Stimulus,
    StopRequested,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    StudyRequested,
    TrainingRequested,
    TrialAbandoned,
    TrialExtended,
)
from hpo_core.model.judged_results import total_violation
from hpo_core.model.trial import Further, Metrics, Outcome, Report
from hpo_core.study.failures import FailureRules
from hpo_core.study.job_grants import Grants
from hpo_core.study.parts import StudyParts


class Decider:
    """Answers every stimulus with facts. Each must be applied before the next one is drawn from the iterator."""

    def __init__(self, parts: StudyParts, grants: Grants) -> None:
        self._parts = parts
        self._spec, self._state, self._method = parts.spec, parts.state, parts.method
        self._grants = grants
        self._failures = FailureRules(parts.spec, parts.state)
        self._objectives = [(metric.name, metric.sign) for metric in parts.spec.objectives]
        self._deciders: dict[type, Callable[[Any], Iterator[Event]]] = {
            StudyRequested: self._on_study_requested,
            ControllerStarted: self._on_controller_started,
            CapacityNoticed: self._on_capacity,
            JobAsked: self._on_asked,
            PlacementsNoticed: self._on_placements,
            AttemptReported: self._on_report,
            ConfigurationRequested: self._on_configuration,
            ExtensionRequested: self._on_extension,
            TrainingRequested: self._on_training,
            StopRequested: self._on_stop,
            AbandonRequested: self._on_abandon,
            ClockTicked: self._on_tick,
        }

    def decide(self, stimulus: Stimulus) -> Iterator[Event]:
        """The facts that follow from a stimulus."""
        return self._deciders[type(stimulus)](stimulus)

    def _on_study_requested(self, stimulus: StudyRequested) -> Iterator[Event]:
        yield StudyCreated(stimulus.spec)

    def _on_controller_started(self, stimulus: ControllerStarted) -> Iterator[Event]:
        yield ControllerChanged(stimulus.controller)
        yield CapacityChanged(EMPTY)
        if self._state.halted is not None and not stimulus.keep_halt:
            yield StudyReopened()
        for grant in list(self._state.running.values()):
            lost = Report(
                trial=grant.trial,
                attempt=grant.attempt,
                outcome=Outcome.LOST,
                message="the controller that ran this attempt is gone",
            )
            yield from self._failures.decide(grant, lost)

    def _on_capacity(self, stimulus: CapacityNoticed) -> Iterator[Event]:
        if stimulus.inventory != self._state.inventory:
            yield CapacityChanged(stimulus.inventory)
        yield from self._grants.fill()

    def _on_asked(self, _: JobAsked) -> Iterator[Event]:
        yield from self._grants.one()
        yield from self._grants.stop_if_due()

    def _on_placements(self, stimulus: PlacementsNoticed) -> Iterator[Event]:
        for placed in stimulus.placements:
            grant = self._state.running.get(placed.trial)
            if grant is not None and grant.attempt == placed.attempt:
                yield placed

    def _on_extension(self, stimulus: ExtensionRequested) -> Iterator[Event]:
        yield StudyExtended(stimulus.configs)
        if self._state.halted is not None:
            yield StudyReopened()
        yield from self._grants.fill()

    def _on_configuration(self, stimulus: ConfigurationRequested) -> Iterator[Event]:
        yield ConfigurationEnqueued(stimulus.params, stimulus.request)
        yield from self._grants.fill()

    def _on_training(self, stimulus: TrainingRequested) -> Iterator[Event]:
        start = self._parts.checkpoints.further_start(stimulus.trial)
        yield TrialExtended(stimulus.trial, stimulus.target, start)
        yield from self._grants.fill()

    def _on_stop(self, stimulus: StopRequested) -> Iterator[Event]:
        if self._state.halted is None or (self._state.extended and not self._state.further_held):
            yield StudyHalted(stimulus.reason)

    def _on_abandon(self, stimulus: AbandonRequested) -> Iterator[Event]:
        trial = self._state.trials[stimulus.trial]
        grant, reason = trial.granted, "a person abandoned it"
        assert grant is not None
        if trial.running:
            yield AttemptFailed(
                grant.trial, grant.attempt, grant.stage, target=grant.target, outcome=Outcome.PREEMPTED, message=reason
            )
        # where it was heading for, or where its result stands; training beyond the search is at no rung
        rung = trial.rung if type(grant.stage) is Further else grant.rung
        yield TrialAbandoned(trial.number, grant.bracket, rung, reason)
        yield from self._facts_of_results()

    def _on_tick(self, _: ClockTicked) -> Iterator[Event]:
        yield from self._grants.stop_if_due()
        if self._state.extended:
            yield from self._grants.fill()

    def _on_report(self, stimulus: AttemptReported) -> Iterator[Event]:
        report = stimulus.report
        grant = self._state.running.get(report.trial)
        if grant is None or grant.attempt != report.attempt:
            current = "none is running" if grant is None else f"attempt {grant.attempt} is running"
            yield ReportIgnored(report.trial, report.attempt, f"late: {current}")
            return
        if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
            result = self._result(report, grant)
            yield result
            if result.loss is None and not result.losses and type(grant.stage) is not Further:
                yield from self._failures.diverged(report.message)
        else:
            yield from self._failures.decide(grant, report)
        while (fact := self._method.next_fact()) is not None:
            yield fact
        yield from self._grants.stop_if_due()
        if self._parts.budget is not None:
            yield from self._grants.make_room(0)
        yield from self._grants.fill()

    def _facts_of_results(self) -> Iterator[Event]:
        """Yield what follows from the results besides grants: trials stopped, a ceiling raised."""
        while (fact := self._method.next_fact()) is not None:
            yield fact

    def _result(self, report: Report, grant: JobGranted) -> JobCompleted:
        loss, losses = self._losses(report.metrics)
        violation: float | msgspec.UnsetType = msgspec.UNSET
        if self._spec.constraints:
            found = total_violation(report.metrics.get(name, math.nan) for name in self._spec.constraints)
            if found is None:  # as where the metric itself is not finite
                loss, losses = None, ()
            elif loss is not None:
                violation = found
        curve: tuple[tuple[int, float], ...] = ()
        if self._method.reads_curves and type(grant.stage) is not Further:
            name, sign = self._objectives[0]
            curve = tuple((p.resource, p.metrics[name] * sign) for p in report.curve if name in p.metrics)
        return JobCompleted(
            report.trial,
            report.attempt,
            grant.stage,
            resource=grant.target,
            loss=loss,
            metrics=report.metrics,
            checkpoint=report.checkpoint,
            worker=report.worker,
            started=report.started,
            ended=report.ended,
            losses=losses,
            curve=curve,
            violation=violation,
            repeats=report.repeats,
            usage=report.usage,
            visits=report.visits,
            together=report.together,
        )

    def _losses(self, metrics: Metrics) -> tuple[float | None, tuple[float, ...]]:
        """(first loss, None where a loss is missing or not finite; all of them where there are several)."""
        if len(self._objectives) == 1:
            name, sign = self._objectives[0]
            loss = metrics.get(name, math.nan) * sign
            return (loss if math.isfinite(loss) else None), ()
        losses = tuple(metrics.get(name, math.nan) * sign for name, sign in self._objectives)
        there = [loss for (name, _), loss in zip(self._objectives, losses, strict=True) if name in metrics]
        complete = len(there) == len(losses) or (bool(there) and self._spec.any_metric)
        if not complete or not all(map(math.isfinite, there)):
            return None, ()
        return (None if math.isnan(losses[0]) else losses[0]), losses
