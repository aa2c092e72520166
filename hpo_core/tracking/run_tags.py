"""The tags of a study's run and of its trials' runs in MLflow: one line each. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from hpo_core.model.events import Reproduced
from hpo_core.model.stage import FURTHER
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.tracking.mlflow_names import tag_value
from hpo_core.tracking.run_contents import description
from hpo_core.tracking.tracked_study import TrackedStudy, TrialNotes
from hpo_core.views.summary import StudySummary, summarize

PARENT_RUN = "mlflow.parentRunId"
CURSOR = "hpo.projected_seq"
DIGEST = "hpo.projected_digest"
"""Digest of the journal up to the cursor: it tells an older journal that was put back and went on otherwise."""

_COLORS = {"front": "#d9480f", "dominated": "#adb5bd"}
"""By place on the Pareto front: MLflow draws each run in a colour of its own, among which no front is seen."""


class _Trial(NamedTuple):
    """What the tags of a trial's run are read from."""

    fold: TrackedStudy
    record: TrialRecord
    notes: TrialNotes
    reproduced: Reproduced | None
    """How it came to be, in a later generation of a population."""


TRIAL_TAGS: dict[str, Callable[[_Trial], object]] = {
    "hpo.kind": lambda trial: "trial",
    "hpo.trial": lambda trial: trial.record.number,
    "hpo.bracket": lambda trial: trial.record.bracket,
    "hpo.rung": lambda trial: _rung_of(trial),
    "hpo.resource": lambda trial: trial.record.resource,
    "hpo.state": lambda trial: trial.record.status,
    "hpo.parent": lambda trial: trial.record.parent,
    "hpo.generation": lambda trial: _in_population(trial, 0, "generation"),
    "hpo.member": lambda trial: _in_population(trial, trial.record.number, "member"),
    "hpo.initiator": lambda trial: _in_population(trial, None, "initiator"),
    "hpo.opponent": lambda trial: _in_population(trial, None, "opponent"),
    "hpo.worker": lambda trial: trial.notes.worker,
    "hpo.device": lambda trial: trial.notes.device,
    "hpo.outcome": lambda trial: trial.notes.outcome,
    "hpo.failure": lambda trial: trial.notes.failure,
    "hpo.nonfinite": lambda trial: trial.notes.nonfinite,
    "hpo.feasible": lambda trial: _feasible(trial),
    "hpo.violation": lambda trial: trial.record.all_results[-1].total_violation if trial.record.infeasible else None,
    "hpo.pareto": lambda trial: _pareto(trial.fold, trial.record),
    "mlflow.runColor": lambda trial: _COLORS.get(_pareto(trial.fold, trial.record) or ""),
    "hpo.stopped": lambda trial: trial.record.stopped and trial.fold.names.stop_line(trial.record.stopped),
    "hpo.trained_further": lambda trial: trial.record.further[-1].resource if trial.record.further else None,
    "hpo.abandoned": lambda trial: trial.record.abandoned and trial.record.abandoned.reason,
}
"""Tags of a trial's run, one a line; an empty value is no tag."""

STUDY_TAGS: dict[str, Callable[[StudySummary], object]] = {
    "hpo.trials": lambda study: study.trials,
    "hpo.jobs": lambda study: study.jobs,
    "hpo.failed_attempts": lambda study: study.failed_attempts,
    "hpo.abandoned_trials": lambda study: study.abandoned,
    "hpo.resource_used": lambda study: study.resource,
    "hpo.halted": lambda study: study.reason,
    "hpo.infeasible_results": lambda study: study.infeasible if study.constraints else None,
    "hpo.stop_rule": lambda study: study.rule,
    "hpo.best_trial": lambda study: study.best and study.best.trial,
    "hpo.best_value": lambda study: study.best and repr(study.best.value),
    "hpo.best_spread": lambda study: study.best and study.best.spread and study.best.spread.words,
    "hpo.best_resource": lambda study: study.best and study.best.resource,
    "hpo.best_params": lambda study: study.best and json.dumps(study.best.params),
    "hpo.front_size": lambda study: len(study.front) if study.front and len(study.front[0].values) > 1 else None,
}
"""Tags of the study's run that change as it goes on, one a line; None is no tag."""


def identity(fold: TrackedStudy) -> dict[str, str]:
    """Tags that tell this study from all others, also from a deleted one of the same name."""
    return {"hpo.study": fold.spec.study, "hpo.created": repr(fold.created)}


def source_tags(spec: StudySpec) -> dict[str, str]:
    """What MLflow shows as the source of a run."""
    return {"mlflow.source.name": spec.objective or "driven by hand", "mlflow.source.type": "LOCAL"}


def trial_tags(fold: TrackedStudy, number: int, parent_run: str) -> dict[str, str]:
    """Tags of a trial's run."""
    trial = _Trial(fold, fold.state.trials[number], fold.trials[number], fold.state.reproduced.get(number))
    values = {key: value_of(trial) for key, value_of in TRIAL_TAGS.items()}
    return {PARENT_RUN: parent_run, **identity(fold), **source_tags(fold.spec)} | {
        key: tag_value(str(value)) for key, value in values.items() if value is not None and value != ""
    }


def _rung_of(trial: _Trial) -> int:
    """The rung that its running or latest job is for, as a place in its ladder."""
    record = trial.record
    searching = record.granted is not None and record.granted.rung != FURTHER
    rung = record.granted.rung if record.granted is not None and searching else record.rung
    return trial.fold.names.place(record.bracket, rung)[1]


def _in_population(trial: _Trial, at_first: int | None, field: str) -> int | None:
    """A field of how it came to be; ``at_first`` in generation 0; None where there is no population."""
    if not trial.fold.state.has_members:
        return None
    found: int | None = at_first if trial.reproduced is None else getattr(trial.reproduced, field)
    return found


def _pareto(fold: TrackedStudy, trial: TrialRecord) -> str | None:
    """``front`` or ``dominated``: whether a result of the trial is on the Pareto front; None for one objective."""
    if len(fold.spec.objectives) == 1 or all(result.loss is None or result.infeasible for result in trial.results):
        return None
    return "front" if any(member.trial == trial.number for member in fold.state.front) else "dominated"


def _feasible(trial: _Trial) -> str | None:
    """``true`` or ``false``: whether the latest finite result satisfies the constraints; None where there are none."""
    if not trial.fold.spec.constraints or trial.record.loss is None:
        return None
    return "false" if trial.record.infeasible else "true"


def study_tags(
    fold: TrackedStudy, status: str, best_run: str | None, *, loading: str = "", table: str = "", charts: str = ""
) -> dict[str, str]:
    """Tags of the study's run that change as it goes on.

    Args:
        loading: how the best model is loaded, for the description.
        table: link to the table of its trials.
        charts: link to their charts.
    """
    summary = summarize(fold.study)
    values: dict[str, object] = {
        **source_tags(fold.spec),
        "hpo.status": status,
        "mlflow.note.content": description(fold, status, loading=loading, table=table, charts=charts),
        "hpo.best_run": best_run,
    }
    values |= {key: value_of(summary) for key, value_of in STUDY_TAGS.items()}
    return {key: tag_value(str(value)) for key, value in values.items() if value is not None}
