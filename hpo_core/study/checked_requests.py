"""Checks of what people ask of a study and of what a loop by hand tells it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.model.space import same_scalar
from hpo_core.model.space.parameter import flattened
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Report, real_number, refused_name
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState


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
