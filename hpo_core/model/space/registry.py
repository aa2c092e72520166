"""All types of parameters: a new one is a file in this folder and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from hpo_core.model.space.choices import CategoricalParameter
from hpo_core.model.space.normal import NormalParameter
from hpo_core.model.space.number import FloatParameter, IntParameter
from hpo_core.model.space.parameter import ParameterType

PARAMETER_TYPES: tuple[type[ParameterType], ...] = (
    FloatParameter,
    IntParameter,
    CategoricalParameter,
    NormalParameter,
)

if TYPE_CHECKING:
    Parameter = ParameterType
else:
    Parameter = Annotated[Union[PARAMETER_TYPES], Field(discriminator="type")]  # noqa: UP007 - a tuple of types
