"""StudySpec: the whole description of a study, its parts checked against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from hpo_core.model.errors import SpecError
from hpo_core.model.partition_file import PartitionFile
from hpo_core.model.rng import derive_seed
from hpo_core.model.settings import RECORDED, MetricSpec, Part, is_recorded
from hpo_core.model.space import Parameter, SearchSpace
from hpo_core.model.space.parameter import flat_space, flattened
from hpo_core.model.space.value_tests import Condition
from hpo_core.samplers.registry import EXHAUSTIVE, check_objectives, check_population, listed
from hpo_core.samplers.registry import check_space as check_sampled_space
from hpo_core.search.registry import Search
from hpo_core.spec.data import DataSpec
from hpo_core.spec.gone_settings import OTHER_VERSION, without_gone
from hpo_core.spec.packing import PackingSpec, check_deciding, deciding_parameters, read_packing
from hpo_core.spec.refusals import check_combinations, check_given
from hpo_core.spec.sections import (
    CheckpointSpec,
    Cluster,
    LocalClusterSpec,
    PrefectSpec,
    SamplerSpec,
    ScalingSpec,
    ShareSpec,
    StopSpec,
    TrackingSpec,
    TrainingSpec,
    WarmStartSpec,
)
from hpo_core.spec.sent_functions import FUNCTION, FunctionName
from hpo_core.spec.study_yaml import as_yaml
from hpo_core.spec.validation_errors import check_constraints, check_plain, check_sizes, explain


class StudySpec(Part):
    """One hyperparameter search, fully described."""

    public_name: ClassVar[str] = "StudySpec"

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name; one journal per name.")
    objective: FunctionName | None = Field(
        default=None,
        pattern=FUNCTION,
        description="Training function as package.module:function; None for studies driven by hand.",
    )
    build: FunctionName | None = Field(
        default=None,
        pattern=FUNCTION,
        description="Function as package.module:function that makes the untrained torch module from the parameters; "
        "with it, MLflow's own functions load the best model. Whoever loads it runs that code.",
    )
    style: Literal["handle", "optuna"] = Field(
        default="handle",
        description="Kind of function. handle: train(trial), which loops over trial.steps(). optuna: an unchanged "
        "Optuna objective; its suggestions must agree with the space, and a promoted trial begins at its start again.",
    )
    metric: MetricSpec = Field(description="The metric to optimize; of several, the first of ``metrics``.")
    metrics: list[MetricSpec] = Field(
        default_factory=list, description="Several metrics to optimize: rungs promote their Pareto fronts."
    )
    constraints: list[str] = Field(
        default_factory=list,
        description="Names of values reported beside the metric. A result is feasible where each of them is at most 0; "
        "infeasible ones rank behind all feasible ones, by their total violation, and are never the best.",
    )
    space: dict[str, Parameter] = Field(min_length=1, description="The parameters, by name.")
    forbidden: list[Condition] = Field(
        default_factory=list,
        description="Combinations that are never tried, in the form of ``when``: ``{optimizer: sgd, lr: {low: 0.1}}``.",
    )
    start_with: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Configurations that are tried first, whole or in part; the sampler adds what they leave out.",
    )
    constants: dict[str, Any] = Field(
        default_factory=dict,
        description="Fixed arguments (JSON) that every trial gets beside its parameters: ``{data: train.npz}``.",
    )
    search: Search = Field(description="The search method and its settings.")
    sampler: SamplerSpec = SamplerSpec()
    seed: int = Field(default=0, ge=0, description="All draws and all training seeds follow from it.")
    best_of: Literal["all_rungs", "highest_rung"] = Field(
        default="all_rungs",
        description="Results that the best one is chosen from. all_rungs: all of them, as in the paper on ASHA. "
        "highest_rung: only those with the most training; choose it if you train the winner further. Report, MLflow, "
        "kept checkpoints, stop.target and retraining follow it.",
    )
    cluster: Cluster = Field(default=LocalClusterSpec(), description="Where jobs train.")
    packing: Annotated[PackingSpec | None, BeforeValidator(read_packing)] = Field(
        default=None,
        description="Several jobs at once on one device, by what they were measured to need; true: with all defaults. "
        "null: one job on each slot of the cluster.",
    )
    data: DataSpec | None = Field(
        default=None,
        description="Partitions that lie on the workers: each configuration's model visits all of them once an epoch. "
        "null: the training function reads its data itself.",
    )
    share: Annotated[ShareSpec | None, BeforeValidator(read_packing)] = Field(
        default=None,
        description="Slots that are shared with other studies, by weight and priority; true: with all defaults. null: "
        "the study takes every slot of its cluster.",
    )
    training: TrainingSpec = TrainingSpec()
    scaling: ScalingSpec = ScalingSpec()
    stop: StopSpec = StopSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    tracking: TrackingSpec = TrackingSpec()
    prefect: PrefectSpec = Field(
        default=PrefectSpec(), description="How Prefect runs the study; one word alone: off, auto, jobs or rungs."
    )
    warm_start: WarmStartSpec | None = Field(default=None, description="Earlier studies to begin from.")
    pythonpath: list[str] = Field(
        default_factory=list, description="Folders the objective is imported from, relative to the YAML file."
    )

    @field_validator("prefect", mode="before")
    @classmethod
    def _prefect_word(cls, given: Any) -> Any:
        word = {False: "off", True: "auto"}[given] if isinstance(given, bool) else given
        return {"tasks": word} if isinstance(word, str) else word

    @model_validator(mode="before")
    @classmethod
    def _first_metric(cls, data: Any) -> Any:
        if isinstance(data, dict) and "metric" not in data and isinstance(data.get("metrics"), list):
            return data | {"metric": data["metrics"][0]} if data["metrics"] else data
        return data

    @field_validator("start_with", mode="before")
    @classmethod
    def _flat_names(cls, given: Any) -> Any:
        if isinstance(given, list) and "default" in given:
            raise ValueError("holds default, and parameters have no defaults any more; write the configuration")
        return [flattened(one) if isinstance(one, dict) else one for one in given] if isinstance(given, list) else given

    @field_validator("space", mode="before")
    @classmethod
    def _flat_space(cls, given: Any) -> Any:
        # Groups may be written as mappings: `{optimizer: {lr: {type: float, ...}}}`.
        return flat_space(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check_parts(self, info: ValidationInfo) -> StudySpec:
        new = not is_recorded(info)
        if new:
            check_sizes(self)
            self.search.check_reach()
            check_combinations(self)
            check_deciding(self)
        space = self.search_space()
        if self.metrics and self.metrics[0] != self.metric:
            raise ValueError(
                f"metric {self.metric.name!r} is not the first of metrics {self.metrics[0].name!r}; give one of the two"
            )
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"metrics = {names} names one metric twice; drop it")
        check_constraints(self.constraints, {self.metric.name, *names})
        self.search.check_objectives(len(self.objectives))
        check_objectives(self.sampler.name, self.sampler.arguments, len(self.objectives))
        self.search.check_space(space, self.seed)
        outline = self.search.outline()
        if new and outline.population is not None:
            check_population(self.sampler.name)
        if new and not outline.own_configurations:
            check_sampled_space(self.sampler.name, space)
            if self.sampler.name in EXHAUSTIVE:
                listed(self.sampler.name, self.sampler.arguments, space)
        if new:
            check_given(self, space)
        return self

    @property
    def hops(self) -> bool:
        return self.data is not None

    @property
    def partitioned(self) -> DataSpec:
        assert self.data is not None
        return self.data

    def beside(self, folder: Path) -> StudySpec:
        """With the folder of the partitions made absolute; unchanged where models do not hop.

        Args:
            folder: of the study file.

        Raises:
            SpecError: the folder of the partitions names a user that is not there.
        """
        return self if self.data is None else self.model_copy(update={"data": self.data.beside(folder)})

    @property
    def partition_folder(self) -> str:
        return self.data.folder or "" if self.data is not None else ""

    @property
    def packs(self) -> bool:
        return self.packing is not None

    @property
    def jobs_on_device(self) -> int:
        return 1 if self.packing is None else self.packing.most

    @property
    def uses_mps(self) -> bool:
        return self.packing is not None and self.packing.mps == "auto"

    @property
    def share_words(self) -> str:
        """The settings of ``share`` in words; empty without them."""
        return "" if self.share is None else self.share.words

    @property
    def shares(self) -> bool:
        return self.share is not None

    @property
    def sharing(self) -> ShareSpec:
        """The study's part in the pool of slots.

        Raises:
            SpecError: it is in none.
        """
        if self.share is None:
            raise SpecError(
                f"Study {self.study!r} shares its slots with nobody (no share in its settings), so it has no weight or "
                "priority. A new study has one with --set share.pool=NAME."
            )
        return self.share

    @property
    def pool_name(self) -> str:
        return "" if self.share is None else self.share.pool or self.cluster.place

    @property
    def job_slots(self) -> int | None:
        return None if self.training.gang == "auto" else self.training.gang

    @property
    def least_ranks(self) -> int:
        return 1 if self.training.gang == "auto" else self.training.gang

    @property
    def measures_speedups(self) -> bool:
        return self.job_slots is None and not self.scaling.speedups

    @property
    def gangs(self) -> bool:
        return self.training.gang != 1

    @property
    def asks_at_rungs(self) -> bool:
        """True if the process of a trial waits at each rung for the decision, and goes on: the stopping variant."""
        return self.search.outline().stopping and not (self.hops or self.gangs)

    @property
    def room_word(self) -> str:
        return "worker" if self.hops else "device" if self.packs else "slot"

    @property
    def unit_word(self) -> str:
        return "epoch" if self.hops else "unit"

    @property
    def functions(self) -> dict[str, str]:
        named = {
            "objective": self.objective,
            "build": self.build,
            "data.load": self.data.load if self.data else None,
            "packing.demand.function": self.packing.demand.function if self.packing else None,
        }
        return {setting: function for setting, function in named.items() if function}

    @property
    def objectives(self) -> tuple[MetricSpec, ...]:
        return tuple(self.metrics) or (self.metric,)

    @property
    def any_metric(self) -> bool:
        return self.search.accepts_any_metric()

    @property
    def partitions(self) -> tuple[PartitionFile, ...]:
        return () if self.data is None else self.data.all_files

    @property
    def trained_partitions(self) -> int:
        return 0 if self.data is None else len(self.data.files)

    @property
    def checkpoint_base(self) -> str:
        place = self.checkpoints.folder
        return "checkpoints" if place is None else f"{place.rstrip('/')}/{self.study}"

    def training_seed(self, trial: int) -> int:
        return derive_seed(self.seed, "training", self.search.number_of_seed(trial))

    def search_space(self) -> SearchSpace:
        return SearchSpace(self.space, self.forbidden)

    @property
    def packing_settings(self) -> PackingSpec:
        return self.packing or PackingSpec()

    @property
    def deciding(self) -> tuple[str, ...]:
        return deciding_parameters(self.search_space(), self.constants, self.packing_settings.by)

    def plain(self) -> dict[str, Any]:
        """As plain data, the form the journal keeps; :meth:`from_plain` is the inverse."""
        return self.model_dump(mode="json", exclude_defaults=False)

    def to_yaml(self) -> str:
        """The study file: what differs from the defaults; :func:`hpo_core.load_spec` reads the same spec from it."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        data["search"] = {"method": self.search.method, **data.get("search", {})}
        if "cluster" in data:
            data["cluster"] = {"kind": self.cluster.kind, **data["cluster"]}
        for switch in ("packing", "share"):  # which all defaults turn on
            if switch in data:
                data[switch] = data[switch] or True
        if self.metrics:
            data.pop("metric", None)
        return as_yaml(data)

    @classmethod
    def from_plain(cls, data: Any, where: str = "study", lines: dict[tuple[Any, ...], int] | None = None) -> StudySpec:
        """Validate plain data.

        Raises:
            SpecError: one line for each thing that is wrong: place, value, rule, cure.
        """
        check_plain(data, where, lines)
        return cls._validated(data, where, lines or {}, {})

    @classmethod
    def from_journal(cls, data: Any, where: str = "journal") -> StudySpec:
        """Validate what a journal holds, or what was made from it.

        The limits of size and the refusals of new studies do not apply.

        Raises:
            SpecError: see :meth:`from_plain`.
        """
        return cls._validated(_as_today(data), where, {}, RECORDED)

    @classmethod
    def _validated(
        cls, data: Any, where: str, lines: dict[tuple[Any, ...], int], context: dict[str, bool]
    ) -> StudySpec:
        try:
            return cls.model_validate(data, context=context)
        except ValidationError as error:
            raise SpecError(explain(error, where, data, lines, whole=cls)) from None


