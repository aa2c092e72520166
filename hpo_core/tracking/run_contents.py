"""What the runs of a study and of its trials show: parameters, tags, status, description. Pure."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from hpo_core.model.space import NumberParameter
from hpo_core.model.stage import FURTHER
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.tracking.mlflow_names import legal_key, param_value, tag_value
from hpo_core.tracking.study_fold import StudyFold
from hpo_core.views.rung_names import halt_words
from hpo_core.views.rungs import entrances

PARENT_RUN = "mlflow.parentRunId"
CURSOR = "hpo.projected_seq"
DIGEST = "hpo.projected_digest"
"""Digest of the journal up to the cursor: it tells an older journal that was put back and went on otherwise."""
_LONGEST_LIST = 250


def identity(fold: StudyFold) -> dict[str, str]:
    """Tags that tell this study from all others, also from a deleted one of the same name."""
    return {"hpo.study": fold.spec.study, "hpo.created": repr(fold.created)}


def trial_name(number: int) -> str:
    """Run name of a trial."""
    return f"trial-{number:05d}"


def trial_params(spec: StudySpec, trial: TrialRecord) -> dict[str, str]:
    """Parameters of a trial, and logarithms where the space is logarithmic: MLflow's axes are linear.

    ``study`` tells trials apart on a page that compares several studies; within one it does not differ, and MLflow
    leaves it out of the axes by itself.
    """
    shown = {legal_key(name): param_value(value) for name, value in trial.params.items()}
    for name, value in trial.params.items():
        parameter = spec.space.get(name)
        if not isinstance(parameter, NumberParameter) or not parameter.log:
            continue
        if isinstance(value, int | float) and value > 0:
            shown.setdefault(legal_key(f"log10_{name}"), repr(round(math.log10(value), 6)))
    shown.setdefault("study", spec.study)
    return shown


def trial_tags(fold: StudyFold, number: int, parent_run: str) -> dict[str, str]:
    """Tags of a trial's run."""
    trial, notes = fold.state.trials[number], fold.trials[number]
    searching = trial.granted is not None and trial.granted.rung != FURTHER
    rung = fold.names.place(trial.bracket, trial.granted.rung if trial.granted and searching else trial.rung)[1]
    tags = {
        PARENT_RUN: parent_run,
        **identity(fold),
        "hpo.kind": "trial",
        "hpo.trial": str(number),
        "hpo.bracket": str(trial.bracket),
        "hpo.rung": str(rung),
        "hpo.resource": str(trial.resource),
        "hpo.state": trial.status,
    }
    if fold.state.has_members:
        born = fold.state.reproduced.get(number)
        tags["hpo.generation"] = str(born.generation if born is not None else 0)
        tags["hpo.member"] = str(born.member if born is not None else number)
        if born is not None:
            tags["hpo.initiator"] = str(born.initiator)
        if born is not None and born.opponent is not None:
            tags["hpo.opponent"] = str(born.opponent)
    optional = {
        "hpo.parent": None if trial.parent is None else str(trial.parent),
        "hpo.worker": notes.worker,
        "hpo.outcome": notes.outcome,
        "hpo.failure": notes.failure,
        "hpo.nonfinite": notes.nonfinite,
        "hpo.pareto": _pareto(fold, trial),
        "hpo.stopped": fold.names.stopped(trial.stopped) if trial.stopped is not None else None,
        "hpo.trained_further": str(trial.further[-1].resource) if trial.further else None,
        "hpo.abandoned": trial.abandoned.reason if trial.abandoned is not None else None,
    }
    tags.update({key: tag_value(value) for key, value in optional.items() if value})
    return tags


def _pareto(fold: StudyFold, trial: TrialRecord) -> str | None:
    """``front`` or ``dominated``: whether a result of the trial is on the Pareto front; None for one objective."""
    if len(fold.spec.objectives) == 1 or all(result.loss is None for result in trial.results):
        return None
    return "front" if any(member.trial == trial.number for member in fold.state.front) else "dominated"


def trial_run_status(fold: StudyFold, number: int, *, driven: bool) -> tuple[str, float | None]:
    """MLflow status of a trial's run, and when it last ended (None: never)."""
    trial, notes = fold.state.trials[number], fold.trials[number]
    status = trial.status
    if status == "abandoned":
        return "FAILED", notes.ended
    if status in ("paused", "stopped"):
        return "FINISHED", notes.ended
    if not driven:
        return "KILLED", fold.time
    if status != "running" and fold.state.halted is not None:
        return "KILLED", notes.ended or fold.time
    return "RUNNING", notes.ended


