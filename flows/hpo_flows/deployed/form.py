"""The parameters of deployed flows: what Prefect turns into a form, and how a form becomes a study.

Prefect draws a form from a flow's JSON schema: enums become selects, unions of models tabs, lists of models rows.
What its two UIs do not draw well is given another shape, and only in the schema (``form_schema.py``); a mapping of
parameters is asked for as a list of rows. :class:`FilledIn` is the whole form. Of its fields few are shown at once, the
others in a folded section; what it says of a study file's sections follows these by itself (:func:`section_of`).
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from copy import copy
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import some
from hpo_core.spec import DataSpec, JournalSpec, LocalClusterSpec, PackingSpec, StopSpec, StudySpec, TrainingSpec
from hpo_core.spec.packing import DemandSpec
from hpo_core.spec.study_file import read_yaml
from hpo_core.spec.validation_errors import check_plain, explain
from hpo_flows.deployed.form_schema import (
    AS_USUAL,
    BASIC_OF_METHOD,
    FOLD,
    AsTabs,
    Drawn,
    Folding,
    Method,
    Offered,
    WithoutNone,
    fold,
    given,
)
from hpo_flows.deployed.permissions import Permissions


def section_of(
    settings: type[BaseModel],
    title: str,
    about: str,
    *,
    leave_out: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
) -> type[Drawn]:
    """A section of the form that follows the settings of a study file by itself.

    A setting that is new there is on the form without another line: a field of its own where it is one value, else a
    text in the words of a study file (YAML).

    Args:
        leave_out: settings that are not on the form.
        texts: further fields that are texts, with their descriptions; they replace settings of that name.
    """
    fields: dict[str, Any] = {}
    texts = texts or {}
    for name, field in settings.model_fields.items():
        if name in leave_out or name in texts:
            continue
        if is_one_value(field.annotation):
            fields[name] = (field.annotation, copy(field))
        else:
            words = f"{field.description or ''} As in a study file (YAML); empty: none.".strip()
            fields[name] = (str, Field(default="", description=words))
    fields |= {name: (str, Field(default="", description=words)) for name, words in texts.items()}
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


_FILES = ("partitions", "validation")
"""A pattern as it is, or a list as in a study file."""

if TYPE_CHECKING:
    Data = Drawn
else:
    Data = section_of(
        DataSpec,
        "Data",
        "Partitions of the data that lie on the workers; each model visits all of them once an epoch.",
        texts={name: f"{DataSpec.model_fields[name].description} A list: in YAML." for name in _FILES},
    )

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


_JOB = "job_"
"""What one job needs has a field of its own for each figure: ``job_memory`` is ``demand.memory`` of a study file."""

if TYPE_CHECKING:
    Packing = Drawn
else:
    Packing = section_of(
        PackingSpec,
        "Packing",
        "Several jobs at once on one device, by what they were measured to need.",
        leave_out=("demand",),
        texts={
            f"{_JOB}{name}": f"{field.description} Of one job; empty: it is measured."
            for name, field in DemandSpec.model_fields.items()
        },
    )

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


class _Form(Folding):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_NAME = Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*$", description="As the training function reads it from trial.params.")
_ONLY_IF = Field(
    default="",
    description="Only where another parameter has one of these values: optimizer = sgd, adam. Empty: always.",
)
_FIXED = Field(default=False, description="Population only: never changed once drawn.")


class Number(_Form):
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


class Choice(_Form):
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
NewName = Annotated[StudyName | None, WithoutNone()]
Seed = Annotated[int, Field(ge=0)]
OtherSeed = Annotated[Seed | None, WithoutNone()]
TrialNumber = Annotated[int, Field(ge=0)]
OneTrial = Annotated[TrialNumber | None, WithoutNone()]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
JournalRetry = Annotated[
    float,
    Field(ge=0, le=86_400, description="How long a journal that cannot be reached is tried again, in seconds."),
]
Target = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, WithoutNone()]


_ASKED_ELSEWHERE = (
    *("study", "objective", "metric", "space", "search", "sampler", "seed", "cluster", "training", "stop", "journal"),
    *("tracking", "prefect", "pythonpath", "packing", "data"),
)
"""Fields of a study that the form asks for in another way, or never: where code is imported from is the worker's."""


class Metric(_Form):
    """The metric's name and direction."""

    model_config = ConfigDict(json_schema_extra={"required": ["name"]})
    name: str = Field(default="val_loss", min_length=1, description="As the training function reports it.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")


