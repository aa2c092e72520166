"""The form's section for data whose partitions lie on the workers: the settings of ``data``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from hpo_core.spec import DataSpec
from hpo_flows.deployed.form_schema import AsTabs, Drawn
from hpo_flows.deployed.form_sections import read_texts, section_of

_FILES = ("partitions", "validation")
"""A pattern as it is, or a list as in a study file."""

if TYPE_CHECKING:
    Data = Drawn
else:
    _DRAWN = {
        name: (str, Field(default="", description=f"{DataSpec.model_fields[name].description} A list: in YAML."))
        for name in _FILES
    }
    _ABOUT = "Partitions of the data that lie on the workers; each model visits all of them once an epoch."
    Data = create_model("Data", __base__=section_of(DataSpec, "Data", _ABOUT, leave_out=_FILES), **_DRAWN)
    Data.__doc__ = _ABOUT
    Data.model_config["title"] = "Data"

DataSection = Annotated[Data | None, AsTabs(closed="As the training function reads them")]


def data_of_form(section: Drawn | None) -> dict[str, Any] | None:
    """``data`` as a study file says it; None: the training function reads its data itself.

    Raises:
        SpecError: a list is no YAML.
    """
    if section is None:
        return None
    filled = section.model_dump(mode="json", exclude_unset=True)
    files = {name: str(filled.pop(name)).strip() for name in _FILES if name in filled}
    lists = {name: text for name, text in files.items() if text.startswith(("[", "-"))}
    patterns = {name: text for name, text in files.items() if text and name not in lists}
    return filled | patterns | read_texts(lists, DataSpec)


def form_of_data(data: DataSpec, yaml: Callable[[Any], str]) -> dict[str, Any]:
    """The section that says the same as a study file.

    Args:
        yaml: writes a value on one line.
    """
    changed: Mapping[str, Any] = data.model_dump(mode="json", exclude_defaults=True)
    return {
        name: yaml(value) if name in _FILES and not isinstance(value, str) else value for name, value in changed.items()
    }
