"""Settings of a study file on a form of Prefect: how they are drawn and read.

Both follow the JSON schema of the settings' own classes. A setting has one of these shapes:

========  =============================================  ========================================================
shape     in a study file                                on a form
========  =============================================  ========================================================
value     a number, text, truth value or choice          its input
list      a list                                         a list of inputs
section   a mapping with settings of its own             a box
tabs      one of several sections, by a tag              a tab for each, ``{tag: {...}}``
rows      such sections by name (``space``)              a list for each tag, ``{tag: [{name: ..., ...}, ...]}``
text      anything else                                  a text as in a study file (YAML)
========  =============================================  ========================================================

The tag of a tab is a key, since Prefect's UI (3.8) keeps what a field held when another tab has a field of that name:
it is shown, and not sent. Bounds are left to the run in tabs, of which Prefect would say that all of them are "not
valid under any of the given schemas". Descriptions have no marks of Markdown, which the UI does not draw, and only the
first paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any

import pydantic
import yaml
from pydantic import Field

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown
from hpo_core.search.registry import BY_NAME
from hpo_core.spec.study_file import read_scalar, read_yaml
from hpo_core.spec.study_yaml import in_one_line

Schema = dict[str, Any]
BEGINS = "begins"
"""The key of a schema for what a form begins with, where that is not the default of a study file."""
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "minLength", "pattern"}
_KEPT = {"type", "enum", "const", *_BOUNDS}
_TITLES = {name: settings.title for name, settings in BY_NAME.items() if settings.offered} | {
    "local": "Local workers",
    "address": "Dask scheduler",
    "local_cuda": "GPUs of this machine",
}
_NUMBERS = ("integer", "number")


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """The schema without reference, and without an alternative None, for which a field is left empty."""
    others = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if "$ref" in schema:
        found = definitions[schema["$ref"].rpartition("/")[2]]
    elif len(others) == 1:
        found = others[0]
    else:
        return schema
    said = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    return resolved(found | said, definitions)


def _shape(said: Schema, definitions: Schema) -> str:
    inner = said.get("additionalProperties")
    if "discriminator" in said:
        return "tabs"
    if "properties" in said:
        return "section"
    if isinstance(inner, dict) and "discriminator" in inner:
        return "rows"
    if said.get("type") == "array" and said.get("items"):
        items = resolved(said["items"], definitions)
        return "list" if _shape(items, definitions) in ("value", "section", "text") else "text"
    return "value" if said.get("type") in ("string", "boolean", *_NUMBERS) else "text"


def _tabs(said: Schema, definitions: Schema) -> dict[str, Schema]:
    """The sections of a union by their tags, in their order."""
    tag = said["discriminator"]["propertyName"]
    sections = [resolved(one, definitions) for one in said["oneOf"]]
    return {one["properties"][tag]["default"]: one for one in sections}


def _kinds(said: Schema) -> set[str]:
    return {one.get("type", "") for one in (*said.get("oneOf", ()), *said.get("anyOf", ()))}


def drawn(schema: Schema, definitions: Schema, name: str = "") -> Schema:
    """A setting as the form has it."""
    said = resolved(schema, definitions)
    head = {"title": schema.get("title") or name.replace("_", " ").title()} | _words(said.get("description", ""))
    begins = said.get(BEGINS, said.get("default"))
    match _shape(said, definitions):
        case "tabs":
            tag = said["discriminator"]["propertyName"]
            return head | {"anyOf": [_tab(*one, tag, definitions) for one in _tabs(said, definitions).items()]}
        case "rows":
            inner = said["additionalProperties"]
            tag = inner["discriminator"]["propertyName"]
            lists = {word: _rows(word, one, tag, definitions) for word, one in _tabs(inner, definitions).items()}
            return head | {"type": "object", "properties": lists, "additionalProperties": False}
        case "section":
            return head | _box(said, definitions)
        case "list":
            found = head | {"type": "array", "items": drawn(said["items"], definitions)}
            found |= {"minItems": said["minItems"]} if "minItems" in said else {}
        case "value":
            found = head | {key: value for key, value in said.items() if key in _KEPT}
        case _:
            found = head | {"type": "string"}
            if "string" not in _kinds(said):
                found["description"] = f"{head.get('description', '')} As in a study file (YAML).".strip()
            begins = None if begins is None else in_one_line(begins)
    return found | ({} if begins is None else {"default": begins})


def _words(description: str) -> Schema:
    text = description.partition("\n\n")[0].replace("`", "").replace("None:", "Empty:")
    words = " ".join(re.sub(r"\b(none|null):", "empty:", text).split())
    return {"description": words} if words else {}


def _box(said: Schema, definitions: Schema, without: str = "") -> Schema:
    fields = {name: drawn(one, definitions, name) for name, one in said["properties"].items() if name != without}
    if said.get("additionalProperties") is True:
        words = "Further arguments as in a study file (YAML): {n_startup_trials: 20}."
        fields["arguments"] = {"title": "Arguments", "type": "string", "description": words}
    required = {"required": said["required"]} if "required" in said else {}
    return {"type": "object", "properties": fields, "additionalProperties": False} | required


def _tab(word: str, section: Schema, tag: str, definitions: Schema) -> Schema:
    title = _TITLES.get(word, word.replace("_", " ").capitalize())
    budget_first = sorted(section["properties"].items(), key=lambda item: BEGINS not in item[1])
    box = _without_bounds(_box(section | {"properties": dict(budget_first)}, definitions, without=tag))
    box |= {"title": title} | _words(section.get("description", ""))
    if not any("default" in one for one in box["properties"].values()) and "required" not in box:
        box["default"] = {}  # of a box without values the UI sends nothing
    return {"title": title, "type": "object", "properties": {word: box}, "required": [word],
            "additionalProperties": False}  # fmt: skip


def _rows(word: str, section: Schema, tag: str, definitions: Schema) -> Schema:
    """Rows of one tag; where a class has several, the row says which."""
    box = _box(section, definitions, without="" if "enum" in section["properties"][tag] else tag)
    name = {"title": "Name", "type": "string", "description": "As the training function reads it: trial.params[NAME]."}
    required = ["name", *box.get("required", [])]
    fields = {"name": name} | {key: box["properties"][key] for key in required[1:]} | box["properties"]
    fields["when"] = fields.pop("when")  # the last one: few parameters have it
    items = box | {"title": word.capitalize(), "properties": fields, "required": required}
    return {"title": word.capitalize(), "type": "array", "items": items} | _words(section.get("description", ""))


def _without_bounds(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_bounds(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_bounds(value) for key, value in schema.items() if key not in _BOUNDS}
    return schema


def read(schema: Schema, definitions: Schema, value: Any, where: str) -> Any:
    """A filled setting as a study file has it. What has the wrong type stays as it is, for the settings to refuse.

    Raises:
        SpecError: a text is no YAML, a tag is unknown, or something is there twice.
    """
    said = resolved(schema, definitions)
    match _shape(said, definitions):
        case "tabs" if isinstance(value, Mapping):
            sections = _tabs(said, definitions)
            tag, inside = next(iter(value.items()), (None, None))
            if len(value) != 1 or tag not in sections or not isinstance(inside, Mapping):
                one_of = ", ".join(f"{{{word}: {{...}}}}" for word in sections)
                raise SpecError(f"{where} = {shown(value)} must be one of {one_of}.")
            return {said["discriminator"]["propertyName"]: tag} | read(sections[tag], definitions, inside, where)
        case "rows" if isinstance(value, Mapping):
            inner = said["additionalProperties"]
            return dict(_read_rows(inner["discriminator"]["propertyName"], inner, definitions, value, where))
        case "section" if isinstance(value, Mapping):
            fields: Schema = said["properties"]
            found: dict[str, Any] = {}
            for name, one in value.items():
                if name == "arguments" and said.get("additionalProperties") is True:
                    arguments = read({}, definitions, one, f"{where}.{name}")
                    found |= arguments if isinstance(arguments, Mapping) else {name: arguments}
                elif one is not None:
                    found[name] = read(fields[name], definitions, one, f"{where}.{name}") if name in fields else one
            return found
        case "list" if isinstance(value, list | tuple):
            return [read(said["items"], definitions, one, f"{where}.{at}") for at, one in enumerate(value)]
        case "text" if isinstance(value, str):
            return _read_text(said, value, where)
    return value


def _read_rows(
    tag: str, inner: Schema, definitions: Schema, lists: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Any]]:
    sections, seen = _tabs(inner, definitions), set()
    for word, rows in lists.items():
        if word not in sections or not isinstance(rows, list | tuple):
            raise SpecError(f"{where}.{word} = {shown(rows)} must be a list of rows, by {', '.join(sections)}.")
        for at, row in enumerate(rows):
            if not isinstance(row, Mapping) or not isinstance(name := row.get("name"), str):
                raise SpecError(f"{where}.{word}.{at} = {shown(row)} must be a row with a name.")
            if name in seen:
                raise SpecError(f"{where}: there are two rows for {shown(name)}; remove one.")
            seen.add(name)
            fields = {key: value for key, value in row.items() if key != "name"}
            yield name, {tag: word} | read(sections[word], definitions, fields, f"{where}.{name}")


def _read_text(said: Schema, text: str, where: str) -> Any:
    """YAML; where a setting may be a text, what is no list or mapping is a scalar, or meant as it stands."""
    kinds = _kinds(said)
    if "string" in kinds and not text.startswith(("[", "{")):
        return read_scalar(text) if kinds & {*_NUMBERS} else text
    try:
        return read_yaml(text)[0]
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise SpecError(f"{where} cannot be read as YAML ({words}); write it as in a study file.") from None


def form_parameters(box: Schema) -> Signature:
    """Parameters of a flow that Prefect makes this form of."""
    found = []
    for name, one in box["properties"].items():
        default = ... if name in box.get("required", ()) else one.get("default", NOTHING)
        field = Field(default, description=one.get("description"), json_schema_extra=one)
        found.append(Parameter(name, Parameter.KEYWORD_ONLY, default=field, annotation=Any))
    return Signature(found)


NOTHING: Any = getattr(pydantic, "MISSING", None) or object()
"""A default that no schema shows; before Pydantic 2.14 it is one that no JSON can say."""
