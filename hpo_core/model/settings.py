"""The base of all settings of a study, and the metric."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_plain_validator_function, plain_serializer_function_ser_schema

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known, shown

RECORDED: dict[str, bool] = {"recorded": True}
"""Validation context of a description that a journal holds: it was accepted when it was new."""


def is_recorded(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("recorded"))


@functools.cache
def _is_number(model: type[BaseModel], name: str) -> bool:
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

    Unknown keys, NaN, infinities, and truth values for numbers are refused, in the same words. Fields that are declared
    with ``kw_only=False`` may be given by position in Python, in their order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    public_name: ClassVar[str] = ""
    """Name in Python; default: that of the class without its last word (``AshaSearch``: ``Asha``)."""

    if not TYPE_CHECKING:  # a type checker knows the fields as arguments

        def __init__(self, *values: Any, **data: Any) -> None:
            kind = type(self)
            try:
                super().__init__(**by_name(kind, values, data))
            except ValidationError as error:
                raise SpecError(_refusal(kind, error)) from None

        __init__.__pydantic_base_init__ = True  # the data of a study file do not pass through here

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        """Add what each field means to the docstring, which a notebook shows."""
        fields = [(name, field.description) for name, field in cls.model_fields.items() if field.description]
        if fields and "__doc__" in vars(cls) and cls.__doc__:
            lines = "\n".join(f"    {name}: {description}" for name, description in fields)
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\nArguments:\n{lines}\n"

    @classmethod
    def in_python(cls) -> str:
        return cls.public_name or re.sub(r"(Search|Parameter|ClusterSpec|Spec)$", "", cls.__name__)

    def __repr_name__(self) -> str:
        return self.in_python()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True, validated_data={}):
                yield name, value
        yield from (self.model_extra or {}).items()

    def __str__(self) -> str:
        return repr(self)

    @model_validator(mode="before")
    @classmethod
    def _check_numbers(cls, data: Any, info: ValidationInfo) -> Any:
        # Refuse `true` and `false` where a number belongs: pydantic takes them for 1 and 0.
        if isinstance(data, Mapping) and not is_recorded(info):
            for name, value in data.items():
                if isinstance(value, bool) and _is_number(cls, name):
                    raise ValueError(f"{name} = {str(value).lower()}: a number belongs here; give one, or drop {name}")
        return data


def by_name(model: type[Part], values: tuple[Any, ...], data: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name, as plain data.

    Raises:
        SpecError: more are given by position than may be, or one twice.
    """
    names = [name for name, field in model.model_fields.items() if field.kw_only is False]
    if len(values) > len(names):
        few = f"only {' and '.join(names)} may be" if names else "none may be"
        raise SpecError(
            f"{model.in_python()}: {len(values)} values are given by position, and {few}; give the others by name, "
            f"such as {next(iter(model.model_fields))}=..."
        )
    placed = dict(zip(names, values, strict=False))
    for name in placed:
        if name in data:
            raise SpecError(f"{model.in_python()}: {name} is given twice, by position and by name; drop one.")
    return {name: plain(value) for name, value in {**placed, **data}.items()}


def plain(value: Any) -> Any:
    """A value as a study file can hold it: numbers and arrays of NumPy and torch as Python's, paths as text.

    >>> from pathlib import PurePosixPath
    >>> plain((PurePosixPath("/data"), {"a": range(2)}))
    ['/data', {'a': [0, 1]}]
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ in ("numpy", "torch") and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple | range) else value


def _refusal(model: type[Part], error: ValidationError) -> str:
    lines: dict[tuple[Any, ...], str] = {}
    for one in error.errors(include_url=False):
        form = next((n for n, part in enumerate(one["loc"]) if n and isinstance(part, str) and _is_form(part)), None)
        loc = one["loc"][:form]  # what is none of several forms has an error for each of them
        place = ".".join(map(str, loc))
        words = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            words = f"is no argument; {meant_or_known(place, list(model.model_fields), 'there are')}"
        elif one["type"] == "missing":
            words = "is required and absent"
        elif loc in lines and form is not None:
            before = lines[loc].rpartition(" (got ")[0].removeprefix(f"{model.in_python()}: {place}: ")
            words = words.removeprefix("Input should be ")
            words = before if words in before else f"{before}, or {words}"
        if place and one["type"] not in ("extra_forbidden", "missing"):
            words += f" (got {shown(one['input'])})"
        lines[loc] = f"{model.in_python()}: {place}{': ' if place else ''}{words}"
    return "\n".join(lines.values())


def _is_form(part: str) -> bool:
    return re.fullmatch(r"bool|int|float|str|none|literal\[.*\]|list\[.*\]|dict\[.*\]|constrained-.*", part) is not None


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
    """A metric that the training function reports, and its direction."""

    name: str = Field(
        min_length=1, kw_only=False, description="The metric the training function reports and the study optimizes."
    )
    mode: Literal["min", "max"] = Field(
        default="min", kw_only=False, description="min: smaller is better; max: larger."
    )

    @property
    def sign(self) -> float:
        return 1.0 if self.mode == "min" else -1.0