def study_run_status(fold: StudyFold, *, driven: bool) -> tuple[str, str]:
    """MLflow status of the study's run, and our own word for it."""
    status = fold.status
    if status == "finished":
        return "FINISHED", status
    if status == "halted":
        return "KILLED", status
    return ("RUNNING", status) if driven else ("KILLED", "interrupted")


def study_params(spec: StudySpec) -> dict[str, str]:
    """What was asked for, flattened: ``search.configs``, ``space.lr``, ..."""
    plain = spec.plain()
    shown: dict[str, str] = {}
    for part in ("objective", "metric", "seed", "search", "sampler"):
        _flatten(part, plain[part], shown)
    if len(spec.objectives) > 1:
        shown["metrics"] = param_value(", ".join(f"{metric.name} ({metric.mode})" for metric in spec.objectives))
    _flatten("stop", {key: value for key, value in plain["stop"].items() if value is not None}, shown)
    for name, parameter in spec.space.items():
        given = json.dumps(parameter.model_dump(mode="json", exclude_defaults=True))
        shown[legal_key(f"space.{name}")] = param_value(given)
    return shown


def study_tags(fold: StudyFold, status: str, best_run: str | None) -> dict[str, str]:
    """Tags of the study's run that change as it goes on."""
    state = fold.state
    tags = {
        "hpo.status": status,
        "hpo.trials": str(len(state.trials)),
        "hpo.jobs": str(state.completed_jobs),
        "hpo.failed_attempts": str(state.failed_attempts),
        "hpo.abandoned_trials": str(state.abandoned_trials),
        "hpo.resource_used": str(state.resource_used),
        "hpo.halted": tag_value(state.halted.reason) if state.halted is not None else "",
        "hpo.stop_rule": state.halted.rule if state.halted is not None else "",
        "mlflow.note.content": tag_value(_note(fold, status)),
    }
    best = state.incumbent
    if best is not None:
        tags |= {
            "hpo.best_trial": str(best.trial),
            "hpo.best_value": repr(best.loss * fold.spec.metric.sign),
            "hpo.best_resource": str(best.resource),
            "hpo.best_params": tag_value(json.dumps(state.trials[best.trial].params)),
        }
        if best_run is not None:
            tags["hpo.best_run"] = best_run
        if len(fold.spec.objectives) > 1:
            tags["hpo.front_size"] = str(len(state.front))
    return tags


def _note(fold: StudyFold, status: str) -> str:
    spec, state = fold.spec, fold.state
    created = datetime.fromtimestamp(fold.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    metrics = ", ".join(f"{markdown_code(metric.name)} ({metric.mode})" for metric in spec.objectives)
    lines = [
        f"**Study {spec.study}** ({status}), created {created}",
        "",
        f"- minimizes or maximizes: {metrics}",
        f"- search: {spec.search.method}, sampler {spec.sampler.name}, seed {spec.seed}",
        f"- objective: `{spec.objective or 'driven by hand'}`",
    ]
    best = state.incumbent
    if best is not None:
        lines.append(
            f"- best: {markdown_text(spec.metric.name)} = {best.loss * spec.metric.sign:.6g} "
            f"by {trial_name(best.trial)} after {best.resource} units, "
            f"with {markdown_code(json.dumps(state.trials[best.trial].params))}"
        )
    if len(spec.objectives) > 1:
        numbers = sorted({member.trial for member in state.front})
        lines.append(
            f"- Pareto front: {len(state.front)} results of {len(numbers)} trials (tag `hpo.pareto` = `front`, file "
            "`front.json`)"
        )
    if enter := entrances(spec):
        places = ", ".join(f"bracket {bracket} at {level}" for bracket, level in enter.items())
        lines.append(f"- all brackets share their rungs; trials enter them by bracket: {places}")
    lines += [f"- {fold.names.raised(event)}" for event in state.ceilings]
    if state.halted is not None:
        lines.append(f"- halted: {markdown_text(halt_words(spec, state.halted))}")
    lines += [
        "",
        "A copy: the record is the study's journal. Each child run is a trial; `promotions.json` says who "
        f"went on when, and why. `hpo show {spec.study}` tells more.",
    ]
    return "\n".join(lines)


def _flatten(key: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _flatten(f"{key}.{name}", item, into)
    elif isinstance(value, list):
        text = json.dumps(value)
        into[legal_key(key)] = text if len(text) <= _LONGEST_LIST else f"{len(value)} items"
    else:
        into[legal_key(key)] = param_value(value)
