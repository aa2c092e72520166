"""Refuses new descriptions whose parts are valid and together too large (see :mod:`hpo_core.model.limits`).

What is checked here is cheap to reckon and dear to build: rungs of all brackets, sizes of Hyperband's brackets,
axes of a grid, steps of a range. Errors are ValueErrors, which the spec's validator turns into a SpecError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpo_core.model import limits
from hpo_core.model.limit_checks import as_number, at_most
from hpo_core.model.settings import Part
from hpo_core.model.short_text import shown
from hpo_core.spec.search import AshaSearch, GridSearch, HyperbandSearch, PashaSearch, PbtSearch, ShaSearch

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
    for where, part in (("training", spec.training), ("cluster", spec.cluster), ("stop", spec.stop)):
        _check_seconds(where, part)
    _check_search(spec)


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


def _check_search(spec: StudySpec) -> None:
    search = spec.search
    configs = getattr(search, "configs", None)
    if configs is not None:
        at_most("search.configs", configs, limits.CONFIGS, "configurations; lower it")
    if isinstance(search, AshaSearch | PashaSearch | ShaSearch | HyperbandSearch):
        rungs = len(search.levels())
        at_most("rungs", rungs, limits.RUNGS, "in one bracket; raise reduction_factor or min_resource")
    if isinstance(search, ShaSearch):
        rounds, planned = search.rounds, len(search.levels()) - search.early_stopping_rate
        at_most("search.rounds", rounds, limits.PLANNED_RUNGS // planned, f"rounds of {planned} rungs each; lower it")
        at_most("configs * rounds", search.configs * rounds, limits.CONFIGS, "configurations; lower one of them")
    elif isinstance(search, HyperbandSearch):
        _check_hyperband(search)
    elif isinstance(search, PbtSearch):
        at_most("search.generations", search.generations, limits.PLANNED_RUNGS, "generations; lower it")
        trials = search.population * search.generations
        at_most("population * generations", trials, limits.CONFIGS, "trials; lower one of them")
        at_most("generations * steps_per_generation", search.max_resource, limits.RESOURCE, "units; lower one of them")
    elif isinstance(search, GridSearch):
        axes = sum(
            parameter.grid_size(search.points.get(name))
            for name, parameter in spec.space.items()
            if name not in search.random
        )
        at_most("values on all axes of the grid", axes, limits.GRID_VALUES, "; give fewer points, or draw parameters")
        at_most("search.repeats", search.repeats, limits.CONFIGS, "; lower it")


def _check_hyperband(search: HyperbandSearch) -> None:
    from hpo_core.search.halving.brackets import hyperband_size

    rungs = len(search.levels())
    planned = rungs * (rungs + 1) // 2
    most = limits.PLANNED_RUNGS // planned
    at_most("search.rounds", search.rounds, most, f"rounds of {planned:,} rungs each; lower it")
    configs = search.rounds * sum(hyperband_size(s, rungs, search.reduction_factor) for s in range(rungs))
    if configs > limits.CONFIGS:
        raise ValueError(
            f"search: {rungs} brackets in {search.rounds:,} rounds plan {as_number(configs)} configurations, and there "
            f"may be {limits.CONFIGS:,}; raise min_resource, or lower max_resource or rounds"
        )
