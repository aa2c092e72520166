"""The search space: its parameters, their order, and the conditions between them."""

from hpo_core.model.space.categorical import CategoricalParameter
from hpo_core.model.space.float_parameter import FloatParameter
from hpo_core.model.space.int_parameter import IntParameter
from hpo_core.model.space.listed import ListedParameter
from hpo_core.model.space.normal import LognormalParameter, NormalParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.ordinal import OrdinalParameter
from hpo_core.model.space.parameter import Change, ParameterType
from hpo_core.model.space.registry import PARAMETER_TYPES, Parameter
from hpo_core.model.space.scalars import Scalar, same_scalar, scalar_key
from hpo_core.model.space.search_space import SearchSpace

__all__ = [
    "PARAMETER_TYPES",
    "CategoricalParameter",
    "Change",
    "FloatParameter",
    "IntParameter",
    "ListedParameter",
    "LognormalParameter",
    "NormalParameter",
    "NumberParameter",
    "OrdinalParameter",
    "Parameter",
    "ParameterType",
    "Scalar",
    "SearchSpace",
    "same_scalar",
    "scalar_key",
]
