"""Settings that few people change: on the form in one section, ``advanced``, that is folded until it is opened.

Folding is a matter of the form alone. A mapping means the same whether a setting stands in it or in its ``advanced``,
so that parameters which were saved before a setting was folded, and those that a script sends, stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

FOLD = "advanced"
"""The key of what is folded."""
_TITLE = FOLD.capitalize()
AS_USUAL = "As usual"


def empty_tab(title: str) -> dict[str, Any]:
    """A tab without fields: nothing is sent while it is open.

    An object, not None, of which both UIs write 'Property is type "None"'.
    """
    return {"type": "object", "title": title, "properties": {}, "additionalProperties": False}


def fold(values: Mapping[str, Any], basic: Collection[str]) -> dict[str, Any]:
    """All but the basic ones moved into the fold, where the form draws them; None there would be no value."""
    flat = unfold(values)
    if FOLD in flat:
        return flat  # something that is filled in later, as a template
    rest = {name: value for name, value in flat.items() if name not in basic and value is not None}
    return {name: value for name, value in flat.items() if name in basic} | ({FOLD: rest} if rest else {})


def unfold(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same without a fold."""
    folded = values.get(FOLD)
    if FOLD not in values or not isinstance(folded, Mapping | None):
        return dict(values)
    return {name: value for name, value in values.items() if name != FOLD} | dict(folded or {})


def fold_fields(definition: dict[str, Any], basic: Collection[str]) -> None:
    """Draw all fields of a model but the basic ones within a section that opens empty; elsewhere they are taken."""
    fields = definition["properties"]
    if not (rest := {name: field for name, field in fields.items() if name not in basic}):
        return
    opened = {"type": "object", "title": _TITLE, "properties": rest}
    titles = ", ".join(field["title"].lower() for field in rest.values())
    section = {
        "title": _TITLE,
        "description": f"{titles[0].upper()}{titles[1:]}.",
        "anyOf": [empty_tab(AS_USUAL), opened],
    }
    definition["properties"] = {name: field for name, field in fields.items() if name in basic} | {FOLD: section}
    unfolded = {f"^{name}$": field for name, field in rest.items()}
    definition["patternProperties"] = definition.get("patternProperties", {}) | unfolded  # taken, and not drawn


class Folding(BaseModel):
    """A part of a form that shows few of its fields, and the others once its fold is opened."""

    basic: ClassVar[Sequence[str]] = ()
    """Fields that are shown at once; empty: all."""

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, data: Any) -> Any:
        return unfold(data) if isinstance(data, dict) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        model = handler.resolve_ref_schema(schema)
        if cls.basic:
            fold_fields(model, cls.basic)
        return schema


@dataclass(frozen=True)
class _Begins:
    """What a field begins with that is not called optional."""

    value: Any

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # without a least number of its own, the newer UI takes an empty list for one that is missing
        least = {"minItems": 0} if isinstance(self.value, list) else {}
        return handler(core) | {"default": self.value} | least


def drawn_signature(function: Any, shown: Sequence[str], needed: Collection[str]) -> inspect.Signature:
    """What Prefect makes a form of, where a function takes more than the form shows at once.

    Args:
        shown: parameters on the form, in their order.
        needed: those of them that are not called optional, though the function has a default. The form begins with it.
    """
    parameters = inspect.signature(function).parameters
    return inspect.Signature([
        (_needed(parameters[name]) if name in needed else parameters[name]).replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name in shown
    ])  # fmt: skip


def _needed(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    plain = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
    return parameter.replace(
        default=inspect.Parameter.empty, annotation=Annotated[parameter.annotation, _Begins(plain)]
    )
