"""JSON schemas as both of Prefect's UIs draw them, where Pydantic's own would not do.

Enums become selects, unions of models tabs. Four things are given another shape here, and only in the schema:

- **Unions.** The older UI shows the tab that has most of a value's keys, and of several such tabs the first; a tab
  that is opened takes the default of the whole union. The newer one mixes the defaults of two tabs where a tab as a
  whole has one. So each method has a key that no other has (its name), and only the fields of a tab have defaults.
- **None.** It would be a tab of its own that has to be left before anything can be typed. A field that may be empty is
  drawn as what it holds; empty, it is not sent.
- **Folded sections.** A union whose first tab is empty: nothing of it is drawn until it is opened.
- **Words.** The newer UI shows the marks of Markdown as they are; descriptions have none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args

import pydantic
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import CoreSchema

from hpo_core.search.registry import BY_NAME
from hpo_core.search.search_settings import SearchSettings

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
    """The same without a fold.

    Raises:
        ValueError: a setting stands inside and outside of the fold.
    """
    folded = values.get(FOLD)
    if FOLD not in values or not isinstance(folded, Mapping | None):
        return dict(values)
    found = {name: value for name, value in values.items() if name != FOLD}
    if twice := [name for name in folded or () if name in found]:
        raise ValueError(f"{', '.join(twice)} stands in {FOLD} and beside it; give it once")
    return found | dict(folded or {})


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


class FormPart(BaseModel):
    """Fields of a form; those that may be None are drawn as what else they may be."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    basic: ClassVar[Sequence[str]] = ()
    """Fields that are shown at once, in this order; empty: all."""
    needed: ClassVar[Sequence[str]] = ()
    """Fields with a default that the form does not call optional. The form begins with the default."""

    @model_validator(mode="before")
    @classmethod
    def _as_typed(cls, data: Any) -> Any:
        """Unfolds; and where None is not the default, the form says it by 0."""
        if not isinstance(data, dict):
            return data
        zero = zero_means_none(cls)
        return {name: None if name in zero and value == 0 else value for name, value in unfold(data).items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        model = handler.resolve_ref_schema(schema)
        for name, field in model.get("properties", {}).items():
            title = {"title": name.replace("_", " ").title()}  # which Pydantic leaves out where it refers to a model
            model["properties"][name] = drawn = title | without_none(without_marks(field))
            if name in zero_means_none(cls):
                words = drawn.get("description", "")
                drawn["description"] = f"{words} 0: {'null' if 'null' in words else 'none'}.".strip()
                drawn.pop("exclusiveMinimum", None)
                drawn.pop("minimum", None)
        if cls.basic:
            fold_fields(model, cls.basic)
        return schema


def run_signature(form: type[FormPart]) -> Signature:
    """What a run of a flow may name: the fields of its form and the fold; the form itself checks their values."""
    names = [*form.model_fields, *([FOLD] if form.basic else [])]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature([Parameter(name, kind, default=None, annotation=Any) for name in names])


def drawn_signature(form: type[FormPart]) -> Signature:
    """What Prefect makes the form of a flow of: the fields shown at once, and the others in a fold at its end."""
    names = form.basic or list(form.model_fields)
    parameters = [_parameter(name, form.model_fields[name], name in form.needed) for name in names]
    rest = {name: (one.annotation, copy(one)) for name, one in form.model_fields.items() if name not in names}
    if rest:
        folded: Any = create_model(_TITLE, __base__=FormPart, **rest)  # type: ignore[call-overload]
        words = f"{', '.join(name.replace('_', ' ') for name in rest)}."
        section = Field(default=None, description=f"{words[0].upper()}{words[1:]}")
        parameters.append(_parameter(FOLD, section, False, Annotated[folded | None, AsTabs(closed=AS_USUAL)]))
    return Signature(parameters)


def _parameter(name: str, field: Any, needed: bool, annotation: Any = None) -> Parameter:
    annotation = annotation or Annotated[field.annotation, *(field.metadata or [None]), _WithoutNone()]
    drawn: dict[str, Any] = {"default": NOTHING if field.default is None else field.default}
    if needed:
        plain = field.default.model_dump(mode="json") if isinstance(field.default, BaseModel) else field.default
        # without a least number of its own, the newer UI takes an empty list for one that is missing
        least = {"minItems": 0} if isinstance(plain, list) else {}
        drawn = {"json_schema_extra": {"default": plain} | least}
    default = Field(description=field.description, **drawn)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


NOTHING: Any = getattr(pydantic, "MISSING", None) or object()
"""A default that no schema shows; before Pydantic 2.14 it is one that no JSON can say."""
if not hasattr(pydantic, "MISSING"):
    warnings.filterwarnings("ignore", "Default value <object object", PydanticJsonSchemaWarning)

_METHODS: dict[str, type[SearchSettings]] = {name: settings for name, settings in BY_NAME.items() if settings.offered}

_FILLED = {"configs": 30, "max_resource": 27, "population": 10, "generations": 3, "steps_per_generation": 9}
"""The budgets that stand in a form, the same for every method: about 30 trials, the best of them trained to 27."""
BASIC_OF_METHOD = frozenset({"method", *_METHODS, *_FILLED})
"""What of a search method is not folded: which one it is, and its budget."""
DEFAULT_METHOD: Any = {"method": "asha", "configs": _FILLED["configs"], "max_resource": _FILLED["max_resource"]}
"""Plain, for a model would say what it resolved (the brackets) as if somebody had chosen it."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems"})


@dataclass(frozen=True)
class Offered:
    """A string whose values are read off the deployment's settings when the schema is made."""

    values: Callable[[], list[str]]
    otherwise: str = ""
    """Offered alone where there is nothing to offer; empty: any text."""
    filled: bool = False
    """Whether the first one is filled in."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        if offered := self.values() or ([self.otherwise] if self.otherwise else []):
            schema["enum"] = offered
            if self.filled:
                schema["default"] = offered[0]
        return schema


def zero_means_none(section: type[BaseModel]) -> list[str]:
    """Fields of a section that may be None, and are something else by default."""
    fields = section.model_fields.items()
    return [
        name
        for name, field in fields
        if NoneType in get_args(field.annotation) and isinstance(field.default, int | float)
    ]


def without_none(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field without its alternative None, and without None as its default."""
    field = {key: value for key, value in field.items() if key != "default" or value is not None}
    if "anyOf" not in field:
        return field
    others = [one for one in field["anyOf"] if one.get("type") != "null"]
    if len(others) == 1 and "$ref" not in others[0]:
        del field["anyOf"]
        only: dict[str, Any] = others[0]
        return only | field
    return field | {"anyOf": others}


def without_marks(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field with its description in plain text."""
    return field | {"description": field["description"].replace("`", "")} if "description" in field else field


@dataclass(frozen=True)
class _WithoutNone:
    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return without_none(handler(core))


@dataclass(frozen=True)
class AsTabs:
    """A union as both of Prefect's UIs draw it: a tab for each of its models, by name, the first one opened.

    Bounds are left to the run, which names field, value and rule. Prefect would say of the whole union that it is
    "not valid under any of the given schemas".
    """

    closed: str = ""
    """Name of a first tab that is empty; without it None is no choice."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        tabs = [tab for tab in schema.get("oneOf") or schema["anyOf"] if tab.get("type") != "null"]
        for tab in tabs:
            _draw_tab(handler.resolve_ref_schema(tab))
        return {"anyOf": [empty_tab(self.closed), *tabs] if self.closed else tabs}


def _draw_tab(definition: dict[str, Any]) -> None:
    definition.update(without_marks(definition))
    fields = definition["properties"].items()
    properties = {name: _without_bounds(without_none(without_marks(field))) for name, field in fields}
    if "method" in properties:
        definition.pop("description", None)  # of the class, for readers of the code; each field has its own
        method = properties["method"]["const"]
        properties = _of_method(method, properties)
        definition["title"] = _METHODS[method].title
        definition.pop("required", None)
        definition["patternProperties"] = {"^method$": {"const": method}}  # as a study file says it: taken, not drawn
        definition["properties"] = properties
        fold_fields(definition, BASIC_OF_METHOD)
    else:
        definition["properties"] = properties


def _of_method(method: str, properties: dict[str, Any]) -> dict[str, Any]:
    """The fields of a search method as they are drawn, the budget first."""
    settings = _METHODS[method]
    named = {
        "title": "Method",
        "type": "string",
        "enum": [method],
        "default": method,
        "description": "As the tab says.",
    }
    drawn = {name: field for name, field in properties.items() if name not in settings.only_in_files | {"method"}}
    for name in _FILLED.keys() & drawn.keys():
        if not (name == "configs" and "points" in settings.model_fields):  # a grid has all its points
            drawn[name]["default"] = _FILLED[name]
    if "brackets" in drawn:
        brackets = drawn["brackets"]
        description = brackets["description"].partition(" aggressive, ")[0]
        drawn["brackets"] = {"title": brackets["title"], "description": description, "type": "array",
                             "items": brackets["items"]}  # fmt: skip
    if "reduction_factor" in drawn:  # written out it also decides the first rung, in a study file as here
        usual = drawn["reduction_factor"].pop("default")
        drawn["reduction_factor"]["description"] += f" Empty: {usual:g}."
    budget = [name for name in _FILLED if name in drawn]
    return {method: named} | {name: drawn[name] for name in budget} | drawn


def _without_bounds(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_bounds(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_bounds(value) for key, value in schema.items() if key not in _BOUNDS}
    return schema


def _as_written(data: Any) -> Any:
    """A form sends every field, with its default where nothing was typed; a study file only what matters."""
    if not isinstance(data, dict):
        return data
    data = unfold(data)
    tabs = [tag for tag in _METHODS if data.get(tag) == tag]
    if "method" not in data and len(tabs) == 1:
        data = {"method": tabs[0]} | {name: value for name, value in data.items() if name != tabs[0]}
    if "method" not in data:
        raise ValueError(f"method is required: one of {', '.join(_METHODS)}")
    if not isinstance(data["method"], str) or data["method"] not in _METHODS:
        return data
    fields = _METHODS[data["method"]].model_fields
    return {
        name: value
        for name, value in data.items()
        if name == "method" or name not in fields or not (value in (None, []) or _is_usual(name, value, fields))
    }


def _is_usual(name: str, value: Any, fields: Mapping[str, Any]) -> bool:
    return name != "reduction_factor" and value == fields[name].default


if TYPE_CHECKING:
    _Offered = SearchSettings
else:
    _Offered = Annotated[Union[tuple(_METHODS.values())], Field(discriminator="method")]  # noqa: UP007 - a tuple

Method = Annotated[_Offered, BeforeValidator(_as_written), AsTabs()]
