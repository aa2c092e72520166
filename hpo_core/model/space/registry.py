"""All types of parameters: a new one is a file in this folder and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from hpo_core.model.space.categorical import CategoricalParameter
from hpo_core.model.space.float_parameter import FloatParameter
from hpo_core.model.space.int_parameter import IntParameter
from hpo_core.model.space.normal import LognormalParameter, NormalParameter
from hpo_core.model.space.ordinal import OrdinalParameter
from hpo_core.model.space.parameter import ParameterType

PARAMETER_TYPES: tuple[type[ParameterType], ...] = (
    FloatParameter,
    IntParameter,
    CategoricalParameter,
    OrdinalParameter,
    NormalParameter,
    LognormalParameter,
)

if TYPE_CHECKING:
    Parameter = ParameterType
else:
    Parameter = Annotated[Union[PARAMETER_TYPES], Field(discriminator="type")]  # noqa: UP007 - a tuple of types
