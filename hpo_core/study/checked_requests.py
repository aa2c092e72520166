"""Checks of what people ask of a study and of what a loop by hand tells it.

After a search its winner is trained for longer than any rung (Li et al. 2020, A.3; Li et al. 2019, 4.3.2). Such a job
has the stage :class:`~hpo_core.model.trial.Further`; ``Study.train_further`` states the rules.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from hpo_core.model.errors import HpoError, ObjectiveError
from hpo_core.model.nested_names import flattened
from hpo_core.model.reported_value import real_number, refused_name
from hpo_core.model.space import same_scalar
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Job, Metrics, Outcome, Params, Report
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
    """Whether a trial, or a configuration in the queue, has these values already."""
    known = [*(trial.params for trial in state.trials), *state.queue]
    return any(all(name in one and same_scalar(one[name], given[name]) for name in given) for one in known)


MAX_RESOURCE = 2**53
"""Above it a float no longer tells two resources apart."""


def check_training(state: StudyState, study: str, trial: int | None, to: int, *, searching: bool) -> int:
    """The trial to train further than the search did, or None's: the best; see ``Study.trial_to_train``.

    Args:
        searching: whether the study may still promote it by itself.
    """
    where = f"Study {study!r}"
    if searching:
        raise HpoError(
            f"{where}: its search is not over, and may train that trial further by itself. Let it finish first "
            f"(`hpo resume {study}`), or interrupt it: a halted search stays halted meanwhile."
        )
    if trial is None:
        if state.incumbent is None:
            raise HpoError(
                f"{where} has no finite result yet{_feasible(state)}, so there is no best trial to train further."
            )
        trial = state.incumbent.trial
    if isinstance(trial, bool) or not isinstance(trial, int) or not 0 <= trial < len(state.trials):
        known = f"its trials are 0 to {len(state.trials) - 1}" if state.trials else "it has none yet"
        raise HpoError(f"{where} has no trial {trial!r}; {known}.")
    record = state.trials[trial]
    where = f"{where}, trial {trial}"
    if record.abandoned is not None:
        raise HpoError(f"{where} was abandoned ({record.abandoned.reason}); train another trial further.")
    if trial in state.waiting or (record.running and trial not in state.extended):
        raise HpoError(f"{where}: its job for the search is not done; `hpo resume {study}` goes on with it first.")
    results = record.all_results
    if not results:
        raise HpoError(f"{where} has no result yet; train a trial further that has one.")
    if record.loss is None and not results[-1].losses:
        raise HpoError(
            f"{where}: its loss at {record.resource} is not finite, so nothing good comes of more training; take "
            "another trial."
        )
    if isinstance(to, bool) or not isinstance(to, int) or not record.resource < to <= MAX_RESOURCE:
        raise HpoError(
            f"{where} is trained to {record.resource} already; to = {to!r} must be an integer above that and at most "
            f"{MAX_RESOURCE:,}, for it counts all units of training, those behind the trial included."
        )
    asked = state.extended.get(trial)
    if asked is not None and to < asked.target:
        raise HpoError(f"{where} is to be trained to {asked.target} already; give at least that.")
    return trial


def _feasible(state: StudyState) -> str:
    return " that satisfies its constraints" if state.infeasible_results else ""


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
    if not (record.running or record.waiting or trial in state.extended) and trial in ruled_out:
        raise HpoError(f"Study {study!r}: trial {trial} will not go on anyway; there is nothing to give up.")
