"""Sections of the form that follow the settings of a study file by themselves.

A setting that is new in a section of the study file is on the form without another line: a field of its own where it
is one value, else a text in the words of a study file (YAML).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, create_model

from hpo_core.model.errors import SpecError
from hpo_core.spec.study_file import read_yaml
from hpo_flows.deployed.form_schema import Drawn


def section_of(settings: type[BaseModel], title: str, about: str, *, leave_out: Collection[str] = ()) -> type[Drawn]:
    """A section of the form with the fields of ``settings``."""
    fields: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        if name in leave_out:
            continue
        if is_one_value(field.annotation):
            fields[name] = (field.annotation, copy(field))
        else:
            words = f"{field.description or ''} As in a study file (YAML); empty: none.".strip()
            fields[name] = (str, Field(default="", description=words))
    made = create_model(title.replace(" ", ""), __base__=Drawn, __doc__=about, **fields)
    made.model_config["title"] = title
    return made


def is_one_value(annotation: Any) -> bool:
    """Whether a form has an input for it: a number, a text, a choice, yes or no; or None.

    >>> is_one_value(int | None), is_one_value(Literal["a", "b"]), is_one_value(dict[str, int])
    (True, True, False)
    """
    if get_origin(annotation) in (Union, UnionType):
        return sum(one is not NoneType for one in get_args(annotation)) == 1 and all(
            one is NoneType or is_one_value(one) for one in get_args(annotation)
        )
    if get_origin(annotation) is Annotated:
        return is_one_value(get_args(annotation)[0])
    return annotation in (int, float, str, bool) or get_origin(annotation) is Literal


def read_texts(filled: Mapping[str, Any], settings: type[BaseModel]) -> dict[str, Any]:
    """A filled section as in a study file: texts that stand for lists and mappings are read.

    Raises:
        SpecError: a text is no YAML.
    """
    found: dict[str, Any] = {}
    for name, value in filled.items():
        if is_one_value(settings.model_fields[name].annotation):
            found[name] = value
        elif value.strip():
            try:
                found[name], _ = read_yaml(value)
            except yaml.YAMLError as error:
                said = " ".join(str(error).split())
                raise SpecError(f"form: {name} cannot be read as YAML ({said}); write it as in a study file.") from None
    return found
