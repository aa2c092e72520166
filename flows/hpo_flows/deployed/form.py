"""The parameters of deployed flows: what Prefect turns into a form, and how a form becomes a study.

Prefect draws a form from a flow's JSON schema: enums become selects, unions of models tabs, lists of models rows.
What its two UIs do not draw well is given another shape, and only in the schema (``form_schema.py``); a mapping of
parameters is asked for as a list of rows. :class:`FilledIn` is the whole form. Few of its fields are shown at once, the
others in a folded section; its sections follow the settings of a study file by themselves (:data:`SECTIONS`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import PackingSpec
from hpo_core.spec.sections import LocalClusterSpec, StopSpec, TrainingSpec
from hpo_core.spec.study_file import read_scalar, read_yaml
from hpo_core.spec.study_yaml import in_one_line
from hpo_core.spec.validation_errors import check_plain, explain
from hpo_flows.deployed.form_schema import (
    AS_USUAL,
    BASIC_OF_METHOD,
    DEFAULT_METHOD,
    AsTabs,
    FormPart,
    Method,
    Offered,
    fold,
)
from hpo_flows.deployed.permissions import Permissions

Form = TypeVar("Form", bound=FormPart)

_ON_THE_FORM = {
    "data.folder": "Folder of the partitions: below the deployment's folder of data (HPO_DATA_FOLDER), or where it has "
    "none, of study files (HPO_STUDY_FOLDER); or a path in full within one of them. Empty: that folder itself."
}
"""Descriptions of settings that say of a study file what is otherwise on the form."""
_FLAT = {"demand": "job_"}
"""Settings that are mappings with a field for each of their own settings, and what the names of these begin with."""


def _settings_of(settings: type[BaseModel], leave_out: Collection[str] = ()) -> Iterator[tuple[str, list[str], Any]]:
    """Name on the form, place in the section of a study file, and Pydantic's field, of each setting."""
    for name, field in settings.model_fields.items():
        if name in leave_out:
            continue
        inner = field.annotation.model_fields if name in _FLAT else {}  # type: ignore[union-attr]
        yield from ((f"{_FLAT[name]}{one}", [name, one], inner[one]) for one in inner)
        if not inner:
            yield name, [name], field


def drawn_section(section: FormSection) -> type[FormPart]:
    """The fields of a section, which follow the settings of a study file by themselves.

    A setting that is new there is on the form without another line: a field of its own where it is one value, else a
    text in the words of a study file (YAML).
    """
    fields: dict[str, Any] = {}
    for name, place, setting in _settings_of(section.settings, section.leave_out):
        field = copy(setting)
        field.description = _ON_THE_FORM.get(f"{section.key}.{name}", field.description)
        if is_one_value(field.annotation):
            fields[name] = (field.annotation, field)
        elif field.is_required():
            fields[name] = (str, Field(min_length=1, description=f"{field.description} As in a study file (YAML)."))
        else:
            how = "Of one job; empty: it is measured." if len(place) > 1 else "As in a study file (YAML); empty: none."
            fields[name] = (
                str,
                Field(default="", title=field.title, description=f"{field.description or ''} {how}".strip()),
            )
    made: type[FormPart] = create_model(
        section.title.replace(" ", ""), __base__=FormPart, __doc__=section.about, **fields
    )
    made.model_config["title"] = section.title
    return made


