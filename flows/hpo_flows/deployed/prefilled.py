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
from hpo_flows.deployed.form import (
    SECTIONS,
    FilledIn,
    FormSection,
    as_drawn,
    is_one_value,
    section_that_says,
    text_of,
)
from hpo_flows.deployed.permissions import NotAllowedError, Permissions

_SUFFIXES = (".yaml", ".yml")
TUNE = "hpo_flows.deployed.flows:tune"
_NOT_COMPARED = ("study", "cluster", "pythonpath", "prefect")
"""What the form asks for in another way, or the worker decides."""


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


def begun_as_drawn(deployments: list[Any]) -> list[Any]:
    """Entries of a ``prefect.yaml``, those of ``tune`` with the parameters that its form begins with.

    They may have been written before a setting was folded, and leave out what no study does without.
    """
    return [
        entry | {"parameters": as_drawn(entry.get("parameters") or {})}
        if isinstance(entry, dict) and entry.get("entrypoint") == TUNE
        else entry
        for entry in deployments
    ]


def form_of(spec: StudySpec, source: str) -> dict[str, Any]:
    """The fields of the form that make this study.

    Raises:
        SpecError: there is something that the form cannot say; names it.
    """
    changed = spec.model_dump(mode="json", exclude_defaults=True)
    search = spec.search.model_dump()
    if search.get("min_resource", 0) is None:  # then it decides the first rung
        changed["search"]["reduction_factor"] = search["reduction_factor"]
    points = changed["search"].pop("points", None) or {}
    rows = {name: _row(name, parameter, points.get(name)) for name, parameter in spec.plain()["space"].items()}
    form: dict[str, Any] = {
        "objective": spec.objective,
        "method": changed["search"] | {spec.search.method: spec.search.method},
        "metric": spec.metric.model_dump(),
        "numbers": [row for row in rows.values() if "values" not in row],
        "choices": [row for row in rows.values() if "values" in row],
        "sampler": spec.sampler.name,
        "seed": spec.seed,
        "experiment": spec.tracking.experiment,
        "optuna": spec.tracking.optuna or "off",
    }
    form["method"].pop("method", None)
    for name, section in SECTIONS.items():
        said = changed.get(section.key) if section.key else changed
        if said is not None:
            form[name] = section_that_says(said, section) or _as_opened(section)
    form = {name: value for name, value in form.items() if value}
    _check_same(spec, form, source)
    return form


def _as_opened(section: FormSection) -> dict[str, Any]:
    """A section that is opened and left as it stands; none where a study has its settings anyway."""
    if not section.key or StudySpec.model_fields[section.key].default is not None:
        return {}
    settings = section.settings.model_fields.items()
    return next({name: one.default} for name, one in settings if is_one_value(one.annotation))


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


def _row(name: str, parameter: dict[str, Any], points: int | None) -> dict[str, Any]:
    """As near as a row of the form comes to it; what is missing, the comparison at the end finds."""
    row: dict[str, Any] = {"name": name}
    for other, values in (parameter.get("when") or {}).items() if isinstance(parameter.get("when"), dict) else ():
        listed = values if isinstance(values, list) else [values]
        row["only_if"] = f"{other} = {', '.join(map(text_of, listed))}"
    if parameter.get("static"):
        row["fixed"] = True
    if "choices" in parameter:
        row["values"] = [text_of(value) for value in parameter["choices"]]
        return row | ({"ordered": True} if parameter["type"] == "ordinal" else {})
    row |= {key: parameter.get(key) for key in ("low", "high")}
    row |= {"whole": True} if parameter["type"] == "int" else {}
    row |= {"log": True} if parameter.get("log") else {}
    if (step := parameter.get("step")) and not (parameter["type"] == "int" and step == 1):
        row["step"] = step
    return row | ({"grid_points": points} if points else {})


def _check_same(spec: StudySpec, form: dict[str, Any], source: str) -> None:
    try:
        plain = FilledIn.model_validate(form).plain()
        made = StudySpec.from_plain(plain | {"study": spec.study}, "form").plain()
    except (ValueError, SpecError) as error:
        raise SpecError(f"--prefill {source}: {_CANNOT} ({error}).") from None
    wanted = spec.plain()
    wanted["space"] = {name: _values_listed(parameter) for name, parameter in wanted["space"].items()}
    different = [name for name in wanted if name not in _NOT_COMPARED and made.get(name) != wanted[name]]
    if "space" in different:
        names = [name for name in wanted["space"] if made["space"].get(name) != wanted["space"][name]]
        different = [name for name in different if name != "space"] + [f"space.{name}" for name in names]
    if different:
        raise SpecError(f"--prefill {source}: {_CANNOT}: {', '.join(different)}.")


def _values_listed(parameter: dict[str, Any]) -> dict[str, Any]:
    """One value in a condition means the same as a list with it."""
    when = parameter.get("when")
    if not isinstance(when, dict):
        return parameter
    return parameter | {
        "when": {other: test if isinstance(test, list | dict) else [test] for other, test in when.items()}
    }


_CANNOT = (
    "the form cannot say all of it; put the study file into HPO_STUDY_FOLDER, where `tune-file` offers it "
    "(`hpo space` writes the space of an objective)"
)
