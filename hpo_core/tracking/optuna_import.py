"""``hpo import --from-optuna``: a study of Optuna's as a recorded one, for warm starts, reports and comparisons.

Its trials become a study that trained along a record: what Optuna holds, told again. The last value of a trial is its
result; what it reported before is kept as its curve.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from optuna import Study as OptunaStudy
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hpo_core.home import Home, checked_name
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.file_urls import sqlite_file
from hpo_core.model.short_text import meant_or_known
from hpo_core.model.space import parameter_of
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.trial import Job, Outcome, Point, Report
from hpo_core.security.masking import without_credentials
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.tracking.restore import refuse_taken
from hpo_core.tracking.tracker_links import reason_of


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an import."""

    study: str
    source: str
    """Name of the study in Optuna."""
    trials: int
    left_out: dict[str, int]
    """Trials without a result, by Optuna's state."""
    metrics: list[str]
    resource: int
    """Units of the longest training."""

    def lines(self) -> list[str]:
        """Lines for people."""
        rest = ", ".join(f"{count} {state}" for state, count in self.left_out.items())
        return [
            f"{self.study}: {self.trials} trials of Optuna's study {self.source!r}, up to {self.resource} units",
            f"metric{'s' if len(self.metrics) > 1 else ''}: {', '.join(self.metrics)}",
            *([f"left out, for they have no result: {rest}"] if rest else []),
            f"use it with warm_start: {{studies: [{self.study}]}}",
        ]


class _Trial(msgspec.Struct, frozen=True):
    frozen: FrozenTrial
    resource: int
    values: tuple[float, ...]
    """Values of all metrics at its last step."""
    curve: dict[int, float]


def import_study(
    home: Home,
    storage: str,
    source: str,
    *,
    name: str | None = None,
    metrics: Sequence[str] = (),
) -> Imported:
    """Write an Optuna study into the home's journal as a recorded study.

    Args:
        storage: database URL, or the path of a journal file.
        name: of the new study; default: as in Optuna.
        metrics: names of its values; default: those that Optuna keeps, else ``value``.

    Raises:
        StudyExistsError: the home has a study of that name.
        HpoError: the storage cannot be read, has no such study, or one that cannot be had; says why.
    """
    name = checked_name(name or source)
    refuse_taken(home, name)
    study = _load(storage, source)
    names = list(metrics) or list(study.metric_names or [])
    count = len(study.directions)
    names = names or (["value"] if count == 1 else [f"value_{number}" for number in range(count)])
    if len(names) != count:
        raise SpecError(f"--metric: Optuna's study {source!r} has {count} values, and {len(names)} names were given.")
    constraints = _constraint_names(study)
    found, left_out = _trials(study)
    if not found:
        raise HpoError(
            f"Optuna's study {source!r} has no trial with a result ({_counted(left_out)}); there is nothing to import."
        )
    spec = _spec(name, source, study, names, constraints, found)
    record = _played(spec, found, names, constraints)
    journal = home.open_journal()
    try:
        journal.restore(name, record.journal.entries(name))
    finally:
        journal.close()
    return Imported(
        study=name,
        source=source,
        trials=len(found),
        left_out=left_out,
        metrics=names,
        resource=max(trial.resource for trial in found),
    )


def plain_url(url: str) -> str:
    return url.replace("{", "{{").replace("}", "}}")


def _load(storage: str, source: str) -> OptunaStudy:
    import optuna

    shown = without_credentials(storage)
    path = sqlite_file(storage) if "://" in storage else Path(storage)
    if path is not None and not path.is_file():
        raise HpoError(f"{shown}: no such file. Name an Optuna storage: a database URL, or a journal file.")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if "://" in storage:
                opened: Any = optuna.storages.RDBStorage(plain_url(storage), skip_table_creation=True)
            else:
                from optuna.storages.journal import JournalFileBackend

                opened = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            names = [study.study_name for study in opened.get_all_studies()]
            if source in names:
                found = optuna.load_study(study_name=source, storage=opened)
                _read_all(found, shown)
                return found
    except HpoError:
        raise
    except Exception as error:
        raise HpoError(f"{shown} cannot be read as an Optuna storage ({reason_of(error)}).") from error
    finally:
        optuna.logging.set_verbosity(verbosity)
    raise HpoError(f"{shown} has no study {source!r}; {meant_or_known(source, names, 'it has')}")


def _read_all(study: OptunaStudy, storage: str) -> None:
    """Have Optuna read whatever is asked of the study later: one trial that it does not understand fails all.

    Raises:
        HpoError: it does not understand one.
    """
    try:
        study.get_trials(deepcopy=False)
        _ = study.directions, study.metric_names, study.user_attrs
    except Exception as error:
        raise HpoError(
            f"{storage}: Optuna cannot read its study {study.study_name!r} ({reason_of(error)}). Was it written by a "
            "newer Optuna, or by a plugin that is not installed here? Import it where that is."
        ) from error


def _constraint_names(study: OptunaStudy) -> list[str]:
    for trial in study.get_trials(deepcopy=False):
        if found := _constraints(trial):
            return list(found)
    return []


