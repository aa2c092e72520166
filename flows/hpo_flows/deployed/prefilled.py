"""Deployments of ``tune``: what their form begins with.

Prefect's forms cannot fill one field from another. So an objective, or a study file, is a deployment of its own, by its
name in the list of deployments (``hpo deploy --prefill``); all that it fills in can be changed before Run is pressed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.validation_errors import check_plain
from hpo_flows.deployed.form import StudyForm
from hpo_flows.deployed.permissions import NotAllowedError, Permissions

_SUFFIXES = (".yaml", ".yml")
TUNE = "hpo_flows.deployed.flows:tune"


def prefilled_deployments(sources: list[str], permissions: Permissions) -> list[dict[str, Any]]:
    """Entries of a ``prefect.yaml``, one for each objective or study file.

    Raises:
        NotAllowedError: an objective is not allowed here.
        SpecError: the form cannot say what a study says, or two sources have one name.
    """
    found: dict[str, dict[str, Any]] = {}
    for source in sources:
        name, spec = _study_of(source)
        if spec.objective is None:
            raise NotAllowedError(f"--prefill {source}: has no objective, and can only be driven by hand.")
        folders = [*map(str, permissions.import_folders), *spec.pythonpath]  # as a run of it has them
        permissions.check_function(f"--prefill {source}: objective", spec.objective, folders)
        if name in found:
            raise SpecError(f"--prefill: two sources are called {name!r}; give each its own name.")
        found[name] = {
            "name": name,
            "description": f"Run a new study; the form begins with {source}.",
            "entrypoint": TUNE,
            "tags": ["hpo"],
            "work_pool": {"name": "hpo"},
            "enforce_parameter_schema": True,
            "pull": [],
            "parameters": form_of(spec, source),
        }
    return list(found.values())


def form_of(spec: StudySpec, source: str) -> dict[str, Any]:
    """The fields of the form that make this study.

    Raises:
        SpecError: there is something that the form cannot say; names it.
    """
    try:
        form = StudyForm.filled_by(spec)
        made = StudySpec.from_plain(StudyForm.plain(form) | {"study": spec.study, "cluster": spec.plain()["cluster"]})
    except SpecError as error:
        raise SpecError(f"--prefill {source}: {_CANNOT} ({error}).") from None
    plain, wanted = made.plain(), spec.plain()
    if different := [name for name in wanted if name != "pythonpath" and plain[name] != wanted[name]]:
        raise SpecError(f"--prefill {source}: {_CANNOT}: {', '.join(different)}.")
    return form


def _study_of(source: str) -> tuple[str, StudySpec]:
    if source.endswith(_SUFFIXES):
        spec = load_spec(Path(source))
        return spec.study, spec
    from hpo_core.training.objective import load_objective
    from hpo_core.training.optuna.space_discovery import find_space

    found = find_space(load_objective(source, [str(Path.cwd())]))
    study = {
        "study": "study",
        "objective": source,
        "style": "optuna",
        "metric": {"name": "value", "mode": found.mode or "min"},
        "space": found.space,
        "constraints": found.constraints,
        "search": {"method": "asha", "configs": 30, "max_resource": 27},
    }
    check_plain(study, source)
    return source.replace(":", "."), StudySpec.from_plain(study, source)


_CANNOT = (
    "the form cannot say all of it; put the study file into HPO_STUDY_FOLDER, where `tune-file` offers it "
    "(`hpo space` writes the space of an objective)"
)
