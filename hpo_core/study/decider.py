"""All policy of a study: the facts that follow from what was noticed. Pure but for the draws of the sampler."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

from hpo_core.model.devices.inventory import EMPTY
from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.model.events import (
    CONTROLLER_GONE,
    NO_VIOLATION,
    AbandonRequested,
    AttemptFailed,
    AttemptReported,
    CapacityChanged,
    CapacityNoticed,
    CheckpointCondemned,
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
    SlotFreed,
    StateCopied,
    Stimulus,
    StopRequested,
    StudyCreated,
    StudyExtended,
    StudyHalted,
    StudyReopened,
    StudyRequested,
    TrialAbandoned,
)
from hpo_core.model.space import same_scalar
from hpo_core.model.space.parameter import flattened
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Report, real_number, refused_name
from hpo_core.search.method import total_violation
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord, retries_left
from hpo_core.study.job_grants import Grants
from hpo_core.study.parts import StudyParts

DIVERGED_FACTOR = 4
"""Trials without a finite value that halt a study, as a multiple of ``fail_fast``: some diverge in a lawful search. By
default 20: where 4 of 5 trials diverge lawfully, the first 20 all do in 1 study of 87."""


class Decider:
    """Answers every stimulus with facts. Each must be applied before the next one is drawn from the iterator."""

    def __init__(self, parts: StudyParts, grants: Grants) -> None:
        self._parts = parts
        self._spec, self._state, self._method = parts.spec, parts.state, parts.method
        self._grants = grants
        self._objectives = [(metric.name, metric.sign) for metric in parts.spec.objectives]

    def decide(self, stimulus: Stimulus) -> Iterator[Event]:
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
            case StateCopied():
                grant = state.running.get(stimulus.trial)
                known = grant is not None and grant.attempt == stimulus.attempt
                if known and stimulus.trial not in state.without_slot:
                    yield SlotFreed(stimulus.trial, stimulus.attempt)
                    yield from grants.fill()
            case CapacityNoticed():
                if stimulus.inventory != state.inventory:
                    yield CapacityChanged(stimulus.inventory)
                yield from grants.fill()
            case ClockTicked():
                yield from grants.stop_if_due()
            case StudyRequested():
                yield StudyCreated(stimulus.spec)
            case ControllerStarted():
                yield ControllerChanged(stimulus.controller, stimulus.objective)
                yield CapacityChanged(EMPTY)
                if state.halted is not None:
                    yield StudyReopened()
                for grant in list(state.running.values()):
                    lost = Report(
                        trial=grant.trial, attempt=grant.attempt, outcome=Outcome.LOST, message=CONTROLLER_GONE
                    )
                    yield from self._failed(grant, lost)
            case ExtensionRequested():
                yield StudyExtended(stimulus.configs)
                if state.halted is not None:
                    yield StudyReopened()
                yield from grants.fill()
            case ConfigurationRequested():
                yield ConfigurationEnqueued(stimulus.params, stimulus.request)
                yield from grants.fill()
            case StopRequested():
                if state.halted is None:
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
        yield TrialAbandoned(trial.number, grant.bracket, grant.rung, reason)
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
            if result.loss is None and not result.losses:
                yield from self._diverged(report.message)
        else:
            yield from self._failed(grant, report)
        yield from self._facts_of_results()
        yield from self._grants.stop_if_due()
        if self._parts.budget is not None:
            yield from self._grants.make_room(0)
        yield from self._grants.fill()

    def _facts_of_results(self) -> Iterator[Event]:
        # Yield what follows from the results besides grants: trials stopped, a ceiling raised.
        while (fact := self._method.next_fact()) is not None:
            yield fact

    def _result(self, report: Report, grant: JobGranted) -> JobCompleted:
        loss, losses = self._losses(report.metrics)
        violation = NO_VIOLATION
        if self._spec.constraints:
            found = total_violation(report.metrics.get(name, math.nan) for name in self._spec.constraints)
            if found is None:  # as where the metric itself is not finite
                loss, losses = None, ()
            elif loss is not None:
                violation = found or NO_VIOLATION
        curve: tuple[tuple[int, float], ...] = ()
        if self._method.reads_curves:
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
            usage=report.usage,
            visits=report.visits,
        )

    def _losses(self, metrics: Metrics) -> tuple[float | None, tuple[float, ...]]:
        # (first loss, None where a loss is missing or not finite; all of them where there are several).
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

    def _failed(self, grant: JobGranted, report: Report) -> Iterator[Event]:
        trial = self._state.trials[grant.trial]
        yield AttemptFailed(
            grant.trial,
            grant.attempt,
            grant.stage,
            target=grant.target,
            outcome=report.outcome,
            message=report.message,
            worker=report.worker,
            started=report.started,
            ended=report.ended,
            usage=report.usage,
            visits=report.visits,
        )
        if report.outcome is Outcome.CHECKPOINT_BAD and grant.checkpoint is not None:
            yield CheckpointCondemned(self._state.owner_of(grant.trial, grant.checkpoint), grant.checkpoint.resource)
        if report.outcome is Outcome.STORAGE:
            if self._state.halted is None:
                yield StudyHalted(report.message)
        elif report.outcome is Outcome.LOST and self._spec.training.most_losses is not None:
            if report.worker:
                yield from self._lost_worker(grant, report, self._spec.training.most_losses)
        elif retries_left(self._state, trial, report.outcome):
            pass
        elif report.outcome is Outcome.LOST:  # says nothing about the trial: a person must decide
            if self._state.halted is None:
                yield StudyHalted(
                    f"trial {grant.trial} lost its worker {len(trial.failures)} times at {grant.target}, the last "
                    f"time with: {report.message}"
                )
        else:
            times = _times(sum(failure.outcome == report.outcome for failure in trial.failures))
            yield from self._abandon(grant, f"{report.outcome} {times}: {report.message}", report.message)

    def _lost_worker(self, grant: JobGranted, report: Report, most: int) -> Iterator[Event]:
        # A trial lost its worker; the rule is that of hpo_core.state.worker_losses.
        losses = self._state.losses
        count, allowed = losses.count(grant.trial), self._spec.training.allowed(Outcome.LOST)
        ended, lost = losses.others(grant.trial)
        if losses.is_at_fault(grant.trial, most):
            yield from self._abandon(
                grant,
                f"its worker or zygote died {_times(count)} while it ran; of the other trials meanwhile {ended} ended "
                f"by themselves and {lost} lost theirs: {report.message}",
                report.message,
            )
        elif count > allowed and self._state.halted is None:
            yield StudyHalted(
                f"trial {grant.trial} lost its worker {count} times at {grant.target}, and other trials did no better; "
                f"the last time with: {report.message} If the trial itself is at fault: "
                f"hpo abandon {self._spec.study} --trial {grant.trial}"
            )

    def _abandon(self, grant: JobGranted, reason: str, message: str) -> Iterator[Event]:
        yield TrialAbandoned(grant.trial, grant.bracket, grant.rung, reason)
        limit, state = self._spec.training.fail_fast, self._state
        if limit and not state.has_worked and state.failed_first >= limit and not state.halted:
            since = " since the study was resumed" if state.completed_jobs else ""
            count = f"{state.failed_first} trials failed before any succeeded{since}"
            yield StudyHalted(f"{count}, the last with: {message}")
        yield from self._diverged(message)

    def _diverged(self, message: str) -> Iterator[Event]:
        # A halt where none of the first trials came to a finite value; after a trial that ended without one.
        # Trials that diverge often end early. So it counts the first trials once all of them have ended: among those
        # that have ended so far, trials that diverged would be too many.
        state = self._state
        if self._spec.training.fail_fast is None or state.finite_results or state.halted:
            return
        limit = DIVERGED_FACTOR * self._spec.training.fail_fast
        first = state.trials[state.reopened_at : state.reopened_at + limit]
        if len(first) == limit and all(trial.has_ended for trial in first):
            failed = sum(trial.abandoned is not None for trial in first)
            counts = f"{limit - failed} diverged (NaN or infinite)" + (f", {failed} failed" if failed else "")
            last = f", the last with: {message}" if message else ""
            metrics = " and ".join(name for name, _ in self._objectives)
            more = "next" if state.reopened_at else "first"
            yield StudyHalted(
                f"the {more} {limit} trials all ended without a finite value of {metrics}: {counts}{last}"
            )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def checked_configuration(spec: StudySpec, params: Mapping[str, Any]) -> Params:
    """Values as the study's space takes them.

    Raises:
        HpoError: the study takes no configurations (a rerun), or the space does not take these values.
    """
    if spec.search.record() is not None:
        raise HpoError(
            f"Study {spec.study!r} trains again along a record, so nothing can be enqueued. Enqueue it in the study "
            "it repeats, or start a new one with start_with."
        )
    try:
        return given_values(spec.search_space(), flattened(params), "enqueue")
    except ValueError as error:
        raise HpoError(f"Study {spec.study!r}: {error}.") from None


def is_known(state: StudyState, given: Params) -> bool:
    known = [*(trial.params for trial in state.trials), *state.queue]
    return any(all(name in one and same_scalar(one[name], given[name]) for name in given) for one in known)


def told_report(spec: StudySpec, job: Job, told: Mapping[str, float]) -> Report:
    """The report of a job from its metrics.

    Raises:
        ObjectiveError: a metric or constraint is absent or no number.
    """
    metrics = _numbers(spec, job, told)
    judged = (*(metric.name for metric in spec.objectives), *spec.constraints)
    finite = all(math.isfinite(metrics.get(name, 0.0)) for name in judged)
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED if finite else Outcome.DIVERGED,
        metrics=metrics,
    )


def _numbers(spec: StudySpec, job: Job, metrics: Mapping[str, float]) -> Metrics:
    objectives = [metric.name for metric in spec.objectives]
    bad = [name for name in objectives if name not in metrics]
    if spec.any_metric and len(bad) < len(objectives):
        bad = []
    bad += [name for name in spec.constraints if name not in metrics]
    values = {name: real_number(item) for name, item in metrics.items()}
    bad += [name for name, number in values.items() if number is None]
    if bad:
        what = "constraint" if bad[0] in spec.constraints else "metric"
        raise ObjectiveError(
            f"Study {spec.study!r}, trial {job.trial}: {what} {bad[0]!r} is {metrics.get(bad[0])!r} in "
            f"{dict(metrics)!r}; tell needs it as a real number. Report it, or name another one in the study."
        )
    for name in metrics:
        if refusal := refused_name(name):
            raise ObjectiveError(f"Study {spec.study!r}, trial {job.trial}: {name!r} {refusal}.")
    return {name: number for name, number in values.items() if number is not None}


def check_abandoned(state: StudyState, study: str, trial: int, *, ruled_out: Container[int]) -> None:
    """Refuse to give up a trial that is not there, or of which nothing is left.

    Raises:
        HpoError: with the trials that there are.
    """
    if not 0 <= trial < len(state.trials):
        known = f"it has trials 0 to {len(state.trials) - 1}" if state.trials else "it has none yet"
        raise HpoError(f"Study {study!r} has no trial {trial}; {known}.")
    record = state.trials[trial]
    if record.abandoned is not None or record.stopped is not None:
        raise HpoError(f"Study {study!r}: trial {trial} is {record.status} already.")
    if not (record.running or record.waiting) and trial in ruled_out:
        raise HpoError(f"Study {study!r}: trial {trial} will not go on anyway; there is nothing to give up.")
