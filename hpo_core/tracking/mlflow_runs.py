"""Contents of the runs of a study and its trials in MLflow: parameters, status, description, tags, table. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hpo_core.model.events import Reproduced
from hpo_core.model.space import NumberParameter
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.state import TrialRecord
from hpo_core.study import Study
from hpo_core.tracking.tracked_study import FINAL, MetricPoint, TrackedStudy, TrialNotes
from hpo_core.tracking.tracker_links import legal_key, param_value, tag_value
from hpo_core.views.rungs import halt_words
from hpo_core.views.states import study_word, trial_state, trial_story
from hpo_core.views.summary import (
    StudySummary,
    constraint_words,
    other_best_words,
    rule_words,
    summarize,
)

_STATUS_OF_STUDY = {"running": "RUNNING", "interrupted": "KILLED", "halted": "KILLED", "finished": "FINISHED"}
"""Word for a study to the status of its run."""
_STATUS_OF_TRIAL = {"paused": "FINISHED", "stopped": "FINISHED", "abandoned": "FAILED"}
"""Status of a trial to that of its run, which runs in all other cases."""
_LONGEST_LIST = 250


def trial_params(spec: StudySpec, trial: TrialRecord) -> dict[str, str]:
    """Parameters of a trial, and logarithms where the space is logarithmic: MLflow's axes are linear.

    ``study`` tells trials apart on a page that compares several studies; within one it does not differ, and MLflow
    leaves it out of the axes by itself.
    """
    shown = {legal_key(name): param_value(value) for name, value in (spec.constants | trial.params).items()}
    for name, value in trial.params.items():
        parameter = spec.space.get(name)
        if not isinstance(parameter, NumberParameter) or not parameter.log:
            continue
        if isinstance(value, int | float) and value > 0:
            shown.setdefault(legal_key(f"log10_{name}"), repr(round(math.log10(value), 6)))
    shown.setdefault("study", spec.study)
    return shown


def trial_run_status(fold: TrackedStudy, number: int, *, has_controller: bool) -> tuple[str, float | None]:
    trial, notes = fold.state.trials[number], fold.trials[number]
    if trial.status in _STATUS_OF_TRIAL:
        return _STATUS_OF_TRIAL[trial.status], notes.ended
    if not has_controller:
        return "KILLED", fold.time
    if not trial.running and fold.state.halted is not None:
        return "KILLED", notes.ended or fold.time
    return "RUNNING", notes.ended


def study_run_status(fold: TrackedStudy, *, has_controller: bool) -> tuple[str, str]:
    word = study_word(fold.study, driven=has_controller)
    return _STATUS_OF_STUDY[word], word


def study_params(spec: StudySpec) -> dict[str, str]:
    plain = spec.plain()
    shown: dict[str, str] = {}
    for part in ("objective", "metric", "seed", "search", "sampler"):
        _flatten(part, plain[part], shown)
    if len(spec.objectives) > 1:
        shown["metrics"] = param_value(", ".join(f"{metric.name} ({metric.mode})" for metric in spec.objectives))
    _flatten("stop", {key: value for key, value in plain["stop"].items() if value is not None}, shown)
    _flatten("constants", spec.constants, shown)
    for name, parameter in spec.space.items():
        given = json.dumps(parameter.model_dump(mode="json", exclude_defaults=True))
        shown[legal_key(f"space.{name}")] = param_value(given)
    return shown


def description(fold: TrackedStudy, status: str, *, loading: str = "") -> str:
    """Markdown above a study's run: what it searches, its best, and where to look next."""
    spec, state = fold.spec, fold.state
    created = datetime.fromtimestamp(fold.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"**Study {spec.study}** ({status}), created {created}", ""]
    best = state.incumbent
    if best is not None and len(spec.objectives) == 1:
        lines.append(
            f"- best: {markdown_text(spec.metric.name)} = {best.loss * spec.metric.sign:.6g} "
            f"by trial {best.trial} after {best.resource} units{rule_words(fold.study)}, "
            f"with {markdown_code(json.dumps(state.trials[best.trial].params))}"
        )
    if other := other_best_words(fold.study):
        lines.append(f"- {markdown_text(other)}")
    if len(spec.objectives) > 1:
        numbers = sorted({member.trial for member in state.front})
        lines.append(
            f"- best: the Pareto front of {len(state.front)} results of {len(numbers)} trials (tag `hpo.pareto` = "
            "`front`, file `front.json`)"
        )
    lines += [
        f'- its trials: filter `params.study = "{spec.study}"`, sort by `{legal_key(f"{FINAL}{spec.metric.name}")}`',
    ]
    if words := constraint_words(spec, state.infeasible_results):
        lines.append(f"- constraints: {markdown_text(words)}")
    if state.halted is not None:
        lines.append(f"- halted: {markdown_text(halt_words(spec, state.halted))}")
    lines += [
        "",
        "A copy: the record is the study's journal. Each child run is a trial; `promotions.csv` says who "
        f"went on when, and why. `hpo show {spec.study}` tells more.",
        *(["", f"**The best model.** {loading}"] if loading and status != "running" else []),
    ]
    return "\n".join(lines)


