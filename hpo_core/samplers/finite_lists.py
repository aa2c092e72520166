"""Refuses lists of configurations that GridSampler and BruteForceSampler cannot go through in a study's space."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpo_core.model import limits
from hpo_core.model.short_text import meant_or_known, some
from hpo_core.model.space import NormalParameter, NumberParameter, SearchSpace
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.value_tests import said
from hpo_core.model.trial import Params

EXHAUSTIVE = frozenset({"GridSampler", "BruteForceSampler"})
"""Optuna's samplers that try every configuration of a finite list once."""
_ONE_TOO_MANY = limits.LISTED_CONFIGURATIONS + 1


def check_listed(name: str, arguments: Mapping[str, Any], space: SearchSpace) -> None:
    """Refuse a list with what the space does not have, one without end, and one that is too long.

    Raises:
        ValueError: place, value, rule and cure.
    """
    if name not in EXHAUSTIVE:
        return
    for one, parameter in space.parameters.items():
        if space.is_dependent(one) or isinstance(parameter, NormalParameter):
            what = "has a range that depends on another value" if space.is_dependent(one) else f"is {parameter.type}"
            raise ValueError(
                f"sampler {name}: {one} {what}, and has no list of values; use random or TPESampler, or give {one} "
                "numbers as ends"
            )
    if name == "GridSampler":
        _check_grid(arguments["search_space"], space)
    else:
        _check_count(space)


def _check_grid(grid: Any, space: SearchSpace) -> None:
    where = "sampler.search_space"
    if not isinstance(grid, Mapping):
        raise ValueError(f"{where} is {said(grid)}; write a list of values for each parameter")
    if missing := [name for name in space.parameters if name not in grid]:
        raise ValueError(f"{where} says nothing of {some(missing)}; give a list of values for each parameter")
    for name, values in grid.items():
        if name not in space.parameters:
            hint = meant_or_known(name, space.parameters, "it has")
            raise ValueError(f"{where}: {said(name)} is no parameter of the space; {hint}")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{where}.{name} = {said(values)} is no list of values; name one or more")
        for value in values:
            try:
                space.parameters[name].taken(value)
            except ValueError as error:
                raise ValueError(f"{where}.{name}: {said(value)} {error}") from None


def _check_count(space: SearchSpace) -> None:
    """Count configurations, a parameter at a time, until there are too many; forbidden ones too, they cost the same.

    Those that differ only in what no condition asks about are counted together.
    """
    asked = {other for name in space.order for other in space.above(name)}
    found: list[tuple[Params, int]] = [({}, 1)]
    for name in space.order:
        values = _values(name, space)
        longer: list[tuple[Params, int]] = []
        for params, count in found:
            if not space.is_active(name, params):
                longer.append((params, count))
            elif name in asked:
                longer += [(params | {name: value}, count) for value in values]
            else:
                longer.append((params, count * len(values)))
        if sum(count for _, count in longer) > limits.LISTED_CONFIGURATIONS:
            raise ValueError(
                f"sampler BruteForceSampler would list more than {limits.LISTED_CONFIGURATIONS:,} configurations; "
                "narrow the space or raise a step, or use search: {method: grid} or random"
            )
        found = longer


def _values(name: str, space: SearchSpace) -> list[Any]:
    parameter = space.parameters[name]
    if isinstance(parameter, ListedParameter):
        return list(parameter.listed())[:_ONE_TOO_MANY]
    assert isinstance(parameter, NumberParameter)
    step = parameter.step or 0
    if not step and parameter.low < parameter.high:
        raise ValueError(
            f"sampler BruteForceSampler: {name} is {parameter.type} without a step, and has no end of values; give it "
            "a step, or use random or TPESampler"
        )
    upto = (parameter.high - parameter.low) / step + 1e-9 if step else 0
    return [parameter.low + at * step for at in itertools.takewhile(lambda k: k <= upto, range(_ONE_TOO_MANY))]
