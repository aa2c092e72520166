"""A search space as Optuna's samplers see it.

What Optuna has no distribution for is shown on another scale: a normal parameter by its distribution function, a range
that depends on another parameter as the share of it, a list as its JSON text. What is recorded is the parameter's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpo_core.model.space.normal import NormalParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.model.trial import Params

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


def suggest(space: SearchSpace, trial: Trial, given: Params | None = None) -> Params:
    """A configuration that an Optuna trial suggests.

    Args:
        given: values that are taken as they are.
    """
    values: Params = {}
    for name in space.order:
        if not space.is_active(name, values):
            continue
        parameter = space.resolved(name, values)
        if given is not None and name in given:
            values[name] = given[name]
        elif space.is_dependent(name) and isinstance(parameter, NumberParameter):
            values[name] = parameter.at_share(trial.suggest_float(name, 0.0, 1.0))
        else:
            values[name] = parameter.suggest(trial, name)
    return values


def distributions(space: SearchSpace, names: Iterable[str]) -> dict[str, BaseDistribution]:
    """The Optuna distributions of these parameters."""
    from optuna.distributions import FloatDistribution

    return {
        name: FloatDistribution(0.0, 1.0) if space.is_dependent(name) else space.parameters[name].distribution()
        for name in names
    }


def seen(space: SearchSpace, params: Params) -> dict[str, Any]:
    """A configuration on the scales of :func:`distributions`."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        parameter = space.resolved(name, params)
        found[name] = parameter.share(value) if space.is_dependent(name) else parameter.seen(value)
    return found


def shown(space: SearchSpace, params: Params) -> tuple[dict[str, Any], dict[str, BaseDistribution], dict[str, Any]]:
    """A configuration as a copy in Optuna shows it to people: values and ranges as they are.

    Returns:
        Parameters, their distributions, and what fits none: parameters of no space, values outside their range.
    """
    from optuna.distributions import FloatDistribution

    values: dict[str, Any] = {}
    ranges: dict[str, BaseDistribution] = {}
    others: dict[str, Any] = {}
    for name, value in params.items():
        if name not in space.parameters or not (parameter := space.resolved(name, params)).contains(value):
            others[name] = value
        elif isinstance(parameter, NormalParameter):  # no range: the one that people are shown
            low, high = parameter.ends
            values[name] = float(value)
            ranges[name] = FloatDistribution(min(low, value), max(high, value), log=parameter.log)
        else:
            values[name], ranges[name] = parameter.seen(value), parameter.distribution()
    return values, ranges, others
