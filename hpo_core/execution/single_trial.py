"""One trial of a study, without the study: for a debugger, and for checks of a training function."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpo_core.execution.requests import JobRequests
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import some
from hpo_core.model.space import SearchSpace
from hpo_core.model.trial import Job, Params, Report
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.training.child.attempt import run_attempt
from hpo_core.training.request import JobRequest


def parse_params(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts by name.

    Raises:
        SpecError: a text has no ``=`` or no name, or a name is given twice.

    >>> parse_params(["lr=0.1", "optimizer.name=sgd"])
    {'lr': '0.1', 'optimizer.name': 'sgd'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SpecError(f"--params {text}: write NAME=VALUE, for example lr=0.1.")
        if name.strip() in found:
            raise SpecError(f"--params names {name.strip()!r} twice; give one value.")
        found[name.strip()] = value.strip()
    return found


def read_value(text: str) -> Any:
    """A value as people write it: JSON, or else plain text.

    >>> read_value("0.1"), read_value("true"), read_value("sgd")
    (0.1, True, 'sgd')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def first_job(spec: StudySpec, given: dict[str, str] | None = None, steps: int | None = None) -> Job:
    """The first job of a study, with some parameters given; nothing of it is recorded anywhere.

    Args:
        given: values as texts; the others come from the study's sampler. A parameter that only the given values make
            active is drawn at random.
        steps: the job's target, instead of the one that the search gives it.

    Raises:
        SpecError: the study grants no job, or has no such parameter or value.
    """
    plain = spec.model_copy(update={"warm_start": None})
    jobs = Study.create(plain).set_capacity(1)
    if not jobs:
        raise SpecError(f"Study {spec.study!r} grants no job at all; see its search and stop rules.")
    job = jobs[0]
    params = completed_params(spec.search_space(), given or {}, job.params, spec.seed)
    return msgspec.structs.replace(job, params=params, target=steps or job.target)


def completed_params(space: SearchSpace, given: dict[str, str], drawn: Params, seed: int) -> Params:
    """Given values, completed by drawn ones: the parameters that are active with them, and no others.

    Raises:
        SpecError: the space has no such parameter, or a parameter cannot have its value.
    """
    if unknown := [name for name in given if name not in space.parameters]:
        raise SpecError(
            f"--params {unknown[0]}={given[unknown[0]]}: the study's space has no {unknown[0]!r}; it has "
            f"{some(space.parameters)}."
        )
    values: Params = {name: value for name, value in drawn.items() if name not in space.parameters}
    for name in space.order:
        if not space.is_active(name, values):
            continue
        parameter = space.resolved(name, values)
        if name in given:
            fits = [value for value in (read_value(given[name]), given[name]) if parameter.contains(value)]
            if not fits:
                raise SpecError(
                    f"--params {name}={given[name]}: the value lies outside the range or choices of space.{name}; give "
                    "one of them, or change the space."
                )
            values[name] = fits[0]
        else:
            known = [parameter.default] if parameter.default is not None else []
            known += [drawn[name]] if name in drawn else []
            known = [one for one in known if parameter.contains(one)]
            values[name] = known[0] if known else parameter.draw(Stream(seed, f"params/{name}", 0))
    if left := [name for name in given if name not in values]:
        raise SpecError(
            f"--params {left[0]}={given[left[0]]}: with these values {left[0]!r} takes no part (space.{left[0]}.when); "
            "drop it, or give the parameters of its condition too."
        )
    if forbidden := space.forbidden_by(values):
        raise SpecError(f"--params: it is forbidden that {forbidden}; give other values.")
    return values


def request_of(spec: StudySpec, job: Job, folder: Path) -> JobRequest:
    """The request for a job whose files lie in ``folder``, which is made complete."""
    for part in ("checkpoints", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    local = spec.model_copy(update={"checkpoints": spec.checkpoints.model_copy(update={"folder": None})})
    return JobRequests(local, str(folder)).of(job)


def run_here(function: Callable[..., Any], request: JobRequest) -> Report:
    """Train in this process and thread; whatever the function raises is raised.

    No limit of ``training`` is enforced.
    """
    return run_attempt(function, request, raised=(BaseException,))
