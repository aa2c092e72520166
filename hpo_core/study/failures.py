"""FailureRules: after an attempt without a finite value, another attempt, a trial that is given up, or a halt."""

from __future__ import annotations

from collections.abc import Iterator

from hpo_core.model.events import (
    AttemptFailed,
    CheckpointCondemned,
    Event,
    JobGranted,
    StudyHalted,
    TrialAbandoned,
    TrialExtensionEnded,
)
from hpo_core.model.trial import Further, Outcome, Report
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord, retries_left

DIVERGED_FACTOR = 4
"""Trials without a finite value that halt a study, as a multiple of ``fail_fast``: some diverge in a lawful search. By
default 20: where 4 of 5 trials diverge lawfully, the first 20 all do in 1 study of 87."""


class FailureRules:
    """Decides what becomes of a trial whose attempt failed. Holds no state of its own."""

    def __init__(self, spec: StudySpec, state: StudyState) -> None:
        self._name = spec.study
        self._training = spec.training
        self._metrics = " and ".join(metric.name for metric in spec.objectives)
        self._state = state

    def decide(self, grant: JobGranted, report: Report) -> Iterator[Event]:
        """The facts that follow from ``report``, which ends the attempt of ``grant``."""
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
            together=report.together,
        )
        if report.outcome is Outcome.CHECKPOINT_BAD and grant.checkpoint is not None:
            yield CheckpointCondemned(self._state.owner_of(grant.trial, grant.checkpoint), grant.checkpoint.resource)
        if type(grant.stage) is Further:
            yield from self._beyond_search(trial, report)
        elif report.outcome is Outcome.STORAGE:
            if self._state.halted is None:
                yield StudyHalted(report.message)
        elif report.outcome is Outcome.LOST and self._training.max_lost is not None:
            if report.worker:
                yield from self._lost_worker(grant, report, self._training.max_lost)
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
        """A trial lost its worker; the rule is that of :mod:`hpo_core.state.worker_losses`."""
        losses = self._state.losses
        count, allowed = losses.count(grant.trial), self._training.allowed(Outcome.LOST)
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
                f"hpo abandon {self._name} --trial {grant.trial}"
            )

    def _abandon(self, grant: JobGranted, reason: str, message: str) -> Iterator[Event]:
        yield TrialAbandoned(grant.trial, grant.bracket, grant.rung, reason)
        limit, state = self._training.fail_fast, self._state
        if limit and not state.completed_jobs and state.abandoned_trials >= limit and not state.halted:
            yield StudyHalted(f"{state.abandoned_trials} trials failed before any succeeded, the last with: {message}")
        yield from self.diverged(message)

    def diverged(self, message: str) -> Iterator[Event]:
        """A halt where none of the first trials came to a finite value; after a trial that ended without one.

        Trials that diverge often end early. So it counts the first trials once all of them have ended: among those
        that have ended so far, trials that diverged would be too many.
        """
        state = self._state
        if self._training.fail_fast is None or state.finite_results or state.halted:
            return
        limit = DIVERGED_FACTOR * self._training.fail_fast
        first = state.trials[state.reopened_at : state.reopened_at + limit]
        if len(first) == limit and all(trial.has_ended for trial in first):
            failed = sum(trial.abandoned is not None for trial in first)
            counts = f"{limit - failed} diverged (NaN or infinite)" + (f", {failed} failed" if failed else "")
            last = f", the last with: {message}" if message else ""
            more = "next" if state.reopened_at else "first"
            yield StudyHalted(
                f"the {more} {limit} trials all ended without a finite value of {self._metrics}: {counts}{last}"
            )

    def _beyond_search(self, trial: TrialRecord, report: Report) -> Iterator[Event]:
        """A job beyond the search that is given up costs the trial nothing that it had."""
        if report.outcome is Outcome.STORAGE:
            yield StudyHalted(report.message)  # also where it is halted: this holds the job back as well
        elif not retries_left(self._state, trial, report.outcome):
            times = _times(sum(failure.outcome == report.outcome for failure in trial.failures))
            target = self._state.extended[trial.number].target
            yield TrialExtensionEnded(trial.number, target, f"{report.outcome} {times}: {report.message}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
