"""Refuses what is no plain data or too large, and turns validation errors into one line each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.settings import Part
from hpo_core.model.short_text import at_most, cut, did_you_mean, fitting_name, listed_and_meant, shortened, shown, some
from hpo_core.model.space import PARAMETER_TYPES
from hpo_core.model.trial import refused_name
from hpo_core.search.registry import BY_NAME
from hpo_core.security.masking import without_urls_credentials
from hpo_core.spec.gone_settings import GONE_KINDS, words_of_gone
from hpo_core.spec.sections import RANGE, Cluster
from hpo_core.spec.sent_functions import FUNCTION

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_sizes(spec: StudySpec) -> None:
    """Refuse what is too large.

    Raises:
        ValueError: place, value, limit and cure.
    """
    at_most("space", len(spec.space), limits.PARAMETERS, "parameters; drop some")
    for name, parameter in spec.space.items():
        _check_name("space", name)
        parameter.check_size(f"space.{name}")
    at_most("metrics", len(spec.metrics), limits.METRICS, "metrics; drop some")
    for metric in (spec.metric, *spec.metrics):
        _check_name("metric", metric.name)
    names = [("metric", metric.name) for metric in (spec.metric, *spec.metrics)]
    for where, name in [*names, *(("constraints", name) for name in spec.constraints)]:
        if refusal := refused_name(name):
            raise ValueError(f"{where}: {name!r} {refusal}")
    for where, part in (("training", spec.training), ("cluster", spec.cluster), ("stop", spec.stop)):
        _check_seconds(where, part)
    spec.search.check_sizes(spec.search_space().parameters)


def check_constraints(constraints: Sequence[str], metrics: Collection[str]) -> None:
    """Refuse constraints that cannot be told apart from each other or from a metric.

    Raises:
        ValueError: name, rule and cure.
    """
    at_most("constraints", len(constraints), limits.METRICS, "constraints; drop some")
    for name in constraints:
        _check_name("constraints", name)
        if name in metrics:
            raise ValueError(
                f"constraints: {name!r} is a metric of the study already, and one value cannot be both; report the "
                "constraint under a name of its own, such as the value minus its limit"
            )
    if len(set(constraints)) < len(constraints):
        raise ValueError(f"constraints = {list(constraints)} names one twice; drop it")


def _check_name(where: str, name: str) -> None:
    if not 0 < len(name) <= limits.NAME:
        raise ValueError(f"{where}: the name {shown(name)} has {len(name):,} characters; names have 1 to {limits.NAME}")


def _check_seconds(where: str, part: Part) -> None:
    for name, value in part:
        if isinstance(value, float) and not (where == "stop" and name == "target"):
            at_most(f"{where}.{name}", value, limits.SECONDS, "seconds; lower it, or leave it out")


_LARGEST = f"{limits.LARGEST_INTEGER:,}"
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_plain(data: Any, where: str, lines: Mapping[tuple[Any, ...], int] | None = None) -> None:
    """Refuse what is no plain data or too large (see :mod:`hpo_core.model.limits`).

    Args:
        lines: of the places in the file, where there is one.

    Raises:
        SpecError: place, value, rule and cure.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), data)]
    seen = 0
    while waiting:
        place, value = waiting.pop()
        problem = _problem(value)
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple):
            inner = enumerate(value)
        if inner:
            seen += len(value)
            if seen > limits.VALUES:
                raise SpecError(
                    f"{where}: holds more than {limits.VALUES:,} values, the most a description may have; make it "
                    "smaller (a number with low and high instead of many choices, fewer parameters)."
                )
            if len(place) >= limits.DEPTH:
                problem = f"is nested deeper than {limits.DEPTH} levels, or contains itself; no setting is that deep"
        for key, one in () if problem else inner:
            if isinstance(value, Mapping) and (problem := _problem_of_key(key)):
                break
            waiting.append(((*place, key), one))
        if problem:
            raise SpecError(f"{line_of(place, where, lines or {})}: {named(place)}: {problem}")


def _problem_of_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        return f"the key {shown(key)} is no text; put it in quotes"
    return _problem(key) and f"a key: {_problem(key)}"


def _problem(value: Any) -> str:
    if value is None or isinstance(value, bool | Mapping | list | tuple | BaseModel):
        return ""
    if isinstance(value, int):
        if abs(value) <= limits.LARGEST_INTEGER:
            return ""
        return f"{shown(value)} must fit into 64 bits (-{_LARGEST} to {_LARGEST}); give a smaller one"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no finite number; give one, or leave the setting out"
    if not isinstance(value, str):
        return (
            f"{shown(value)} is no plain value (text, number, true, false, null); give one, in a study file in quotes"
        )
    if len(value) > limits.TEXT:
        return f"{shown(value)} is too long: a text has at most {limits.TEXT:,} characters; shorten it"
    if "\0" in value:
        return f"{shown(value)} holds the character NUL, which databases refuse; remove it"
    if _SURROGATE.search(value):
        return (
            f"{shown(value)} holds half a character (a lone surrogate), or a byte of a name that is no UTF-8; remove it"
        )
    return ""


def line_of(place: tuple[Any, ...], where: str, lines: Mapping[tuple[Any, ...], int]) -> str:
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    return where if line is None else f"{where}:{line}"


def named(place: tuple[Any, ...]) -> str:
    few = ".".join(shortened(part) if isinstance(part, str) else shown(part) for part in place[: limits.DEPTH])
    return few or "the study"


