"""JSON schemas as both of Prefect's UIs draw them, where Pydantic's own would not do.

Enums become selects, unions of models tabs. What the UIs do not draw well is given another shape here, and only in the
schema.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from hpo_core.search.registry import BY_NAME
from hpo_core.search.search_settings import SearchSettings

_METHODS: dict[str, type[SearchSettings]] = {name: settings for name, settings in BY_NAME.items() if settings.offered}

_FILLED = {"configs": 30, "max_resource": 27}
"""What stands in a form where a method needs a value and has no default."""
DEFAULT_METHOD: Any = {"method": "asha", **_FILLED}
"""Plain, for a model would say what it resolved (the brackets) as if somebody had chosen it."""
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems"})


@dataclass(frozen=True)
class Offered:
    """A string whose values are read off the deployment's settings when the schema is made."""

    values: Callable[[], list[str]]
    otherwise: str = ""
    """Offered alone where there is nothing to offer; empty: any text."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        if offered := self.values() or ([self.otherwise] if self.otherwise else []):
            schema["enum"] = offered
        return schema


@dataclass(frozen=True)
class AsTabs:
    """A union as both of Prefect's UIs draw it: a tab for each of its models, by name.

    Bounds are left to the run, which names field, value and rule. Prefect would say of the whole union that it is
    "not valid under any of the given schemas".
    """

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        tabs = schema.get("oneOf") or schema["anyOf"]
        for tab in tabs:
            definition = handler.resolve_ref_schema(tab)
            properties = definition.get("properties")
            if properties is None:  # of None
                continue
            if "method" in properties:
                definition["title"] = _METHODS[properties["method"]["const"]].title
                definition.pop("required", None)
                for name in _METHODS[properties["method"]["const"]].only_in_files & properties.keys():
                    del properties[name]
                for name in _FILLED.keys() & properties.keys():
                    if properties[name].get("default") is None:
                        properties[name]["default"] = _FILLED[name]
            if "brackets" in properties:
                brackets = properties["brackets"]
                properties["brackets"] = {
                    "title": brackets["title"],
                    "description": brackets["description"].replace(" 'all' works.", " None: the paper's default."),
                    "anyOf": [{"type": "array", "items": brackets["items"]}, {"type": "null"}],
                    "default": None,
                }
            definition["properties"] = _without_bounds(properties)
        return {"anyOf": tabs}


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
    if "method" not in data:
        fitting = [tag for tag, model in _METHODS.items() if data.keys() <= model.model_fields.keys()]
        if len(fitting) != 1:
            raise ValueError(f"method is required: one of {', '.join(_METHODS)}")
        data = data | {"method": fitting[0]}
    if not isinstance(data["method"], str) or data["method"] not in _METHODS:
        return data
    fields = _METHODS[data["method"]].model_fields
    return {
        name: value
        for name, value in data.items()
        if name == "method" or not (name in fields and (value is None or value == fields[name].default))
    }


if TYPE_CHECKING:
    _Offered = SearchSettings
else:
    _Offered = Annotated[Union[tuple(_METHODS.values())], Field(discriminator="method")]  # noqa: UP007 - a tuple

Method = Annotated[_Offered, BeforeValidator(_as_written), AsTabs()]