def _as_today(data: Any) -> Any:
    # A recorded study in today's settings: ``process: auto`` had the bits of fresh processes, kept ones shared devices.
    if not isinstance(data, dict):
        return data
    found = without_gone(data)
    training, search = found.get("training"), found.get("search")
    if "lost" in data.get("training", {}).get("retries", ()) and data["training"].get("max_lost") is not None:
        raise SpecError(
            f"journal: training.max_lost and training.retries.lost: this version has one of them; {OTHER_VERSION}."
        )
    packs = found.get("packing") is not None
    if isinstance(training, dict) and (
        training.get("process") == "auto" or (packs and training.get("process") == "kept")
    ):
        found["training"] = training | {"process": "fresh"}
    static = [name for name, parameter in data["space"].items() if parameter.get("static")]
    if isinstance(search, dict) and search.get("method") == "pbt" and static:
        found["search"] = search | {"static": static}
    if isinstance(search, dict) and "source" in (recorded := data["search"]):
        found["search"] = search | {"study_record": {"source": recorded["source"], **search.get("study_record", {})}}
    warm = data.get("warm_start")
    if isinstance(warm, dict) and warm.get("proposals") is not None:
        past = warm.get("past", [])
        told = {one.get("proposed") for one in past}
        untold = [
            {"params": params, "losses": {}, "proposed": number}
            for number, params in enumerate(warm["proposals"])
            if number not in told
        ]
        found["warm_start"] = found["warm_start"] | {"past": [*past, *untold]}
    return found
