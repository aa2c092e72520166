"""The parameters of deployed flows: the settings of a study file, as ``form_schema.py`` draws them.

:class:`StudyForm` is the form of ``tune``. It names what the form says otherwise than a study file; all else, and
what is new in a study file, follows by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from prefect import Flow
from prefect.exceptions import FailedRun
from prefect.runtime import deployment
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.short_text import shown, some
from hpo_core.security.masking import masked_errors
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, LocalCudaClusterSpec
from hpo_core.spec.validation_errors import check_plain, explain
from hpo_flows.deployed.form_schema import BEGINS, Schema, drawn, form_parameters, read
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.deployed.register import end_with_parent
from hpo_flows.prefect_pages.tune_flow import failed

StudyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Seed = Annotated[int, Field(ge=0)]
TrialNumber = Annotated[int, Field(ge=0)]
Sampler = Literal["random", "ranked_gp", "TPESampler", "GPSampler", "CmaEsSampler", "QMCSampler"]


_HERE: dict[str, Callable[[Permissions], Sequence[str]]] = {
    "objective": lambda allowed: allowed.objectives,
    "file": Permissions.study_files,
}
"""Names that the description of a field holds, as of ``hpo deploy``; a run may give any, and allows or refuses it."""

# Slurm needs lines of a job script, which run code there: it stands in study files alone
FormCluster = Annotated[LocalClusterSpec | AddressClusterSpec | LocalCudaClusterSpec, Field(discriminator="kind")]


class FormPart(BaseModel):
    """Parameters of a flow, which Prefect draws as a form."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def form(cls) -> Schema:
        """The JSON schema of the form."""
        schema = cls.model_json_schema()
        fields = {name: drawn(one, schema.get("$defs", {}), name) for name, one in schema["properties"].items()}
        for name, here in _HERE.items():
            if name in fields and (known := here(Permissions.of_environment())):
                fields[name]["description"] += f" Here: {some(known)}."
        return {"properties": fields, "required": schema.get("required", [])}

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """The form with these values.

        Raises:
            SpecError: a line for each value that it does not take.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        check_plain(given, "form")
        schema = cls.model_json_schema()
        given = read(schema, schema.get("$defs", {}), given, "form")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise SpecError(explain(error, "form", given, {}, whole=cls)) from None


def form_flow(name: str, run_name: Callable[[], str] | None = None) -> Callable[[Callable[[Any], Any]], Flow[..., Any]]:
    """Decorator: a flow with the parameters that the form, its function's only argument, has as fields.

    A run's parameters are checked by the form, which says what is wrong. An error that says what is wrong becomes the
    state Failed with its words. Prefect would put its class before it and a traceback into the run's log, which says
    nothing to whoever filled in a form. Any other error is a mistake of this program and keeps its traceback.
    """

    def decorate(function: Callable[[Any], Any]) -> Flow[..., Any]:
        form: type[FormPart] = next(iter(get_type_hints(function).values()))
        fields = form_parameters(form.form())
        kind = Parameter.POSITIONAL_OR_KEYWORD
        names = dict.fromkeys([*fields.parameters, *(StudySpec.model_fields if form is StudyForm else ())])
        signature = Signature([Parameter(name, kind, default=None, annotation=Any) for name in names])

        @wraps(function)
        def run(*values: Any, **named: Any) -> Any:  # Prefect hands in either
            parameters = signature.bind(*values, **named).arguments
            if deployment.id is not None:
                end_with_parent()
            logging.getLogger("prefect.flow_runs").addFilter(_is_no_engine_traceback)
            try:
                with masked_errors():  # the form shows the values that it does not take
                    return function(form.read(parameters))
            except HpoError as error:
                if deployment.id is None:
                    raise
                return failed(str(error))

        run.__signature__ = signature  # type: ignore[attr-defined]
        made: Flow[..., Any] = Flow(run, name=name, flow_run_name=run_name, persist_result=False, retries=0)
        made.__signature__ = fields  # type: ignore[attr-defined]
        return made

    return decorate


def _is_no_engine_traceback(record: logging.LogRecord) -> bool:
    """Not the engine's own traceback of a run that ended as Failed: the state has said why, in the line before."""
    return not (record.exc_info and record.exc_info[0] is FailedRun)


