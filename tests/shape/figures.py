"""Figures of the code base's size and shape: ``python -m tests.shape.figures`` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from hpo_core.spec import StudySpec


def count_settings() -> int:
    """Number of settings that a study file can hold.

    Counts the fields of all models that are reached from StudySpec, except fields that hold a model themselves. A field
    that several members of a union have (``max_resource`` of the search methods) counts once for each member.
    """
    return sum(1 for model in _models_below(StudySpec) for _ in _leaf_fields(model))


def _models_below(top: type[BaseModel]) -> Iterator[type[BaseModel]]:
    found = [top]
    for model in found:
        for field in model.model_fields.values():
            found += [inner for inner in _models_in(field.annotation) if inner not in found]
    yield from found


def _leaf_fields(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if not any(_models_in(field.annotation)):
            yield name


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models in an annotation, at any depth of unions and collections, each once."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return list(dict.fromkeys(model for inner in get_args(annotation) for model in _models_in(inner)))


if __name__ == "__main__":
    print(f"settings of a study file: {count_settings()}")
