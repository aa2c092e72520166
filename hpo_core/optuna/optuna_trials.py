"""A study's trials as Optuna's: states, values, intermediate values, attributes.

Optuna has no word for a paused trial, and changes no trial that has ended there. So a trial is

========  ==========================================================================================
COMPLETE  trained to the full resource, with a finite value; at the end of a search that never got
          there (PASHA's ceiling, a stop rule): trained to the highest resource that any trial reached
PRUNED    stopped by the search; at the end also: paused at a lower rung
FAIL      abandoned, diverged at the full resource, or at the end without any result
RUNNING   all else: running, paused at a rung (it may go on), waiting to be tried again
========  ==========================================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hpo_core.model.errors import JournalError
from hpo_core.model.events import AttemptReported, Entry, JobCompleted, TrialAbandoned, TrialCreated
from hpo_core.model.space.search_space import shown
from hpo_core.model.trial import Report
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord

TRIAL = "hpo.trial"
"""User attribute: the trial's number here; Optuna's own is the same unless somebody else adds trials."""
CONSTRAINT_NAMES = "hpo.constraints"
"""User attribute of the study."""
CONSTRAINTS = "constraints"
"""System attribute that every version of Optuna reads."""


class OptunaTrials:
    """A study's trials as Optuna shows them, followed entry by entry.

    Args:
        state: the study's; each entry is added after the state took it in.
    """

    def __init__(self, spec: StudySpec, state: StudyState) -> None:
        self._spec = spec
        self._state = state
        self._space = spec.search_space()
        self._shares_rungs = spec.search.outline().shared_rungs
        self._full = spec.search.outline().max_resource
        self._signs = [metric.sign for metric in spec.objectives]
        self._curves: list[dict[int, float]] = []
        """By trial: values of the first metric by resource."""
        self._began: list[float] = []
        self._ended: dict[int, float] = {}
        self._best = 0
        """The highest resource with a finite result."""

    def add(self, entry: Entry) -> None:
        report = entry.stimulus.report if type(entry.stimulus) is AttemptReported else None
        for event in entry.events:
            if type(event) is TrialCreated:
                self._curves.append({})
                self._began.append(entry.time)
            if type(event) is JobCompleted:
                self._ended[event.trial] = event.ended or entry.time
                self._add_curve(event.trial, report, event.resource)
                self._curves[event.trial][event.resource] = self._values(event)[0]
                if event.loss is not None:
                    self._best = max(self._best, event.resource)
            elif type(event) is TrialAbandoned:
                self._ended[event.trial] = entry.time
                granted = self._state.trials[event.trial].granted
                if granted is not None:  # nobody trains these steps again, and they show how it failed
                    self._add_curve(event.trial, report, granted.target)

    def frozen(self, number: int, *, ended: bool) -> FrozenTrial:
        """The trial as Optuna shows it.

        Args:
            ended: whether the search is over, so that what is paused does not go on.
        """
        record = self._state.trials[number]
        state = self._state_of(record, ended=ended)
        params, distributions, others = shown(self._space, record.params)
        last = record.results[-1] if record.results else None
        values = None if last is None else self._values(last)
        if values is not None and (state is TrialState.FAIL or math.isnan(values[0])):
            values = None
        constraints, began = self._constraints(last), self._began[number]
        completed = datetime.fromtimestamp(max(self._ended.get(number, 0.0), began))
        return FrozenTrial(
            number=number,
            trial_id=number,
            state=state,
            value=None,
            values=values if state.is_finished() else None,
            datetime_start=datetime.fromtimestamp(began),
            datetime_complete=completed if state.is_finished() else None,
            params=params,
            distributions=distributions,
            user_attrs=self._attributes(record, others),
            system_attrs={} if constraints is None else {CONSTRAINTS: constraints},
            intermediate_values=dict(sorted(self._curves[number].items())),
        )

    def _state_of(self, record: TrialRecord, *, ended: bool) -> TrialState:
        if record.abandoned is not None:
            return TrialState.FAIL
        full = self._full
        if ended and (full is None or full > self._best):
            full = self._best
        if record.results and full is not None and record.resource >= full:
            return TrialState.FAIL if math.isnan(self._values(record.results[-1])[0]) else TrialState.COMPLETE
        if record.stopped is not None or ended:
            return TrialState.PRUNED if record.results else TrialState.FAIL
        return TrialState.RUNNING

    def _values(self, result: JobCompleted) -> list[float]:
        losses = result.losses or (result.loss,)
        if result.loss is None or any(loss != loss for loss in losses):
            return [math.nan] * len(self._signs)
        return [loss * sign for loss, sign in zip(losses, self._signs, strict=True) if loss is not None]

    def _constraints(self, result: JobCompleted | None) -> list[float] | None:
        if result is None or result.loss is None or not self._spec.constraints:
            return None
        return [result.metrics[name] for name in self._spec.constraints]

    def _add_curve(self, number: int, report: Report | None, target: int) -> None:
        if report is None or report.trial != number:
            return
        name = self._spec.metric.name
        for point in report.curve:
            if point.resource <= target and (value := point.metrics.get(name)) is not None:
                self._curves[number].setdefault(point.resource, value if math.isfinite(value) else math.nan)

    def _attributes(self, record: TrialRecord, others: dict[str, Any]) -> dict[str, Any]:
        # User attributes: facts that Optuna has no field for; none changes once the trial has ended there.
        number, last = record.number, record.results[-1] if record.results else None
        grant = record.granted
        timed = [result for result in record.results if result.started]
        bracket, rung = record.bracket, record.rung if grant is None else max(grant.rung, record.rung)
        found: dict[str, Any] = {
            TRIAL: number,
            "hpo.bracket": None if self._shares_rungs else bracket,
            "hpo.rung": bracket + rung if self._shares_rungs else rung,
            "hpo.resource": record.resource,
            "hpo.parent": record.parent,
            "hpo.queued": record.queued or None,
            "hpo.worker": last.worker if last is not None and last.worker else None,
            "hpo.seconds": round(sum(max(0.0, one.ended - one.started) for one in timed), 3) if timed else None,
            "hpo.failure": None if not record.failures else str(record.failures[-1].outcome),
            "hpo.abandoned": None if record.abandoned is None else record.abandoned.reason,
            "hpo.stopped": None if record.stopped is None else True,
        }
        if self._state.has_members:
            born = self._state.reproduced.get(number)
            found |= {
                "hpo.member": number if born is None else born.member,
                "hpo.generation": 0 if born is None else born.generation,
                "hpo.initiator": None if born is None else born.initiator,
            }
        found |= {f"hpo.param.{name}": value for name, value in others.items()}
        objectives = {metric.name for metric in self._spec.objectives}
        if last is not None:
            finite = {name: value for name, value in last.metrics.items() if math.isfinite(value)}
            found |= {name: value for name, value in finite.items() if name not in objectives}
        return {name: value for name, value in found.items() if value is not None}


def copy_to_optuna(entries: Iterable[Entry], storage: Any, name: str, *, ended: bool) -> optuna.Study:
    """A new Optuna study that holds what these entries say.

    Args:
        ended: whether the search is over, so that what is paused does not go on.

    Raises:
        optuna.exceptions.DuplicatedStudyError: the storage holds a study of that name.
    """
    state = StudyState()
    trials: OptunaTrials | None = None
    for entry in entries:
        for event in entry.events:
            state.apply(event)
        if trials is None:
            assert state.spec is not None
            trials = OptunaTrials(state.spec, state)
        trials.add(entry)
    if trials is None or state.spec is None:
        raise JournalError(f"Study {name!r}: its journal holds no entry.")
    modes = [metric.mode for metric in state.spec.objectives]
    directions = [StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE for mode in modes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is experimental, and of ranges whose end is on no step
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        finally:
            optuna.logging.set_verbosity(verbosity)
        study.set_metric_names([metric.name for metric in state.spec.objectives])
        if state.spec.constraints:
            study.set_user_attr(CONSTRAINT_NAMES, list(state.spec.constraints))
        for number in range(len(state.trials)):
            study._storage.create_new_trial(study._study_id, template_trial=trials.frozen(number, ended=ended))
    return study