_BEGINS = {"configs": 30, "max_resource": 27, "population": 10, "generations": 3, "steps_per_generation": 9}
"""The budgets that stand in the form, the same for every method: about 30 trials, the best of them trained to 27."""
_WORDS = {
    "objective": "The training function, package.module:function.",
    "search": "The search method and its budget: how many configurations, and how long the best of them train.",
    "metric": "What is optimized.",
    "space": "Hyperparameters: a row for each in the list of its type; a study needs one at least.",
    "sampler": "Proposes configurations; those named ...Sampler are Optuna's.",
    "cluster": "Where jobs train: on the machine that runs this, or on a Dask cluster that runs already; for Slurm "
    "see tune-file.",
}
_AT_ONCE = ("objective", "name", "search", "metric", "space", "sampler", "cluster", "advanced")


class _Settings(StudySpec):
    """The settings of a study file that have fields of their own, and one field for all others."""

    name: StudyName | None = Field(default=None, description='Name of the study. Empty: "study" with date and time.')
    cluster: FormCluster = LocalClusterSpec()
    advanced: dict[str, Any] | None = Field(
        default=None, description="All other settings: {seed: 3, packing: {policy: worst_fit}, stop: {seconds: 600}}."
    )


class StudyForm(FormPart):
    """A study that is described in a form; other settings of a study file may stand beside the fields."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def model_json_schema(cls, *arguments: Any, **more: Any) -> Schema:
        """The settings of a study file, and what the form says otherwise."""
        schema = _Settings.model_json_schema()
        fields, parts = {name: schema["properties"][name] for name in _AT_ONCE}, schema["$defs"]
        for name, words in _WORDS.items():
            fields[name] = fields[name] | {"description": words}
        fields["objective"] = {"type": "string", "description": _WORDS["objective"]}
        parts["SamplerSpec"]["properties"]["name"] |= {"enum": [*get_args(Sampler)]}
        for one in ("FloatParameter", "IntParameter"):  # whose inputs take numbers alone
            for end, words in (("low", "Smallest value."), ("high", "Largest value.")):
                parts[one]["properties"][end]["description"] = words
        search = fields["search"]
        search["oneOf"] = [one for one in search["oneOf"] if not one["$ref"].endswith("/RecordedSearch")]
        for one in search["oneOf"]:
            settings = parts[one["$ref"].rpartition("/")[2]]["properties"]
            for name in _BEGINS.keys() & settings.keys():
                if not (name == "configs" and "points" in settings):  # a grid has all its points
                    settings[name][BEGINS] = _BEGINS[name]
            if "reduction_factor" in settings:  # written out it also decides the first rung
                usual = settings["reduction_factor"].pop("default")
                settings["reduction_factor"]["description"] += f" Empty: {usual:g}."
            if "brackets" in settings:  # numbers, or the name of a set
                settings["brackets"] = {"description": settings["brackets"]["description"], "title": "Brackets"}
        return schema | {"title": "StudyForm", "properties": fields,
                         "required": ["objective", "search", "metric", "space"]}  # fmt: skip


def study_of(form: StudyForm, name: str, permissions: Permissions) -> StudySpec:
    """The study that a form describes.

    Raises:
        NotAllowedError: the deployment's settings forbid it.
        SpecError: it is no valid study; a line for each thing that is wrong.
    """
    given = {key: value for key, value in (form.model_extra or {}).items() if key != "name"}
    others = given.pop("advanced", {})
    if not isinstance(others, Mapping):
        raise SpecError(f"form.advanced = {shown(others)} must be settings as in a study file, such as {{seed: 3}}.")
    if beside := [key for key in others if key in given or key in _AT_ONCE]:  # a cluster: of the kinds of the form
        raise SpecError(f"form.advanced: {', '.join(beside)} has a place beside it; give it there alone.")
    given |= {**others, "study": name, "pythonpath": [str(folder) for folder in permissions.import_folders]}
    spec = StudySpec.from_plain(given, "form")
    folder = permissions.data_folder or permissions.folder
    made = spec if folder is None else spec.beside(folder)
    permissions.check(made)
    return made