def _kinds(annotation: Any) -> list[Any]:
    """The types that a setting may have, besides None."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for one in get_args(annotation) if one is not NoneType for kind in _kinds(one)]
    return _kinds(get_args(annotation)[0]) if get_origin(annotation) is Annotated else [annotation]


def is_one_value(annotation: Any) -> bool:
    """Whether a form has an input for it: a number, a text, a choice, yes or no; or None.

    >>> is_one_value(int | None), is_one_value(Literal["a", "b"]), is_one_value(dict[str, int])
    (True, True, False)
    """
    kinds = _kinds(annotation)
    return len(kinds) == 1 and (kinds[0] in (int, float, str, bool) or get_origin(kinds[0]) is Literal)


def _is_pattern(text: str, annotation: Any) -> bool:
    """Whether a text is meant as it stands: one that may be a list, too, is no list."""
    kinds = _kinds(annotation)
    return str in kinds and float not in kinds and not text.startswith(("[", "-"))


def _plain(section: FormPart, settings: type[BaseModel]) -> dict[str, Any]:
    """A filled section as in a study file: texts that stand for lists and mappings are read.

    Raises:
        SpecError: a text is no YAML.
    """
    filled = section.model_dump(mode="json", exclude_unset=True)
    found: dict[str, Any] = {}
    for name, place, field in _settings_of(settings):
        value = filled.get(name, "")
        if isinstance(value, str) and not is_one_value(field.annotation) and name in filled:
            value = value.strip()
            if value and not _is_pattern(value, field.annotation):
                try:
                    value, _ = read_yaml(value)
                except yaml.YAMLError as error:
                    said = " ".join(str(error).split())
                    words = f"cannot be read as YAML ({said}); write it as in a study file."
                    raise SpecError(f"form: {name} {words}") from None
            elif not value:
                continue
        if name in filled:
            at = found.setdefault(place[0], {}) if len(place) > 1 else found
            at[place[-1]] = value
    return found


def section_that_says(said: Mapping[str, Any], section: FormSection) -> dict[str, Any]:
    """The fields of a section that say the same as a study file; empty where all is as usual.

    Args:
        said: what is not as usual.
    """
    found: dict[str, Any] = {}
    for name, place, field in _settings_of(section.settings, section.leave_out):
        at: Any = said.get(place[0], {}) if len(place) > 1 else said
        if place[-1] not in at:
            continue
        value = at[place[-1]]
        if is_one_value(field.annotation):
            found[name] = 0 if value is None else value
        else:
            found[name] = value if isinstance(value, str) and _is_pattern(value, field.annotation) else text_of(value)
    return found


def text_of(value: Any) -> str:
    """YAML on one line; a text is quoted where it would be read as another type."""
    text = value if isinstance(value, str) else in_one_line(value)
    read = read_scalar(text)
    if not isinstance(value, str | int | float | bool | None) or (type(read) is type(value) and read == value):
        return text
    return yaml.safe_dump(value, default_style="'").strip()


_NAME = Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*$", description="As the training function reads it from trial.params.")
_ONLY_IF = Field(
    default="",
    description="Only where another parameter has one of these values: optimizer = sgd, adam. Empty: always.",
)
_FIXED = Field(default=False, description="Population only: never changed once drawn.")


class Number(FormPart):
    """A number in a range."""

    basic: ClassVar = ("name", "low", "high", "whole", "log")
    name: str = _NAME
    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")
    whole: bool = Field(default=False, description="Whole numbers only.")
    log: bool = Field(default=False, description="Drawn evenly on a logarithmic scale: for ranges like 0.0001 to 1.")
    step: float = Field(default=0.0, ge=0, description="Only every so many from the smallest on; 0: any value.")
    grid_points: int = Field(
        default=0, ge=0, description="Method Grid only: so many evenly spaced points; needed for real numbers."
    )
    only_if: str = _ONLY_IF
    fixed: bool = _FIXED

    def plain(self) -> dict[str, Any]:
        """As in a study file."""
        low, high, step = self.low, self.high, self.step
        if self.whole:
            low, high = _whole(self.name, "low", low), _whole(self.name, "high", high)
            step = _whole(self.name, "step", step)
        found = {"type": "int" if self.whole else "float", "low": low, "high": high, "log": self.log}
        return found | ({"step": step} if step else {}) | _conditions(self.name, self.only_if, self.fixed)


class Choice(FormPart):
    """One of several values."""

    basic: ClassVar = ("name", "values")
    name: str = _NAME
    values: list[str] = Field(min_length=1, description="One a line: sgd, 16, 0.5, true. Quoted, '16' is text.")
    ordered: bool = Field(default=False, description="Neighbours are alike, smallest first (16, 32, 64).")
    only_if: str = _ONLY_IF
    fixed: bool = _FIXED

    def plain(self) -> dict[str, Any]:
        """As in a study file."""
        choices = [read_scalar(value) for value in self.values]
        found = {"type": "ordinal" if self.ordered else "categorical", "choices": choices}
        return found | _conditions(self.name, self.only_if, self.fixed)


_STUDY_FILES = Offered(lambda: Permissions.of_environment().study_files(), otherwise="(HPO_STUDY_FOLDER holds none)")
StudyFile = Annotated[str, _STUDY_FILES]
FilledStudyFile = Annotated[str, dataclasses.replace(_STUDY_FILES, filled=True)]
Objective = Annotated[str, Offered(lambda: Permissions.of_environment().known_objectives())]
ClusterAddress = Annotated[
    str,
    Offered(
        lambda: [c for c in Permissions.of_environment().clusters if "://" in c],
        otherwise="(HPO_ALLOWED_CLUSTERS lists none)",
        filled=True,
    ),
]
OptunaCopy = Annotated[str, Offered(lambda: ["off", "on", *_storages()], filled=True)]
Sampler = Literal["random", "ranked_gp", "TPESampler", "GPSampler", "CmaEsSampler", "QMCSampler"]
StudyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Seed = Annotated[int, Field(ge=0)]
TrialNumber = Annotated[int, Field(ge=0)]


_ASKED_ELSEWHERE = (
    *("study", "objective", "metric", "space", "search", "sampler", "seed", "cluster", "training", "stop"),
    *("tracking", "prefect", "pythonpath", "packing", "data"),
)
"""Fields of a study that the form asks for in another way, or never: where code is imported from is the worker's."""