def _constraints(trial: FrozenTrial) -> dict[str, float]:
    listed = trial.system_attrs.get("constraints") or []
    found = {f"constraint_{number}": float(value) for number, value in enumerate(listed)}
    prefix = "constraints:"
    return found | {k.removeprefix(prefix): float(v) for k, v in trial.system_attrs.items() if k.startswith(prefix)}


def _trials(study: OptunaStudy) -> tuple[list[_Trial], dict[str, int]]:
    """Trials with a result, in their order, and how many have none, by state."""
    trials = study.get_trials(deepcopy=False)
    steps = [step for trial in trials for step in trial.intermediate_values]
    if steps and min(steps) < 0:
        raise HpoError(f"Optuna's study {study.study_name!r} reported at step {min(steps)}; steps are 0 or more.")
    shift = 1 if steps and min(steps) == 0 else 0
    full = max(steps, default=0) + shift or 1
    found, left_out = [], Counter[str]()
    for trial in trials:
        curve = {step + shift: value for step, value in sorted(trial.intermediate_values.items())}
        ended = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        last = max(curve, default=full)
        values = trial.values or ([curve[last]] if curve else [])
        if ended and len(values) == len(study.directions):
            found.append(_Trial(trial, last, tuple(values), curve))
        else:
            left_out[trial.state.name] += 1
    return found, dict(left_out)


def _counted(left_out: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in left_out.items()) or "it has no trials"


def _spec(
    name: str, source: str, study: OptunaStudy, names: Sequence[str], constraints: list[str], found: Sequence[_Trial]
) -> StudySpec:
    modes = ["max" if direction is StudyDirection.MAXIMIZE else "min" for direction in study.directions]
    metrics = [{"name": metric, "mode": mode} for metric, mode in zip(names, modes, strict=True)]
    places = {level: rung for rung, level in enumerate(sorted({trial.resource for trial in found}))}
    grants = [
        {"trial": number, "rung": places[trial.resource], "target": trial.resource}
        for number, trial in enumerate(found)
    ]
    plain: dict[str, Any] = {
        "study": name,
        "metric": metrics[0],
        **({"metrics": metrics} if len(metrics) > 1 else {}),
        "constraints": constraints,
        "space": _space(trial.frozen for trial in found),
        "search": {
            "method": "recorded",
            "source": source,
            "study_record": {"grants": grants, "params": [trial.frozen.params for trial in found]},
        },
        "tracking": {"mlflow": "off"},
    }
    return StudySpec.from_journal(plain, f"Optuna's study {source!r}")


def _space(trials: Iterable[FrozenTrial]) -> dict[str, Any]:
    """Widest range of each parameter over all trials.

    Raises:
        SpecError: a parameter is of two kinds, or of one that we do not have.
    """
    known: dict[str, Any] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            parameter = _parameter(name, distribution)
            before = known.setdefault(name, parameter)
            if before == parameter:
                continue
            same = isinstance(before, NumberParameter) and isinstance(parameter, NumberParameter)
            if not same or type(before) is not type(parameter) or before.log != parameter.log:
                raise SpecError(
                    f"Optuna's parameter {name!r} has two kinds of values ({before!r} and {parameter!r}), which no "
                    "space here describes. Give one of them another name."
                )
            ends = {"low": min(before.low, parameter.low), "high": max(before.high, parameter.high)}
            known[name] = before.model_copy(update=ends | ({} if before.step == parameter.step else {"step": None}))
    if not known:
        raise SpecError("Optuna's trials have no parameters; there is nothing to begin from.")
    return {name: parameter.model_dump(mode="json") for name, parameter in known.items()}


def _parameter(name: str, distribution: BaseDistribution) -> Any:
    if (found := parameter_of(distribution)) is not None:
        return found
    raise SpecError(f"Optuna's parameter {name!r} is {distribution!r}; float, int and categorical are known here.")


def _played(spec: StudySpec, found: Sequence[_Trial], names: Sequence[str], constraints: Sequence[str]) -> Study:
    times = [trial.frozen.datetime_start.timestamp() for trial in found if trial.frozen.datetime_start is not None]
    now = min(times, default=0.0)
    clock: Callable[[], float] = lambda: now  # noqa: E731
    study = Study.create(spec, MemoryJournal(), clock=clock)
    while (job := study.ask()) is not None:
        trial = found[job.trial]
        report = _report(job, trial, names, constraints)
        now = max(now, report.ended)
        study.tell_report(report)
    return study


def _report(job: Job, trial: _Trial, names: Sequence[str], constraints: Sequence[str]) -> Report:
    values = dict(zip(names, trial.values, strict=True))
    if constraints:
        known = _constraints(trial.frozen)
        values |= dict(zip(constraints, [*known.values(), *[math.nan] * len(constraints)], strict=False))
    start, end = trial.frozen.datetime_start, trial.frozen.datetime_complete
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED if all(map(math.isfinite, values.values())) else Outcome.DIVERGED,
        metrics=values,
        curve=tuple(Point(step, {names[0]: value}) for step, value in trial.curve.items() if step < job.target),
        worker="optuna",
        started=0.0 if start is None else start.timestamp(),
        ended=0.0 if end is None else end.timestamp(),
    )