if TYPE_CHECKING:
    Limits = StopSpec
    Attempts = TrainingSpec
    Further = Drawn
else:
    Limits = section_of(StopSpec, "Limits", "Rules that end a study before its search does; `resume` goes on with it.")
    Attempts = section_of(TrainingSpec, "Attempts", "Limits of one attempt, and when a trial is given up.")
    Further = section_of(StudySpec, "Further settings", "What else a study file may say.", leave_out=_ASKED_ELSEWHERE)

Folded = AsTabs(closed=AS_USUAL)
LimitsSection = Annotated[Limits | None, Folded]
AttemptsSection = Annotated[Attempts | None, Folded]
FurtherSection = Annotated[Further | None, Folded]


class FilledIn(_Form):
    """A study described in a form."""

    objective: Objective = Field(description="The training function, package.module:function.")
    metric: Metric = Field(default=Metric(), description="What is optimized.")
    numbers: list[Number] = Field(default=[], description="Hyperparameters that are numbers in a range.")
    choices: list[Choice] = Field(default=[], description="Hyperparameters that take one of several values.")
    method: Method = Field(description="The search method and its budget.")
    sampler: Sampler = Field(
        default="random", description="Proposes configurations; those named ...Sampler are Optuna's."
    )
    seed: Seed = Field(default=0, description="All draws and all training seeds follow from it.")
    limits: LimitsSection = Field(default=None, description="Limits besides the method's own budget.")
    training: AttemptsSection = Field(default=None, description="Limits of one attempt, and when a trial is given up.")
    packing: PackingSection = Field(default=None, description="Several jobs at once on one device.")
    data: DataSection = Field(default=None, description="Partitions of the data that lie on the workers.")
    further: FurtherSection = Field(default=None, description="What else a study file may say.")
    experiment: str = Field(default="hpo", min_length=1, description="MLflow experiment that holds the runs.")
    optuna: OptunaCopy = Field(
        default="off", description="Copies the study to an Optuna storage; on: the worker's own, or a database."
    )
    journal_retry_seconds: JournalRetry = JournalSpec().retry_seconds

    def plain(self) -> dict[str, Any]:
        """As in a study file, without a name.

        Raises:
            SpecError: a row cannot be read.
        """
        rows: list[Number | Choice] = [*self.numbers, *self.choices]
        names = [row.name for row in rows]
        if not rows:
            raise SpecError("form: no hyperparameter is given; add a row to numbers or choices.")
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise SpecError(f"form: there are two rows for {some(twice)}; remove one.")
        search = self.method.model_dump(mode="json")
        points = {row.name: row.grid_points for row in self.numbers if row.grid_points}
        if points and "points" not in search:
            raise SpecError(f"form: grid_points of {some(points)} are for method Grid alone; set them to 0.")
        if points:
            search["points"] = points
        return {
            "objective": self.objective,
            "metric": self.metric.model_dump(),
            "space": {row.name: row.plain() for row in rows},
            "search": search,
            "sampler": {"name": self.sampler},
            "seed": self.seed,
            "stop": _section(self.limits, StopSpec),
            "journal": {"retry_seconds": self.journal_retry_seconds},
            "training": _section(self.training, TrainingSpec),
            "packing": packing_of_form(self.packing),
            "data": data_of_form(self.data),
            "tracking": {"experiment": self.experiment, "optuna": None if self.optuna == "off" else self.optuna},
            **_section(self.further, StudySpec),
        }


SHOWN = ("objective", "name", "metric", "numbers", "choices", "method", "sampler", "cluster", FOLD)
"""Parameters of the flow ``tune`` that its form shows, in this order; those of :class:`FilledIn` beside them are in the
fold, and a run may still name them outside of it."""
NEEDED = ("metric", "numbers", "choices")
"""Parameters that no study does without; of ``numbers`` and ``choices`` one row is needed."""

if TYPE_CHECKING:
    Advanced = Drawn
else:
    Advanced = create_model(
        FOLD.capitalize(),
        __base__=Drawn,
        **{name: (field.annotation, copy(field)) for name, field in FilledIn.model_fields.items() if name not in SHOWN},
    )
AdvancedSection = Annotated[Advanced | None, Folded]


class LocalWorkers(_Form):
    """Workers on the machine of the flow run."""

    model_config = ConfigDict(title="Local workers")
    basic: ClassVar = ("workers",)
    workers: int = Field(default=2, ge=1, le=1024, description="Jobs at once; one process each.")


