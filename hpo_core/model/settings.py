"""The base of all settings of a study, and the metric."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_plain_validator_function, plain_serializer_function_ser_schema

RECORDED: dict[str, bool] = {"recorded": True}
"""Validation context of a description that a journal holds: it was accepted when it was new."""


def is_recorded(info: ValidationInfo) -> bool:
    """Whether a journal's description is validated."""
    return bool(info.context and info.context.get("recorded"))


@functools.cache
def _is_number(model: type[BaseModel], name: str) -> bool:
    """Whether numbers are taken for a field, and truth values are not among what is."""
    if name not in model.model_fields:
        return False
    waiting: list[Any] = [model.model_fields[name].annotation]
    kinds: list[Any] = []
    while waiting:
        annotation = waiting.pop()
        waiting += get_args(annotation)
        if isinstance(annotation, type) or annotation is Any:
            kinds.append(annotation)
    return (int in kinds or float in kinds) and not (bool in kinds or Any in kinds or object in kinds)


class Part(BaseModel):
    """Base of all settings: immutable; unknown keys, NaN, infinities, and truth values for numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, data: Any, info: ValidationInfo) -> Any:
        """Refuse ``true`` and ``false`` where a number belongs: pydantic takes them for 1 and 0."""
        if isinstance(data, Mapping) and not is_recorded(info):
            for name, value in data.items():
                if isinstance(value, bool) and _is_number(cls, name):
                    raise ValueError(f"{name} = {str(value).lower()}: a number belongs here; give one, or drop {name}")
        return data


class Filled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of values that the program fills into a description, such as a recorded grant; nobody chooses them."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        plain = plain_serializer_function_ser_schema(msgspec.to_builtins)
        return no_info_plain_validator_function(cls._read, serialization=plain)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "object", "title": cls.__name__}

    @classmethod
    def _read(cls, given: Any) -> Self:
        try:
            return given if isinstance(given, cls) else msgspec.convert(given, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"is no {cls.__name__} ({error}); leave it as the program wrote it") from None


class MetricSpec(Part):
    name: str = Field(min_length=1, description="The metric the training function reports and the study optimizes.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (smaller is better)."""
        return 1.0 if self.mode == "min" else -1.0