class Metric(FormPart):
    """The metric's name and direction."""

    model_config = ConfigDict(json_schema_extra={"required": ["name"]})
    name: str = Field(default="val_loss", min_length=1, description="As the training function reports it.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")


class LocalWorkers(FormPart):
    """Workers on the machine of the flow run."""

    model_config = ConfigDict(title="Local workers")
    workers: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Jobs at once, a process each. With packing the devices say how many there are, and this does not.",
    )


class DaskScheduler(FormPart):
    """A Dask scheduler that runs already."""

    model_config = ConfigDict(title="Dask scheduler")
    address: ClusterAddress = Field(description="One of those the deployment allows.")


class ClusterOfFile(FormPart):
    """The cluster that a study file of the deployment describes.

    What a Slurm or Kubernetes cluster needs (lines of a job script, images) runs code there, so it is written by who
    writes the study files, and not in a form.
    """

    model_config = ConfigDict(title="Of a study file")
    file: FilledStudyFile = Field(description="Its cluster is used, and nothing else of it: Slurm, Kubernetes, GPUs.")


Cluster = Annotated[LocalWorkers | DaskScheduler | ClusterOfFile | None, AsTabs()]


class FormSection(NamedTuple):
    """A folded section of the form, and the settings of a study file that it asks for."""

    key: str
    """Name in a study file; empty: the settings stand beside the file's sections."""
    settings: type[BaseModel]
    title: str
    about: str
    closed: str = AS_USUAL
    """Title of the tab that is open at first."""
    leave_out: Collection[str] = ()


