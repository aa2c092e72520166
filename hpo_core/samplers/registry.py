"""All samplers: ours by their names, and Optuna's by their class names.

A new sampler of ours is a file in this folder and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpo_core.model import limits
from hpo_core.model.features import feature
from hpo_core.model.short_text import meant_or_known, some
from hpo_core.model.space import NumberParameter, ParameterType, SearchSpace
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.value_tests import said
from hpo_core.model.trial import Params
from hpo_core.samplers.sampler import FiniteSampler, RandomSampler, Sampler, SamplerContext

OURS: dict[str, Callable[[SamplerContext], Sampler]] = {
    "random": lambda context: RandomSampler(context.space, context.seed),
}
"""Samplers without arguments, whose answers follow from the seed and the trial's number alone."""
RANKED_GP = "ranked_gp"
EXHAUSTIVE = frozenset({"GridSampler", "BruteForceSampler"})
"""Optuna's samplers that try every configuration of a finite list once."""


def create(name: str, arguments: Mapping[str, Any], context: SamplerContext) -> Sampler:
    if name in OURS:
        return OURS[name](context)
    if name in EXHAUSTIVE:
        return FiniteSampler(listed(name, arguments, context.space), context.space, context.seed)
    if name == RANKED_GP:
        from hpo_core.samplers.ranked_gp import RankedGP  # imports numpy

        return RankedGP(context, **arguments)
    made: Sampler = feature("Optuna", "optuna_sampler").OptunaSampler(name, arguments, context)
    return made


def check(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a sampler that does not exist, or arguments that it does not take.

    Raises:
        ValueError: with the names that would do.
    """
    if name == RANKED_GP:
        _check_ranked_gp(**arguments)
    elif name not in OURS:
        feature("Optuna", "optuna_sampler").check_sampler(name, arguments)
    elif arguments:
        raise ValueError(f"sampler {name} takes no arguments, got {', '.join(arguments)}; drop them")


def _check_ranked_gp(n_startup_trials: Any = None, **others: Any) -> None:
    for name in others:
        hint = meant_or_known(name, ["n_startup_trials"], "it takes:")
        raise ValueError(f"sampler ranked_gp takes no argument {name!r}; {hint}")
    if n_startup_trials is not None and (type(n_startup_trials) is not int or n_startup_trials < 1):
        raise ValueError(
            f"sampler ranked_gp: n_startup_trials = {said(n_startup_trials)} must be a whole number of at least 1, or "
            "null"
        )


def check_space(name: str, space: SearchSpace) -> None:
    """Refuse a range whose values a sampler that calculates with floats cannot tell apart.

    Raises:
        ValueError: with sampler and parameter.
    """
    for one, parameter in space.parameters.items():
        if name in OURS or not isinstance(parameter, NumberParameter) or parameter.last_step is None:
            continue
        if max(parameter.last_step, parameter.high if parameter.log else 0) > limits.STEPS:
            raise ValueError(
                f"sampler {name} calculates with floats, which cannot tell the values of {one} apart beyond "
                f"{limits.STEPS:,}; use random, or narrow the range of {one}, or tune an exponent"
            )


def check_objectives(name: str, arguments: Mapping[str, Any], objectives: int) -> None:
    """Refuse a sampler that knows one objective only, for a study with several.

    Raises:
        ValueError: with samplers that would do.
    """
    if objectives > 1 and name == RANKED_GP:
        raise ValueError(
            f"sampler ranked_gp cannot do {objectives} objectives; use TPESampler, NSGAIISampler or random, or "
            "give one metric"
        )
    if objectives > 1 and name not in OURS:
        feature("Optuna", "optuna_sampler").check_objectives(name, arguments, objectives)


def check_population(name: str) -> None:
    """Refuse a sampler with a finite list of configurations for a population, which draws new ones at any time.

    Raises:
        ValueError: with samplers that would do.
    """
    if name in EXHAUSTIVE:
        raise ValueError(
            f"sampler {name} has a finite list of configurations, and a population begins anew at any time; use "
            "random or TPESampler"
        )


def notices(name: str, space: SearchSpace, *, ours: bool, listed: bool) -> list[str]:
    """A line where the space is not drawn as it is written.

    Args:
        name: of the sampler.
        ours: whether it draws from the space itself.
        listed: whether the search method lists its configurations (a grid), so that nothing is drawn.
    """
    if ours or listed or name == RANKED_GP or not space.has_forbidden:
        return []
    return [
        f"{name} knows nothing of forbidden combinations: where it proposes one it is asked again, and after 100 times "
        "a configuration is drawn at random."
    ]


def listed(name: str, arguments: Mapping[str, Any], space: SearchSpace) -> list[Params]:
    """All configurations of a sampler with a finite list.

    Raises:
        ValueError: the space has no such list, or it is too long; place, value, rule and cure.
    """
    if name == "GridSampler":
        values = _values_of_grid(arguments["search_space"], space)
    else:
        values = {one: _all_values(one, parameter) for one, parameter in space.parameters.items()}
    return space.combinations(values, f"sampler {name}")


def _values_of_grid(grid: Mapping[str, Any], space: SearchSpace) -> dict[str, list[Any]]:
    where = "sampler.search_space"
    if missing := [name for name in space.parameters if name not in grid]:
        raise ValueError(f"{where} says nothing of {some(missing)}; give a list of values for each parameter")
    for name, values in grid.items():
        if name not in space.parameters:
            hint = meant_or_known(name, space.parameters, "it has")
            raise ValueError(f"{where}: {said(name)} is no parameter of the space; {hint}")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{where}.{name} = {said(values)} is no list of values; name one or more")
    found: dict[str, list[Any]] = {}
    for name, values in grid.items():
        for value in values:
            try:
                found.setdefault(name, []).append(space.parameters[name].taken(value))
            except ValueError as error:
                raise ValueError(f"{where}.{name}: {said(value)} {error}") from None
    return found


def _all_values(name: str, parameter: ParameterType) -> list[Any]:
    if isinstance(parameter, ListedParameter):
        return list(parameter.listed())
    assert isinstance(parameter, NumberParameter)
    last = parameter.last_step
    if last is None and parameter.low < parameter.high:
        raise ValueError(
            f"sampler BruteForceSampler: {name} is {parameter.type} without a step, and has no end of values; give it "
            "a step, or use random or TPESampler"
        )
    if last is None:
        return [parameter.low]
    return list(map(parameter.at_step, range(min(limits.GRID_STEPS, last) + 1)))