_TAGS = {
    *BY_NAME,
    *(tag for known in PARAMETER_TYPES for tag in get_args(known.model_fields["type"].annotation)),
    *(known.model_fields["kind"].default for known in get_args(get_args(Cluster)[0])),
    RANGE,
}
"""Names of methods, parameter types and cluster kinds, and of a range of workers."""

_PARSER = re.compile(", unable to parse string as an? [a-z]+")
"""Part of Pydantic's messages that tells of its parser."""

_UNION = "union"
"""Type of the one error that stands for those of all forms."""

_NAME = re.compile(re.escape(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,") + r"(\d+)" + re.escape("}$"))
"""The pattern of names; it is no sentence for people."""


def explain(
    error: ValidationError, where: str, data: Any, lines: dict[tuple[Any, ...], int], *, whole: type[BaseModel]
) -> str:
    """A line for each thing that is wrong.

    Args:
        whole: the model that refused the data.
    """
    found = []
    every = _one_for_each_union(error.errors(include_url=False), data)
    for item in every[: limits.ERROR_LINES]:
        place = _without_tags(item["loc"], data)
        message = _PARSER.sub("", item["msg"].removeprefix("Value error, "))
        if item["type"] == "extra_forbidden":
            message = words_of_gone(place, item["loc"]) or _unknown_key(str(place[-1]), item["loc"], place[:-1], whole)
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
        elif item["type"] == "string_pattern_mismatch" and item["ctx"]["pattern"] == FUNCTION:
            message = f"{shown(item['input'])} is no module:function, such as train:train; name the module, too"
        elif item["type"] == "string_pattern_mismatch" and (name := _NAME.fullmatch(item["ctx"]["pattern"])):
            most = int(name[1]) + 1
            message = (
                f"{shown(item['input'])} is no name: letters, digits, '.', '_' and '-', the first one a letter or "
                f"digit, at most {most} characters{fitting_name(item['input'][:most])}"
            )
        elif item["type"] == "too_short" and not item["input"]:
            message = f"is empty; give at least {item['ctx']['min_length']} item"
        elif not isinstance(item["input"], dict | list) or item["type"] == _UNION:
            given = item["input"]
            message += f" (got {shown(without_urls_credentials(given) if isinstance(given, str) else given)})"
            if meant := did_you_mean(item["input"], _quoted(item["msg"])):
                message += f"; {meant}"
        found.append(f"{line_of(place, where, lines)}: {named(place)}: {cut(message)}")
    if len(every) > len(found):
        found.append(f"{where}: ... and {len(every) - len(found):,} errors more")
    return "\n".join(found)


def _one_for_each_union(errors: list[ErrorDetails], data: Any) -> list[ErrorDetails]:
    # One error where none of the forms of a setting fits: a number of at least 1, or 'auto'.
    # Pydantic has one for each form, and its own name of the form in the place.
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
    key, tag = str(context["discriminator"]).strip("'"), str(context["tag"])
    if tag in GONE_KINDS:
        return f"{key} = {shown(tag)} is gone: {GONE_KINDS[tag]}"
    offered = [one for one in _quoted(str(context["expected_tags"])) if one not in BY_NAME or BY_NAME[one].offered]
    return f"{key} = {shown(tag)} is unknown: {listed_and_meant(tag, offered)}"


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _without_tags(loc: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    # Pydantic puts the tag of a discriminated union into the place; a user never wrote it.
    place: list[Any] = []
    is_passed = False
    for part in loc:
        if part in _TAGS and isinstance(data, dict) and not is_passed:
            is_passed = part in (data.get("kind"), data.get("method"), data.get("type"))  # a key may have its name, too
            if is_passed or part not in data:
                continue
        is_passed = False
        if isinstance(part, str) and isinstance(data, list | str | int | float | None):
            continue  # nothing in it has a name: pydantic says which form it was taken for
        place.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
    return tuple(place)


def _unknown_key(key: str, loc: tuple[Any, ...], place: tuple[Any, ...], whole: type[BaseModel]) -> str:
    # Words about a key that the mapping at this place does not take: what was meant, or what it takes.
    models = _models_at(loc[:-1], whole)
    here = list(dict.fromkeys(name for model in models for name in model.model_fields))
    if meant := did_you_mean(key, here):
        return f"unknown key; {meant}"
    elsewhere = any(key in model.model_fields for model in _models(Part))
    words = "unknown key here, though other parts or methods take it" if elsewhere else "unknown key"
    tag = _tags_of(models[0]) if len(models) == 1 else None
    tagged = f" with {tag[0]} = {next((part for part in loc if part in tag[1]), tag[1][0])}" if tag else ""
    return f"{words}; {named(place)}{tagged} takes {some(here, most=40)}"


def _models_at(loc: tuple[Any, ...], whole: type[BaseModel]) -> list[type[BaseModel]]:
    found = [whole]
    for part in loc:
        fields = [model.model_fields[part] for model in found if part in model.model_fields]
        tagged = [model for model in found if (tag := _tags_of(model)) and part in tag[1]]
        found = [inner for field in fields for inner in _models_in(field)] or tagged or found
    return found


def _models_in(field: Any) -> Iterator[type[BaseModel]]:
    annotation = getattr(field, "annotation", field)
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _tags_of(model: type[BaseModel]) -> tuple[str, list[str]] | None:
    # The setting that tells a model from others of its union, and its values there: methods, types or kinds.
    for name in ("method", "type", "kind"):
        if name in model.model_fields and (values := get_args(model.model_fields[name].annotation)):
            return name, [str(value) for value in values]
    return None


def _models(part: type[Part]) -> Iterator[type[Part]]:
    for model in part.__subclasses__():
        yield model
        yield from _models(model)
