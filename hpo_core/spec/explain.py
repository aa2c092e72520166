"""Says what is wrong with a description, a line each: place, value, rule, cure."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from hpo_core.spec.part import Part

_TAGS = {
    "asha", "sha", "hyperband", "pasha", "pbt", "grid", "random", "recorded",
    "local", "address", "slurm", "kubernetes", "local_cuda", "float", "int", "categorical", "ordinal",
}  # fmt: skip


def explain(error: ValidationError, where: str, data: Any, lines: dict[tuple[Any, ...], int]) -> str:
    found = []
    for item in error.errors(include_url=False):
        place = _without_tags(item["loc"], data)
        line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
        name = ".".join(str(part) for part in place) or "the study"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key" + _suggest(str(place[-1]), item["loc"])
        elif item["type"] == "missing":
            message = "is required and absent; add it"
        elif item["type"] == "union_tag_not_found":
            context = item.get("ctx", {})
            message = f"{context.get('discriminator', 'its kind')} is required and absent; add it to this mapping"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"a mapping belongs here, such as {{name: ...}} (got {item['input']!r})"
        elif not isinstance(item["input"], dict | list):
            message += f" (got {item['input']!r})"
        found.append(f"{where}{f':{line}' if line else ''}: {name}: {message}")
    return "\n".join(found)


def _without_tags(loc: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    """Pydantic puts the tag of a discriminated union into the place; a user never wrote it."""
    place: list[Any] = []
    for part in loc:
        if part in _TAGS and isinstance(data, dict) and part not in data:
            continue
        place.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
    return tuple(place)


def _suggest(key: str, loc: tuple[Any, ...]) -> str:
    known: set[str] = set()
    for model in Part.__subclasses__():
        known.update(model.model_fields)
    if len(loc) > 1 and loc[0] == "space":
        known = {"type", "low", "high", "log", "step", "choices", "when", "static"}
    if key in known:
        return " here, though other parts or methods take it; remove it"
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it"
