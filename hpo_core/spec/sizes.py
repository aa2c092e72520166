"""Refuses new descriptions that are too large (see :mod:`hpo_core.model.limits`).

What is checked here is cheap to reckon and dear to build. Search methods and parameter types check their own sizes.
Errors are ValueErrors, which the spec's validator turns into a SpecError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpo_core.model import limits
from hpo_core.model.limit_checks import at_most
from hpo_core.model.settings import Part
from hpo_core.model.short_text import shown

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_sizes(spec: StudySpec) -> None:
    """Refuse what is too large.

    Raises:
        ValueError: place, value, limit and cure.
    """
    at_most("space", len(spec.space), limits.PARAMETERS, "parameters; drop some")
    for name, parameter in spec.space.items():
        _check_name("space", name)
        parameter.check_size(f"space.{name}")
    at_most("metrics", len(spec.metrics), limits.METRICS, "metrics; drop some")
    for metric in (spec.metric, *spec.metrics):
        _check_name("metric", metric.name)
    at_most("repeats", spec.repeats, limits.REPEATS, "training seeds; lower it")
    for where, part in (("training", spec.training), ("cluster", spec.cluster), ("stop", spec.stop)):
        _check_seconds(where, part)
    spec.search.check_sizes(spec.search_space().parameters)


def check_constraints(constraints: Sequence[str], metrics: Collection[str]) -> None:
    """Refuse constraints that cannot be told apart from each other or from a metric.

    Raises:
        ValueError: name, rule and cure.
    """
    at_most("constraints", len(constraints), limits.METRICS, "constraints; drop some")
    for name in constraints:
        _check_name("constraints", name)
        if name in metrics:
            raise ValueError(
                f"constraints: {name!r} is a metric of the study already, and one value cannot be both; report the "
                "constraint under a name of its own, such as the value minus its limit"
            )
    if len(set(constraints)) < len(constraints):
        raise ValueError(f"constraints = {list(constraints)} names one twice; drop it")


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of an Optuna sampler that would fill the memory.

    Raises:
        ValueError: argument, value, limit and cure.
    """
    for argument, most in limits.SAMPLER_ARGUMENTS.items():
        value = arguments.get(argument)
        if isinstance(value, int | float):
            at_most(f"sampler.{argument}", value, most, "; lower it")
    grid = arguments.get("search_space")
    if name == "GridSampler" and isinstance(grid, Mapping):
        points = math.prod(len(values) for values in grid.values() if isinstance(values, list | tuple))
        at_most("sampler.search_space", points, limits.GRID_VALUES, "points; use search: {method: grid} with fewer")


def _check_name(where: str, name: str) -> None:
    if not 0 < len(name) <= limits.NAME:
        raise ValueError(f"{where}: the name {shown(name)} has {len(name):,} characters; names have 1 to {limits.NAME}")


def _check_seconds(where: str, part: Part) -> None:
    for name, value in part:
        if isinstance(value, float) and not (where == "stop" and name == "target"):
            at_most(f"{where}.{name}", value, limits.SECONDS, "seconds; lower it, or leave it out")
