"""The base of all settings of a study, and the metric."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_plain_validator_function, plain_serializer_function_ser_schema

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import did_you_mean, shown

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
    """Base of all settings, written in Python or in a study file: immutable.

    Unknown keys, NaN, infinities, and truth values for numbers are refused, in the same words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # a type checker knows the fields as arguments

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise SpecError(_refusal(type(self), error)) from None

        __init__.__pydantic_base_init__ = True  # the data of a study file do not pass through here

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, data: Any, info: ValidationInfo) -> Any:
        """Refuse ``true`` and ``false`` where a number belongs: pydantic takes them for 1 and 0."""
        if isinstance(data, Mapping) and not is_recorded(info):
            for name, value in data.items():
                if isinstance(value, bool) and _is_number(cls, name):
                    raise ValueError(f"{name} = {str(value).lower()}: a number belongs here; give one, or drop {name}")
        return data


def by_position(model: type[BaseModel], values: tuple[Any, ...], *names: str) -> dict[str, Any]:
    """Arguments that were given by position, by name.

    Raises:
        SpecError: there are more than names.
    """
    if len(values) > len(names):
        raise SpecError(
            f"{model.__name__}: {len(values)} values are given by position; only {' and '.join(names)} may be, all "
            "others by name."
        )
    return dict(zip(names, values, strict=False))


def _refusal(model: type[BaseModel], error: ValidationError) -> str:
    """A line for each argument that is wrong: place, rule, value."""
    lines = []
    for one in error.errors(include_url=False):
        place = ".".join(map(str, one["loc"]))
        words = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            words = f"is no argument. {did_you_mean(place, list(model.model_fields))}".strip()
        elif one["type"] == "missing":
            words = "is required and absent"
        elif place:
            words += f" (got {shown(one['input'])})"
        lines.append(f"{model.__name__}: {place}{': ' if place else ''}{words}")
    return "\n".join(lines)


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
