"""Turns validation errors into one line each: place, value, rule, cure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hpo_core.model import limits
from hpo_core.model.settings import Part
from hpo_core.model.short_text import cut, shown
from hpo_core.model.space import PARAMETER_TYPES
from hpo_core.search.registry import BY_NAME
from hpo_core.spec.clusters import Cluster
from hpo_core.spec.plain_data import line_of, named

_TAGS = {
    *BY_NAME,
    *(get_args(known.model_fields["type"].annotation)[0] for known in PARAMETER_TYPES),
    *(known.model_fields["kind"].default for known in get_args(get_args(Cluster)[0])),
}
"""Names of methods, parameter types and cluster kinds."""

_UNION = "union"
"""Type of the one error that stands for those of all forms."""

_NAME = re.compile(re.escape(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,") + r"(\d+)" + re.escape("}$"))
"""The pattern of names; it is no sentence for people."""


def explain(error: ValidationError, where: str, data: Any, lines: dict[tuple[Any, ...], int]) -> str:
    found = []
    every = _one_for_each_union(error.errors(include_url=False), data)
    for item in every[: limits.ERROR_LINES]:
        place = _without_tags(item["loc"], data)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key" + _suggest(str(place[-1]), item["loc"])
        elif item["type"] == "missing":
            message = "is required and absent; add it"
        elif item["type"] == "union_tag_not_found":
            context = item.get("ctx", {})
            message = f"{context.get('discriminator', 'its kind')} is required and absent; add it to this mapping"
        elif item["type"] == "union_tag_invalid":
            message = _unknown_tag(item["ctx"])
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"a mapping belongs here, such as {{name: ...}} (got {shown(item['input'])})"
            message += _why_text(item["input"], named(place))
        elif item["type"] == "string_pattern_mismatch" and (name := _NAME.fullmatch(item["ctx"]["pattern"])):
            message = (
                f"{shown(item['input'])} is no name: letters, digits, '.', '_' and '-', the first one a letter or "
                f"digit, at most {int(name[1]) + 1} characters"
            )
        elif not isinstance(item["input"], dict | list) or item["type"] == _UNION:
            message += f" (got {shown(item['input'])})"
        found.append(f"{line_of(place, where, lines)}: {named(place)}: {cut(message)}")
    if len(every) > len(found):
        found.append(f"{where}: ... and {len(every) - len(found):,} errors more")
    return "\n".join(found)


def _one_for_each_union(errors: list[ErrorDetails], data: Any) -> list[ErrorDetails]:
    """What is none of the forms that a setting may have is one error: a number of at least 1, or 'auto'.

    Pydantic has one for each form, and its own name of the form in the place.
    """
    found: dict[tuple[Any, ...], ErrorDetails] = {}
    for number, item in enumerate(errors):
        place = _without_tags(item["loc"], data)
        is_form = len(place) < len(item["loc"]) and not any(part in _TAGS for part in item["loc"])
        key = ("form", *place) if is_form else ("one", number)
        before = found.get(key)
        if before is None:
            found[key] = item
        elif before["msg"] != item["msg"]:
            other = item["msg"].removeprefix("Input should be ")
            found[key] = ErrorDetails({**before, "type": _UNION, "msg": f"{before['msg']}, or {other}"})
    return list(found.values())


def _why_text(value: Any, place: str) -> str:
    """Of what was meant as a mapping, and came as text: why, and how it is written."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return ""
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return (
            f"; that is text, for it is no JSON: {error.msg}, at character {error.pos + 1}. On the command line put "
            f'names and texts in double quotes: --set \'{place}={{"name": "value"}}\', or set one part of it: --set '
            f"{place}.name=value. In a study file write no quotes around it"
        )
    except RecursionError:
        return ""
    return "; that is text, leave out the quotes around it"


def _unknown_tag(context: Mapping[str, Any]) -> str:
    """For a method, parameter type or cluster kind that is none of ours."""
    key, tag = str(context["discriminator"]).strip("'"), str(context["tag"])
    expected = [name.strip("'") for name in str(context["expected_tags"]).split(", ")]
    close = difflib.get_close_matches(tag, expected, n=1)
    cure = f"did you mean {close[0]}?" if close else "choose one of them"
    return f"{key} = {shown(tag)} is unknown: there are {', '.join(expected)}; {cure}"


def _without_tags(loc: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    """Pydantic puts the tag of a discriminated union into the place; a user never wrote it."""
    place: list[Any] = []
    for part in loc:
        if part in _TAGS and isinstance(data, dict) and part not in data:
            continue
        if isinstance(part, str) and isinstance(data, list | str | int | float | None):
            continue  # nothing in it has a name: pydantic says which form it was taken for
        place.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
    return tuple(place)


def _suggest(key: str, loc: tuple[Any, ...]) -> str:
    known: set[str] = set()
    for model in _models(Part):
        known.update(model.model_fields)
    if len(loc) > 1 and loc[0] == "space":
        known = {name for parameter in PARAMETER_TYPES for name in parameter.model_fields}
    if key in known:
        return " here, though other parts or methods take it; remove it"
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it"


def _models(part: type[Part]) -> Iterator[type[Part]]:
    """All models below one."""
    for model in part.__subclasses__():
        yield model
        yield from _models(model)