def cost_points(fold: TrackedStudy) -> list[MetricPoint]:
    state = fold.state
    found = {
        "cost/resource": float(state.resource_used),
        "cost/jobs": float(state.completed_jobs),
        "cost/failed_attempts": float(state.failed_attempts),
        "cost/seconds": fold.seconds,
        "trials/all": float(len(state.trials)),
        **{f"trials/{word.replace(' ', '_')}": float(count) for word, count in _states(fold).items()},
    }
    return [MetricPoint(key, value, fold.time, 0) for key, value in found.items()]


def _states(fold: TrackedStudy) -> dict[str, int]:
    # Trials by state; the winner counts as completed.
    found = Counter(trial_state(fold.study, trial) for trial in fold.state.trials)
    best = found.pop("winner", 0) + found.pop("best so far", 0)
    states = ("completed", "not promoted", "stopped", "diverged", "abandoned", "paused", "running")
    known = dict.fromkeys(states, 0)  # a state that no trial is in any more is 0
    return known | found | {"completed": found["completed"] + best}


def _story(study: Study, trial: TrialRecord) -> str:
    head = f"**Trial {trial.number} of study {study.name}**: {trial_state(study, trial)}\n\n"
    story = (line if len(line) <= 500 else f"{line[:500]} ..." for line in trial_story(study, trial.number))
    return head + "\n".join(f"- {markdown_text(line)}" for line in story)


