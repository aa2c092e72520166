"""What the runs of a study and of its trials show beside tags: parameters, status, description. Pure."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from hpo_core.model.space import NumberParameter
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.spec import StudySpec
from hpo_core.state import TrialRecord
from hpo_core.tracking.mlflow_names import legal_key, param_value
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.rungs import entry_levels, halt_words
from hpo_core.views.summary import constraint_words, front_members, other_best_words, rule_words, spread_of

_LONGEST_LIST = 250
_LONGEST_FRONT = 20
"""Rows of the table in the study's description."""


def trial_name(number: int) -> str:
    """Run name of a trial."""
    return f"trial-{number:05d}"


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
    """MLflow status of a trial's run, and when it last ended (None: never)."""
    trial, notes = fold.state.trials[number], fold.trials[number]
    status = trial.status
    if status == "abandoned":
        return "FAILED", notes.ended
    if status in ("paused", "stopped"):
        return "FINISHED", notes.ended
    if not has_controller:
        return "KILLED", fold.time
    if status != "running" and fold.state.halted is not None:
        return "KILLED", notes.ended or fold.time
    return "RUNNING", notes.ended


def study_run_status(fold: TrackedStudy, *, has_controller: bool) -> tuple[str, str]:
    """MLflow status of the study's run, and our own word for it."""
    status = fold.status
    if status == "finished":
        return "FINISHED", status
    if status == "halted":
        return "KILLED", status
    return ("RUNNING", status) if has_controller else ("KILLED", "interrupted")


def study_params(spec: StudySpec) -> dict[str, str]:
    """What was asked for, flattened: ``search.configs``, ``space.lr``, ..."""
    plain = spec.plain()
    shown: dict[str, str] = {}
    for part in ("objective", "metric", "seed", *(["repeats"] if spec.repeats > 1 else []), "search", "sampler"):
        _flatten(part, plain[part], shown)
    if len(spec.objectives) > 1:
        shown["metrics"] = param_value(", ".join(f"{metric.name} ({metric.mode})" for metric in spec.objectives))
    _flatten("stop", {key: value for key, value in plain["stop"].items() if value is not None}, shown)
    _flatten("constants", spec.constants, shown)
    for name, parameter in spec.space.items():
        given = json.dumps(parameter.model_dump(mode="json", exclude_defaults=True))
        shown[legal_key(f"space.{name}")] = param_value(given)
    return shown


def description(fold: TrackedStudy, status: str, *, loading: str = "", table: str = "", charts: str = "") -> str:
    """Markdown above a study's run: what it searches, its best, and where to look next."""
    spec, state = fold.spec, fold.state
    created = datetime.fromtimestamp(fold.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    metrics = ", ".join(f"{markdown_code(metric.name)} ({metric.mode})" for metric in spec.objectives)
    trials = f"; [all trials in a table, best first]({table}), [charts]({charts})" if table else ""
    lines = [f"**Study {spec.study}** ({status}), created {created}{trials}", ""]
    best = state.incumbent
    if best is not None and len(spec.objectives) == 1:
        found = spread_of(state, best)
        around = f"{found.short} " if found is not None else ""
        lines.append(
            f"- best: {markdown_text(spec.metric.name)} = {best.loss * spec.metric.sign:.6g} {around}"
            f"by {trial_name(best.trial)} after {best.resource} units{rule_words(spec)}, "
            f"with {markdown_code(json.dumps(state.trials[best.trial].params))}"
        )
    if other := other_best_words(fold.study):
        lines.append(f"- {markdown_text(other)}")
    if len(spec.objectives) > 1:
        numbers = sorted({member.trial for member in state.front})
        lines.append(
            f"- best: the Pareto front of {len(state.front)} results of {len(numbers)} trials, below (tag `hpo.pareto` "
            "= `front`, file `front.json`)"
        )
    lines += [
        f"- metric{'s' if len(spec.objectives) > 1 else ''}: {metrics}",
        f"- search: {spec.search.method}, sampler {spec.sampler.name}, seed {spec.seed}",
        f"- objective: `{spec.objective or 'driven by hand'}`",
    ]
    if words := constraint_words(spec, state.infeasible_results):
        lines.append(f"- constraints: {markdown_text(words)}")
    if enter := entry_levels(spec):
        places = ", ".join(f"bracket {bracket} at {level}" for bracket, level in enter.items())
        lines.append(f"- all brackets share their rungs; trials enter them by bracket: {places}")
    lines += [f"- {fold.names.ceiling_line(event)}" for event in state.ceilings]
    if state.halted is not None:
        lines.append(f"- halted: {markdown_text(halt_words(spec, state.halted))}")
    if len(spec.objectives) > 1:
        lines += front_table(fold)
    lines += [
        "",
        "A copy: the record is the study's journal. Each child run is a trial; `promotions.json` says who "
        f"went on when, and why. `hpo show {spec.study}` tells more.",
        *(["", f"**The best model.** {loading}"] if loading and status != "running" else []),
    ]
    return "\n".join(lines)


def front_table(fold: TrackedStudy) -> list[str]:
    """The Pareto front as a Markdown table, best first in the first objective; empty where there is none yet."""
    members = front_members(fold.spec, fold.state)
    if not members:
        return []
    names = [markdown_text(metric.name) for metric in fold.spec.objectives]
    lines = ["", f"| trial | trained to | {' | '.join(names)} | parameters |", "| --- " * (len(names) + 3) + "|"]
    for member in members[:_LONGEST_FRONT]:
        values = " | ".join(f"{value:.6g}" for value in member.values.values())
        params = markdown_code(json.dumps(member.params))
        lines.append(f"| {trial_name(member.trial)} | {member.resource} | {values} | {params} |")
    if (more := len(members) - _LONGEST_FRONT) > 0:
        lines += ["", f"{more} more are in `front.json`."]
    return lines


def _flatten(key: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _flatten(f"{key}.{name}", item, into)
    elif isinstance(value, list):
        text = json.dumps(value)
        into[legal_key(key)] = text if len(text) <= _LONGEST_LIST else f"{len(value)} items"
    else:
        into[legal_key(key)] = param_value(value)