class DaskScheduler(_Form):
    """A Dask scheduler that runs already."""

    model_config = ConfigDict(title="Dask scheduler")
    basic: ClassVar = ("address",)
    address: ClusterAddress = Field(description="One of those the deployment allows.")


class ClusterOfFile(_Form):
    """The cluster that a study file of the deployment describes.

    What a Slurm or Kubernetes cluster needs (lines of a job script, images) runs code there, so it is written by who
    writes the study files, and not in a form.
    """

    model_config = ConfigDict(title="Of a study file")
    file: FilledStudyFile = Field(description="Its cluster is used, and nothing else of it: Slurm, Kubernetes, GPUs.")


_BASIC_OF_CLUSTER = frozenset({*LocalWorkers.basic, *DaskScheduler.basic, "file"})
Cluster = Annotated[LocalWorkers | DaskScheduler | ClusterOfFile | None, AsTabs()]
OtherCluster = Annotated[LocalWorkers | DaskScheduler | None, AsTabs(closed="As the file says")]


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
    for name, basic in (("method", BASIC_OF_METHOD), ("cluster", _BASIC_OF_CLUSTER)):
        if isinstance(found.get(name), Mapping):
            found[name] = fold(found[name], basic)
    return fold(found, SHOWN)


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


def filled_in(
    permissions: Permissions, *, cluster: LocalWorkers | DaskScheduler | ClusterOfFile | None = None, **fields: Any
) -> StudySpec:
    """The study that the fields of a form describe (see :class:`FilledIn`), by the name ``study``.

    Args:
        cluster: where it runs; settings that need a larger cluster, or one that others use, are judged by it.

    Raises:
        NotAllowedError: the cluster is that of a file which is not allowed.
        SpecError: it is no valid study; a line for each thing that is wrong.
    """
    plain_fields = {name: _as_plain(value) for name, value in fields.items() if given(value) is not None}
    check_plain(plain_fields, "form")
    plain_fields = _of_both(plain_fields)
    try:
        plain = FilledIn.model_validate(plain_fields).plain()
    except ValidationError as error:
        raise SpecError(explain(error, "form", plain_fields, {}, whole=FilledIn)) from None
    folders = [str(folder) for folder in permissions.import_folders]
    named = {"study": "study", "pythonpath": folders} | _cluster(cluster, permissions)
    spec = StudySpec.from_plain(plain | named, "form")
    if spec.data is None or permissions.data_folder is None:
        return spec
    return spec.model_copy(update={"data": spec.data.beside(permissions.data_folder)})


def _of_both(fields: dict[str, Any]) -> dict[str, Any]:
    """What stands in the fold, and what stands outside of it: a fold that was opened holds all defaults.

    Raises:
        SpecError: both say something of one setting, and not the same.
    """
    found = {name: value for name, value in fields.items() if name != FOLD}
    for name, value in (fields.get(FOLD) or {}).items():
        usual = FilledIn.model_fields[name].default
        if found.get(name, usual) == usual:
            found[name] = value
        elif value not in (usual, found[name]):
            raise SpecError(
                f"form: {name} = {some([found[name]])} and {FOLD}.{name} = {some([value])} differ; give it once."
            )
    return found


def _storages() -> list[str]:
    """Databases for Optuna that whoever runs the worker allows."""
    listed = Permissions.of_environment().tracking
    return [url for url in listed if url.startswith(("sqlite", "postgresql", "mysql", "mariadb"))]


def _section(section: BaseModel | None, settings: type[BaseModel]) -> dict[str, Any]:
    return {} if section is None else read_texts(section.model_dump(mode="json", exclude_unset=True), settings)


def _as_plain(value: Any) -> Any:
    """Prefect hands in models for what it validated against the flow's signature."""
    if isinstance(value, Drawn):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [_as_plain(one) if isinstance(one, BaseModel) else one for one in value]
    return value


def _whole(name: str, field: str, value: float) -> int:
    if not value.is_integer():
        raise SpecError(f"form: space.{name}.{field} = {value} is no whole number; round it, or untick whole.")
    return int(value)


def read_scalar(text: str) -> Any:
    """As YAML reads it, so that a form and a study file mean the same; words and numbers only."""
    if len(text) > limits.TEXT:
        return text  # too long, and refused as such
    try:
        value, _ = read_yaml(text, depth=0)
    except yaml.YAMLError:
        return text
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text.strip()):
        return float(text)
    plain_words = isinstance(value, bool) and text.strip().lower() not in ("true", "false")  # yes, no, on, off
    return text if plain_words or not isinstance(value, bool | int | float | str | None) else value


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
