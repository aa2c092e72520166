"""All policy of a study: the facts that follow from what was noticed. Pure but for the draws of the sampler."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
from hpo_core.state import TrialRecord
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

    def decide(self, stimulus: Stimulus) -> Iterator[Event]:
        """The facts that follow from a stimulus."""
        state, grants = self._state, self._grants
        match stimulus:
            case AttemptReported():
                yield from self._on_report(stimulus.report)
            case JobAsked():
                yield from grants.one()
                yield from grants.stop_if_due()
            case PlacementsNoticed():
                for placed in stimulus.placements:
                    grant = state.running.get(placed.trial)
                    if grant is not None and grant.attempt == placed.attempt:
                        yield placed
            case CapacityNoticed():
                if stimulus.inventory != state.inventory:
                    yield CapacityChanged(stimulus.inventory)
                yield from grants.fill()
            case ClockTicked():
                yield from grants.stop_if_due()
                if state.extended:
                    yield from grants.fill()
            case StudyRequested():
                yield StudyCreated(stimulus.spec)
            case ControllerStarted():
                yield ControllerChanged(stimulus.controller)
                yield CapacityChanged(EMPTY)
                if state.halted is not None and not stimulus.keep_halt:
                    yield StudyReopened()
                gone = "the controller that ran this attempt is gone"
                for grant in list(state.running.values()):
                    lost = Report(trial=grant.trial, attempt=grant.attempt, outcome=Outcome.LOST, message=gone)
                    yield from self._failures.decide(grant, lost)
            case ExtensionRequested():
                yield StudyExtended(stimulus.configs)
                if state.halted is not None:
                    yield StudyReopened()
                yield from grants.fill()
            case ConfigurationRequested():
                yield ConfigurationEnqueued(stimulus.params, stimulus.request)
                yield from grants.fill()
            case TrainingRequested():
                start = self._parts.checkpoints.further_start(stimulus.trial)
                yield TrialExtended(stimulus.trial, stimulus.target, start)
                yield from grants.fill()
            case StopRequested():
                if state.halted is None or (state.extended and not state.further_held):
                    yield StudyHalted(stimulus.reason)
            case AbandonRequested():
                yield from self._on_abandon(state.trials[stimulus.trial])

    def _on_abandon(self, trial: TrialRecord) -> Iterator[Event]:
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

    def _on_report(self, report: Report) -> Iterator[Event]:
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
        yield from self._facts_of_results()
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