def promotions_csv(fold: TrackedStudy) -> str:
    """All promotions, one a line: time, trial, from where to where, its value and place, and the rule."""
    metric = fold.spec.metric
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["time", "trial", "bracket", "to rung", "trained", "to", metric.name, "place", "among", "rule"])
    outline = fold.spec.search.outline()
    of_generations = outline.independent or outline.members or outline.population is not None
    for one in fold.promotions:
        value = "" if one.loss is None else one.loss * metric.sign
        rule = "next generation" if of_generations else f"best 1/{outline.reduction_factor:g}"
        when = datetime.fromtimestamp(one.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        place = (one.rank, one.among) if one.rank else ("", "")
        writer.writerow([when, one.trial, one.bracket, one.rung, one.resource, one.target, value, *place, rule])
    return written.getvalue()


def _flatten(key: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _flatten(f"{key}.{name}", item, into)
    elif isinstance(value, list):
        text = json.dumps(value)
        into[legal_key(key)] = text if len(text) <= _LONGEST_LIST else f"{len(value)} items"
    else:
        into[legal_key(key)] = param_value(value)


PARENT_RUN = "mlflow.parentRunId"
CURSOR = "hpo.projected_seq"


class _Trial(NamedTuple):
    """Source of the tags of a trial's run."""

    fold: TrackedStudy
    record: TrialRecord
    notes: TrialNotes
    reproduced: Reproduced | None
    """None but in a later generation of a population."""


TRIAL_TAGS: dict[str, Callable[[_Trial], object]] = {
    "hpo.kind": lambda trial: "trial",
    "hpo.trial": lambda trial: trial.record.number,
    "hpo.bracket": lambda trial: trial.record.bracket,
    "hpo.rung": lambda trial: _rung_of(trial),
    "hpo.state": lambda trial: trial_state(trial.fold.study, trial.record),
    "mlflow.note.content": lambda trial: _story(trial.fold.study, trial.record),
    "hpo.parent": lambda trial: trial.record.parent,
    "hpo.generation": lambda trial: _in_population(trial, 0, "generation"),
    "hpo.member": lambda trial: _in_population(trial, trial.record.number, "member"),
    "hpo.failure": lambda trial: trial.notes.failure,
    "hpo.feasible": lambda trial: _feasible(trial),
    "hpo.pareto": lambda trial: _pareto(trial.fold, trial.record),
}
"""Tags of a trial's run, one a line; an empty value is no tag."""

STUDY_TAGS: dict[str, Callable[[StudySummary], object]] = {
    "hpo.halted": lambda study: study.reason,
    "hpo.stop_rule": lambda study: study.rule,
    "hpo.best_trial": lambda study: study.best and study.best.trial,
}
"""Tags of the study's run that change as it goes on, one a line; None is no tag."""


def identity(fold: TrackedStudy) -> dict[str, str]:
    """Tags that tell this study from all others, also from a deleted one of the same name."""
    return {"hpo.study": fold.spec.study, "hpo.created": repr(fold.created)}


def source_tags(spec: StudySpec) -> dict[str, str]:
    return {"mlflow.source.name": short_name(spec.objective) or "driven by hand", "mlflow.source.type": "LOCAL"}


def trial_tags(fold: TrackedStudy, number: int, parent_run: str) -> dict[str, str]:
    trial = _Trial(fold, fold.state.trials[number], fold.trials[number], fold.state.reproduced.get(number))
    values = {key: value_of(trial) for key, value_of in TRIAL_TAGS.items()}
    return {PARENT_RUN: parent_run, **identity(fold), **source_tags(fold.spec)} | {
        key: tag_value(str(value)) for key, value in values.items() if value is not None and value != ""
    }


def _rung_of(trial: _Trial) -> int:
    record = trial.record
    rung = record.granted.rung if record.granted is not None else record.rung
    return trial.fold.names.place(record.bracket, rung)[1]


def _in_population(trial: _Trial, at_first: int | None, field: str) -> int | None:
    # A field of how it came to be; `at_first` in generation 0; None where there is no population.
    if not trial.fold.state.has_members:
        return None
    found: int | None = at_first if trial.reproduced is None else getattr(trial.reproduced, field)
    return found


def _pareto(fold: TrackedStudy, trial: TrialRecord) -> str | None:
    # `front` or `dominated`: whether a result of the trial is on the Pareto front; None for one objective.
    if len(fold.spec.objectives) == 1 or all(result.loss is None or result.violation for result in trial.results):
        return None
    return "front" if any(member.trial == trial.number for member in fold.state.front) else "dominated"


def _feasible(trial: _Trial) -> str | None:
    # `true` or `false`: whether the latest finite result satisfies the constraints; None where there are none.
    if not trial.fold.spec.constraints or trial.record.loss is None:
        return None
    return "false" if trial.record.infeasible else "true"


def study_tags(fold: TrackedStudy, status: str, best_run: str | None, *, loading: str = "") -> dict[str, str]:
    """Tags of the study's run that change as it goes on.

    Args:
        loading: how the best model is loaded, for the description.
    """
    summary = summarize(fold.study)
    values: dict[str, object] = {
        **source_tags(fold.spec),
        "hpo.status": status,
        "mlflow.note.content": description(fold, status, loading=loading),
        "hpo.best_run": best_run,
    }
    values |= {key: value_of(summary) for key, value_of in STUDY_TAGS.items()}
    return {key: tag_value(str(value)) for key, value in values.items() if value is not None}