SECTIONS = {
    "limits": FormSection(
        "stop", StopSpec, "Limits", "Rules that end the study before its search does; `resume` goes on with it."
    ),
    "training": FormSection(
        "training", TrainingSpec, "Attempts", "Limits of one attempt, and when a trial is given up."
    ),
    "packing": FormSection(
        "packing",
        PackingSpec,
        "Packing",
        "Several jobs at once on one device, by what they were measured to need, instead of one job on each slot.",
        closed="One job on each slot",
    ),
    "data": FormSection(
        "data",
        DataSpec,
        "Data",
        "Partitions of the data that lie on the workers; each model visits all of them once an epoch.",
        closed="As the training function reads them",
    ),
    "further": FormSection(
        "", StudySpec, "Further settings", "What else a study file may say.", leave_out=_ASKED_ELSEWHERE
    ),
}


class Described(FormPart):
    """A study described in a form, without what :data:`SECTIONS` ask for."""

    basic: ClassVar = ("objective", "name", "metric", "numbers", "choices", "method", "sampler", "cluster")
    needed: ClassVar = ("metric", "numbers", "choices")

    objective: Objective = Field(description="The training function, package.module:function.")
    name: StudyName | None = Field(default=None, description='Name of the study. Empty: "study" with date and time.')
    method: Method | None = Field(
        default=None,
        description="The search method and its budget: how many configurations, and how long the best of them train.",
    )
    metric: Metric = Field(default=Metric(), description="What is optimized.")
    numbers: list[Number] = Field(
        default=[],
        description="Hyperparameters that are numbers in a range, a row each; a study needs one row at least, here or "
        "in choices.",
    )
    choices: list[Choice] = Field(
        default=[], description="Hyperparameters that take one of several values, a row each."
    )
    sampler: Sampler = Field(
        default="random", description="Proposes configurations; those named ...Sampler are Optuna's."
    )
    cluster: Cluster = Field(
        default=None,
        description="Where jobs train: on the machine that runs this, on a Dask cluster that runs already, or on the "
        "cluster of a study file (Slurm, Kubernetes, GPUs).",
    )
    seed: Seed = Field(default=0, description="All draws and all training seeds follow from it.")
    experiment: str = Field(default="hpo", min_length=1, description="MLflow experiment that holds the runs.")
    optuna: OptunaCopy = Field(
        default="off", description="Copies the study to an Optuna storage; on: the worker's own, or a database."
    )

    def plain(self) -> dict[str, Any]:
        """As in a study file, without name and cluster.

        Raises:
            SpecError: a row or section cannot be read.
        """
        rows: list[Number | Choice] = [*self.numbers, *self.choices]
        names = [row.name for row in rows]
        if not rows:
            raise SpecError("form: no hyperparameter is given; add a row to numbers or choices.")
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise SpecError(f"form: there are two rows for {some(twice)}; remove one.")
        search = self.method.model_dump(mode="json") if self.method else DEFAULT_METHOD
        points = {row.name: row.grid_points for row in self.numbers if row.grid_points}
        if points and "points" not in search:
            raise SpecError(f"form: grid_points of {some(points)} are for method Grid alone; set them to 0.")
        found: dict[str, Any] = {
            "objective": self.objective,
            "metric": self.metric.model_dump(),
            "space": {row.name: row.plain() for row in rows},
            "search": search | ({"points": points} if points else {}),
            "sampler": {"name": self.sampler},
            "seed": self.seed,
            "tracking": {
                "experiment": self.experiment,
                "optuna": None if self.optuna == "off" else self.optuna,
            },
        }
        for name, (key, settings, *_) in SECTIONS.items():
            if (section := getattr(self, name)) is not None:
                said = _plain(section, settings)
                found |= {key: said} if key else said
        return found


if TYPE_CHECKING:
    FilledIn = Described
else:
    FilledIn = create_model(
        "FilledIn",
        __base__=Described,
        **{
            name: (
                Annotated[drawn_section(one) | None, AsTabs(closed=one.closed)],
                Field(default=None, description=one.about),
            )
            for name, one in SECTIONS.items()
        },
    )


