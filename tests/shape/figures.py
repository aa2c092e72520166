"""Figures of the code base's size and shape: ``python -m tests.shape.figures`` prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from hpo_core.spec import StudySpec
from tests.shape import code_figures
from tests.shape.imports import modules
from tests.shape.job_hops import way_of_a_job


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


def figures() -> dict[str, object]:
    """All figures by what they count. The way of a job takes half a minute: a study runs for it."""
    way = way_of_a_job()
    questions = code_figures.mode_questions()
    return {
        "code lines of hpo_core and flows": code_figures.all_code_lines(),
        "Python files": len(modules()),
        f"files below {code_figures.SMALL} code lines": len(code_figures.small_files()),
        "modules with a single importer": len(code_figures.single_importers()),
        "questions about a study's modes": len(questions),
        "files with such questions": len({name for name, _ in questions}),
        "function hops of a plain ASHA job": len(way.hops),
        "modules on its way": len(way.modules),
        "functions that hand it back": len(way.returns),
        "settings of a study file": count_settings(),
        "class names defined twice": len(code_figures.doubled_classes()),
        "docstrings that begin with Of, Those, Its, So, That": len(code_figures.riddles()),
    }


if __name__ == "__main__":
    if "--where" in sys.argv:
        for place in (*code_figures.mode_questions(), *code_figures.riddles()):
            print(*place)
        for name, places in code_figures.doubled_classes().items():
            print(name, *places)
    else:
        for what, count in figures().items():
            print(f"{count:>7,}  {what}")
