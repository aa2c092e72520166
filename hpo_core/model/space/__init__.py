"""The search space: its parameters, their order, and the conditions between them.

A new type of parameter is a file in this folder and a line in ``PARAMETER_TYPES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from hpo_core.model.space.choices import CategoricalParameter, ListedParameter
from hpo_core.model.space.number import FloatParameter, IntParameter, NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.model.space.value_tests import Scalar, same_scalar, scalar_key

PARAMETER_TYPES: tuple[type[ParameterType], ...] = (
    FloatParameter,
    IntParameter,
    CategoricalParameter,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    Parameter = ParameterType
else:
    Parameter = Annotated[Union[PARAMETER_TYPES], Field(discriminator="type")]  # noqa: UP007 - a tuple of types


def parameter_of(distribution: BaseDistribution) -> ParameterType | None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return CategoricalParameter(type="categorical", choices=list(distribution.choices))
    if isinstance(distribution, FloatDistribution):
        return FloatParameter(**vars(distribution))
    return IntParameter(**vars(distribution)) if isinstance(distribution, IntDistribution) else None


__all__ = [
    "PARAMETER_TYPES",
    "CategoricalParameter",
    "FloatParameter",
    "IntParameter",
    "ListedParameter",
    "NumberParameter",
    "Parameter",
    "ParameterType",
    "Scalar",
    "SearchSpace",
    "parameter_of",
    "same_scalar",
    "scalar_key",
]