def as_drawn(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a run of ``tune`` as its form has them: what no study does without is there, the rest folded.

    They mean the same. A deployment is registered with these, so that its form shows them where they belong.
    """
    found: dict[str, Any] = {"metric": {}, "numbers": [], "choices": [], **parameters}
    if isinstance(found["metric"], Mapping):
        found["metric"] = Metric().model_dump() | dict(found["metric"])
    for name, kind in (("numbers", Number), ("choices", Choice)):
        if isinstance(found[name], list):
            found[name] = [fold(row, kind.basic) if isinstance(row, Mapping) else row for row in found[name]]
    if isinstance(found.get("method"), Mapping):
        found["method"] = fold(found["method"], BASIC_OF_METHOD)
    return fold(found, FilledIn.basic)


def with_changes(
    spec: StudySpec,
    name: str,
    permissions: Permissions,
    *,
    seed: int | None,
    cluster: LocalWorkers | DaskScheduler | ClusterOfFile | None,
) -> StudySpec:
    """A study under another name, and perhaps with another seed and on another cluster.

    Raises:
        NotAllowedError: the deployment's settings forbid it.
    """
    changes: dict[str, Any] = {"study": name}
    if seed is not None:
        changes["seed"] = seed
    changes |= _cluster(cluster, permissions)
    made = StudySpec.from_plain(spec.plain() | changes, "form")
    permissions.check(made)
    return made


def _cluster(cluster: LocalWorkers | DaskScheduler | ClusterOfFile | None, permissions: Permissions) -> dict[str, Any]:
    """The setting of a study file; none where nothing was chosen."""
    if cluster is None:
        return {}
    if isinstance(cluster, LocalWorkers):
        return {"cluster": LocalClusterSpec(**cluster.model_dump()).model_dump()}
    if isinstance(cluster, ClusterOfFile):
        return {"cluster": permissions.load(cluster.file).plain()["cluster"]}
    return {"cluster": {"kind": "address"} | cluster.model_dump()}


def read_form(form: type[Form], fields: Mapping[str, Any]) -> Form:
    """The form with these values.

    Raises:
        SpecError: a line for each value that it does not take.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    check_plain(given, "form")
    try:
        return form.model_validate(given)
    except ValidationError as error:
        raise SpecError(explain(error, "form", given, {}, whole=form)) from None


def study_of(
    form: Described, permissions: Permissions, cluster: LocalWorkers | DaskScheduler | ClusterOfFile | None
) -> StudySpec:
    """The study that a form describes, by the name ``study``.

    Args:
        cluster: where it runs; settings that need a larger cluster, or one that others use, are judged by it.

    Raises:
        NotAllowedError: the cluster is that of a file which is not allowed.
        SpecError: it is no valid study; a line for each thing that is wrong.
    """
    folders = [str(folder) for folder in permissions.import_folders]
    named = {"study": "study", "pythonpath": folders} | _cluster(cluster, permissions)
    spec = StudySpec.from_plain(form.plain() | named, "form")
    folder = permissions.data_folder or permissions.folder
    return spec if folder is None else spec.beside(folder)


def _storages() -> list[str]:
    """Databases for Optuna that whoever runs the worker allows."""
    listed = Permissions.of_environment().tracking
    return [url for url in listed if url.startswith(("sqlite", "postgresql", "mysql", "mariadb"))]


def _whole(name: str, field: str, value: float) -> int:
    if not value.is_integer():
        raise SpecError(f"form: space.{name}.{field} = {value} is no whole number; round it, or untick whole.")
    return int(value)


def _conditions(name: str, only_if: str, fixed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"static": True} if fixed else {}
    if only_if.strip():
        other, equals, values = only_if.partition("=")
        wanted = [read_scalar(value.strip()) for value in values.split(",") if value.strip()]
        if not equals or not other.strip() or not wanted:
            raise SpecError(
                f"form: space.{name}.only_if = {only_if!r} cannot be read; write PARAMETER = VALUE, or several values "
                "with commas."
            )
        found["when"] = {other.strip(): wanted}
    return found
