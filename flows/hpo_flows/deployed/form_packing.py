"""The form's section for jobs that share devices: the settings of ``packing``, and what one job needs as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from hpo_core.spec import PackingSpec
from hpo_core.spec.packing import DemandSpec
from hpo_flows.deployed.form_schema import AsTabs, Drawn
from hpo_flows.deployed.form_sections import read_texts, section_of

_JOB = "job_"
"""What one job needs has a field of its own for each figure: ``job_memory`` is ``demand.memory`` of a study file."""

if TYPE_CHECKING:
    Packing = Drawn
else:
    _NEEDS = {
        f"{_JOB}{name}": (str, Field(default="", description=f"{field.description} Of one job; empty: it is measured."))
        for name, field in DemandSpec.model_fields.items()
    }
    Packing = create_model(
        "Packing",
        __base__=section_of(
            PackingSpec,
            "Packing",
            "Several jobs at once on one device, by what they were measured to need.",
            leave_out=("demand",),
        ),
        **_NEEDS,
    )
    Packing.__doc__ = Packing.__base__.__doc__
    Packing.model_config["title"] = "Packing"

PackingSection = Annotated[Packing | None, AsTabs(closed="One job on each slot")]


def packing_of_form(section: Drawn | None) -> dict[str, Any] | None:
    """``packing`` as a study file says it; None: one job on each slot.

    Raises:
        SpecError: a text is no YAML.
    """
    if section is None:
        return None
    filled = section.model_dump(mode="json", exclude_unset=True)
    needs = {name.removeprefix(_JOB): value for name, value in filled.items() if name.startswith(_JOB)}
    rest = {name: value for name, value in filled.items() if not name.startswith(_JOB)}
    stated = read_texts(needs, DemandSpec)
    return read_texts(rest, PackingSpec) | ({"demand": stated} if stated else {})


def form_of_packing(changed: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The section that says the same as a study file.

    Args:
        changed: settings that are not as usual, without ``demand``, as fields of the form.
        texts: the stated needs of one job.
    """
    filled = {**changed, **{f"{_JOB}{name}": text for name, text in texts.items()}}
    return filled or {"policy": PackingSpec().policy}  # an empty section is one that was never opened
