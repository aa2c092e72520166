"""The search space: its parameters, their order, and the conditions between them."""

from hpo_core.model.space.choices import CategoricalParameter, ListedParameter
from hpo_core.model.space.normal import NormalParameter
from hpo_core.model.space.number import FloatParameter, IntParameter, NumberParameter
from hpo_core.model.space.parameter import Change, ParameterType
from hpo_core.model.space.registry import PARAMETER_TYPES, Parameter
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.model.space.value_tests import Scalar, same_scalar, scalar_key

__all__ = [
    "PARAMETER_TYPES",
    "CategoricalParameter",
    "Change",
    "FloatParameter",
    "IntParameter",
    "ListedParameter",
    "NormalParameter",
    "NumberParameter",
    "Parameter",
    "ParameterType",
    "Scalar",
    "SearchSpace",
    "same_scalar",
    "scalar_key",
]
