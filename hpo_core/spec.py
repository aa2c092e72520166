"""StudySpec: what a YAML file, Python, the command line and a UI form all fill in.

Unknown keys, wrong types and impossible ranges are refused here, once, with the place and the cure;
everything behind this module may trust what it gets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hpo_core.errors import SpecError
from hpo_core.rng import derive_seed
from hpo_core.space import FloatParameter, IntParameter, Parameter, SearchSpace
from hpo_core.trial import Outcome


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MetricSpec(_Part):
    name: str = Field(min_length=1, description="The metric the training function reports and the study optimizes.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (smaller is better)."""
        return 1.0 if self.mode == "min" else -1.0


_Resource = Annotated[int, Field(ge=1, le=2**53)]
_CONFIGS = "How many configurations the study tries in all; none: until a stop rule ends it."
_MAX = "Units (epochs, steps) of a full training, R in the paper."
_MIN = "Units of the shortest training, r; default: at most five rungs."
_ETA = "eta: one in eta goes on to the next rung."


def _check_range(min_resource: int | None, max_resource: int | None) -> None:
    if min_resource is not None and max_resource is not None and min_resource > max_resource:
        raise ValueError(
            f"min_resource = {min_resource} is larger than max_resource = {max_resource}; "
            "lower the one or raise the other"
        )


class AshaSearch(_Part):
    """Asynchronous successive halving (Li et al. 2020), promotion or stopping variant, one or more brackets.

    With only ``configs`` and ``max_resource`` given, the paper's production defaults apply (5.1): eta 4, at
    most five rungs, brackets 0, 1 and 2 as far as they hold two rungs. Once ``min_resource`` or
    ``reduction_factor`` is given, bracket 0 alone is the default.
    """

    method: Literal["asha"] = "asha"
    variant: Literal["promotion", "stopping"] = Field(
        default="promotion",
        description="promotion: trials pause at rungs and the best go on; stopping: each goes on at once or never.",
    )
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource | None = Field(default=None, description=_MAX + " None: no upper limit.")
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    brackets: list[Annotated[int, Field(ge=0, le=100)]] = Field(
        min_length=1,
        description="Early-stopping rates: bracket s starts at rung level s; 0 stops most aggressively. 'all' works.",
    )
    assignment: Literal["budget", "proportional", "loop"] = Field(
        default="budget",
        description="How new configurations go to brackets: equal resource for each; drawn in proportion to the base "
        "rungs of synchronous Hyperband; or looped through in blocks of these sizes.",
    )
    rung_system: Literal["per_bracket", "shared"] = Field(
        default="per_bracket",
        description="Whether brackets have rungs of their own or compete in one system.",
    )
    noise: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Standard deviation of the metric's noise: while new configurations are left, promote only what "
        "leads by more than sqrt(2) times it; auto: estimated from the learning curves.",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_brackets(cls, data: Any) -> Any:
        """``brackets`` absent or ``all``: resolved once, so that the journal says what was meant."""
        if not isinstance(data, dict) or data.get("brackets", "default") not in ("default", "all", None):
            return data
        from hpo_core.search.rungs import default_min_resource, rung_levels

        everything = data.get("brackets") == "all"
        smallest, top, eta = data.get("min_resource"), data.get("max_resource"), data.get("reduction_factor", 4)
        numbers = [v for v in (smallest, top, eta) if v is not None]
        if any(isinstance(v, bool) or not isinstance(v, int | float) or v < 1 for v in numbers) or eta < 1.1:
            return data | {"brackets": [0]}  # the fields themselves will be refused
        if top is None or (smallest is not None and smallest > top):
            if everything:
                raise ValueError("brackets = all needs max_resource, which limits their number; give it, or a list")
            return data | {"brackets": [0]}
        rungs = len(rung_levels(int(smallest or default_min_resource(int(top), eta)), int(top), eta))
        if everything:
            return data | {"brackets": list(range(rungs))}
        standard = smallest is None and "reduction_factor" not in data
        return data | {"brackets": list(range(max(1, min(3, rungs - 1)))) if standard else [0]}

    @model_validator(mode="after")
    def _check(self) -> AshaSearch:
        _check_range(self.min_resource, self.max_resource)
        if sorted(set(self.brackets)) != self.brackets:
            raise ValueError(f"brackets = {self.brackets} must ascend, each once")
        if self.max_resource is None:
            if len(self.brackets) > 1 and self.assignment != "proportional":
                raise ValueError(
                    f"assignment = {self.assignment} weighs brackets by their length, which has no end without "
                    "max_resource; give max_resource, or assignment: proportional"
                )
        else:
            rungs = len(self.levels())
            if self.brackets[-1] >= rungs:
                raise ValueError(
                    f"bracket {self.brackets[-1]} does not exist: there are {rungs} rungs, so brackets go from 0 to "
                    f"{rungs - 1}; drop it, or lower min_resource"
                )
        if self.noise is not None and self.variant == "stopping":
            raise ValueError("noise delays promotions, and the stopping variant has none; use variant: promotion")
        return self

    def levels(self) -> list[int]:
        """Rung levels of bracket 0; the first alone where there is no upper limit."""
        from hpo_core.search.rungs import default_min_resource, rung_levels

        if self.max_resource is None:
            return [self.min_resource or 1]
        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class ShaSearch(_Part):
    """Synchronous successive halving with barriers (Jamieson & Talwalkar 2016; ASHA Algorithm 1).

    While a bracket waits at a barrier, the next round begins on the free workers (Falkner et al. 2018).
    """

    method: Literal["sha"] = "sha"
    configs: int = Field(ge=1, description="Configurations of one bracket, n in the paper.")
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    early_stopping_rate: int = Field(default=0, ge=0, description="s: the base rung is r * eta**s.")
    rounds: int = Field(default=1, ge=1, le=100_000, description="How many brackets of that size.")

    @model_validator(mode="after")
    def _check(self) -> ShaSearch:
        _check_range(self.min_resource, self.max_resource)
        if self.early_stopping_rate >= len(self.levels()):
            raise ValueError(
                f"early_stopping_rate = {self.early_stopping_rate} leaves none of the {len(self.levels())} rungs; "
                "lower it"
            )
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.rungs import default_min_resource, rung_levels

        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class HyperbandSearch(_Part):
    """Synchronous Hyperband, all brackets (Li et al. 2018); the asynchronous one is asha with several brackets."""

    method: Literal["hyperband"] = "hyperband"
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource | None = Field(default=None, description=_MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=_ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How often the loop over all brackets runs.")

    @model_validator(mode="after")
    def _check(self) -> HyperbandSearch:
        _check_range(self.min_resource, self.max_resource)
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.rungs import default_min_resource, rung_levels

        smallest = self.min_resource or default_min_resource(self.max_resource, self.reduction_factor)
        return rung_levels(smallest, self.max_resource, self.reduction_factor)


class PashaSearch(_Part):
    """Progressive ASHA: the maximum resource grows only while rankings change (Bohdal et al., ICLR 2023)."""

    method: Literal["pasha"] = "pasha"
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource = Field(description=_MAX)
    min_resource: _Resource = Field(default=1, description="Units of the shortest training, r.")
    reduction_factor: float = Field(default=3, ge=1.1, le=1e6, description=_ETA)
    percentile: float = Field(
        default=90,
        ge=0,
        le=100,
        description="Of the distances between curves that cross twice; the tolerance of the soft ranking.",
    )

    @model_validator(mode="after")
    def _check(self) -> PashaSearch:
        _check_range(self.min_resource, self.max_resource)
        return self

    def levels(self) -> list[int]:
        from hpo_core.search.rungs import rung_levels

        return rung_levels(self.min_resource, self.max_resource, self.reduction_factor)


class PbtSearch(_Part):
    """Population based training: short sessions that go on from the fitter one's weights (Li et al. 2019)."""

    method: Literal["pbt"] = "pbt"
    population: int = Field(
        default=20, ge=2, le=100_000, description="Members; with fewer workers they are worked off oldest first."
    )
    generations: int = Field(default=30, ge=1, le=1_000_000, description="Rounds of training of each member.")
    steps_per_generation: _Resource = Field(default=1, description="Units of training of one session.")
    selection: Literal["tournament", "truncation"] = Field(
        default="tournament",
        description="tournament: the fitter of two is the parent; truncation: the worst go on from one of the best.",
    )
    opponents_from: int = Field(
        default=2, ge=1, description="Opponents come from so many generations up to the initiator's own."
    )
    truncation: float = Field(default=0.2, gt=0, le=0.5, description="Share of the worst that is replaced.")
    fitness: Literal["priority", "pareto"] = Field(
        default="priority", description="With several metrics: the first that differs decides, or dominance."
    )
    perturb: list[Annotated[float, Field(gt=0, lt=1e6)]] = Field(
        default=[0.8, 1.2], min_length=1, description="Factors of numbers; ordered choices move to a neighbour."
    )
    resample: float | None = Field(
        default=None, ge=0, le=1, description="Probability that a parameter is drawn anew; default 0, truncation 0.25."
    )
    bounds: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="Narrower ranges for changed numbers than the space has for drawn ones."
    )
    barrier: bool = Field(default=False, description="Whether a generation must end before the next one begins.")
    max_gap: int | None = Field(
        default=None, ge=1, description="So many generations a member may be ahead of the slowest running one."
    )
    stragglers: int | None = Field(
        default=None, ge=1, description="Running trials so many generations behind the newest are stopped."
    )
    keep_last: bool = Field(default=False, description="Keep the last checkpoint of every trial.")

    @property
    def max_resource(self) -> int:
        """Units behind a trial whose ancestors all went on."""
        return self.generations * self.steps_per_generation

    @property
    def resample_probability(self) -> float:
        if self.resample is None:
            return 0.25 if self.selection == "truncation" else 0.0
        return self.resample


class RandomSearch(_Part):
    """Every configuration is trained to ``max_resource`` at once."""

    method: Literal["random"] = "random"
    configs: int | None = Field(default=None, ge=1, description=_CONFIGS)
    max_resource: _Resource = Field(default=1, description=_MAX)


class GridSearch(_Part):
    """Every point of a grid, in a stated order, trained to ``max_resource``.

    The first parameter of the space varies slowest, the last one fastest; values ascend (choices in their
    order); a parameter with ``when`` takes part only where it is active. Parameters named in ``random`` are
    drawn anew for each point.
    """

    method: Literal["grid"] = "grid"
    max_resource: _Resource = Field(default=1, description=_MAX)
    configs: int | None = Field(default=None, ge=1, description="Only so many points of the grid (extend goes on).")
    points: dict[str, Annotated[int, Field(ge=1, le=1_000_000)] | list[Any]] = Field(
        default_factory=dict,
        description="Per parameter the number of points (evenly spaced, on a log scale where the parameter is) or "
        "their list; needed for continuous parameters.",
    )
    random: list[str] = Field(default_factory=list, description="Parameters drawn at random instead.")
    repeats: int = Field(default=1, ge=1, description="How often the whole grid is gone through.")
    order: Literal["product", "shuffled"] = Field(default="product", description="Shuffled: by the study's seed.")


class RecordedGrant(_Part):
    trial: int = Field(ge=0)
    bracket: int = 0
    rung: int = Field(ge=0)
    target: int = Field(ge=1)
    parent: int | None = Field(default=None, description="The trial it goes on from, where that is another one (PBT).")
    initiator: int | None = None
    opponent: int | None = None
    member: int | None = None


class RecordedSearch(_Part):
    """Trains again along the grants another study recorded (``hpo rerun``); decides nothing itself."""

    method: Literal["recorded"] = "recorded"
    source: str
    grants: list[RecordedGrant]
    params: list[dict[str, Any]] = Field(description="Parameters of the trials, by number.")
    numbers: list[int] = Field(
        default_factory=list, description="Their numbers in the source, whose training seeds they keep; default: equal."
    )
    keep_last: bool = Field(default=False, description="Keep the last checkpoint of every trial.")
    min_resource: int = 1
    max_resource: int = Field(ge=1)
    reduction_factor: float = 4


Search = Annotated[
    AshaSearch | ShaSearch | HyperbandSearch | PashaSearch | PbtSearch | RandomSearch | GridSearch | RecordedSearch,
    Field(discriminator="method"),
]


class SamplerSpec(BaseModel):
    """``name: random``, or any sampler of Optuna by its class name (``TPESampler``) with its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "random"

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self) -> SamplerSpec:
        if self.name == "random":
            if self.arguments:
                raise ValueError(f"sampler random takes no arguments, got {', '.join(self.arguments)}; drop them")
            return self
        from hpo_core.samplers.optuna import check_sampler

        check_sampler(self.name, self.arguments)
        return self


class LocalClusterSpec(_Part):
    """Dask workers on this machine, started for the study and ended with it."""

    kind: Literal["local"] = "local"
    workers: int = Field(default=2, ge=1, le=1024, description="Jobs at once; one process each.")


class AddressClusterSpec(_Part):
    """A Dask scheduler that runs already; every worker thread is one slot."""

    kind: Literal["address"] = "address"
    address: str = Field(description="For example tcp://127.0.0.1:8786")

    @field_validator("address")
    @classmethod
    def _check(cls, value: str) -> str:
        if "://" not in value:
            raise ValueError(f"address = {value!r} has no protocol; write tcp://HOST:PORT")
        return value


_WAIT = "Seconds to wait for the first worker: the queue decides when it comes."


class SlurmClusterSpec(_Part):
    """Slurm jobs, submitted for the study and ended with it (dask-jobqueue); each is one worker with one slot.

    The home folder and the Python environment must be on storage that all nodes see. A worker that ended, for
    its walltime too, is submitted anew.
    """

    kind: Literal["slurm"] = "slurm"
    workers: int = Field(default=2, ge=1, le=1024, description="Slurm jobs; each trains one thing at a time.")
    cores: int = Field(default=1, ge=1, description="CPUs of one Slurm job (--cpus-per-task).")
    memory: str = Field(default="4GB", pattern=r"^\d+(\.\d+)? ?[KMGT]i?B$", description="Memory of one, such as 16GB.")
    walltime: str = Field(
        default="01:00:00", pattern=r"^(\d+-)?\d+(:\d\d){0,2}$", description="How long one may run, as Slurm has it."
    )
    gpus: int = Field(default=0, ge=0, description="GPUs of one (--gres=gpu:N).")
    partition: str | None = None
    account: str | None = None
    interface: str | None = Field(default=None, description="Network interface between nodes, such as ib0.")
    directives: list[str] = Field(default_factory=list, description="Further #SBATCH lines, such as --qos=long.")
    prologue: list[str] = Field(default_factory=list, description="Shell lines before the worker starts.")
    wait: float = Field(default=3600.0, gt=0, description=_WAIT)


class KubernetesClusterSpec(_Part):
    """Pods of the Dask operator, made for the study and removed with it (dask-kubernetes); one slot each.

    The controller and the pods must see the home folder under the same path: ``volume_claim`` is mounted there.
    """

    kind: Literal["kubernetes"] = "kubernetes"
    workers: int = Field(default=2, ge=1, le=1024, description="Worker pods.")
    image: str = Field(min_length=1, description="Container image with this package and the objective's requirements.")
    namespace: str | None = Field(default=None, description="Default: the one of the current context.")
    cpu: str = Field(default="1", description="CPUs of one pod, as Kubernetes has them: 2, 500m.")
    memory: str = Field(default="4Gi", description="Memory of one pod.")
    gpus: int = Field(default=0, ge=0, description="GPUs of one worker pod (nvidia.com/gpu).")
    volume_claim: str | None = Field(default=None, description="PersistentVolumeClaim, ReadWriteMany.")
    mount_path: str | None = Field(default=None, pattern=r"^/", description="Where it is mounted in the pods.")
    idle_timeout: int = Field(
        default=3600, ge=0, description="Seconds without a task after which pods of a dead controller go; 0: never."
    )
    wait: float = Field(default=600.0, gt=0, description=_WAIT)

    @model_validator(mode="after")
    def _check(self) -> KubernetesClusterSpec:
        if (self.volume_claim is None) != (self.mount_path is None):
            raise ValueError("volume_claim and mount_path belong together; give both or none")
        return self


class LocalCudaClusterSpec(_Part):
    """One Dask worker for each NVIDIA GPU of this machine, which alone it sees, as device 0."""

    kind: Literal["local_cuda"] = "local_cuda"
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, min_length=1, description="Numbers of the GPUs to use; default: all that are visible."
    )


Cluster = Annotated[
    LocalClusterSpec | AddressClusterSpec | SlurmClusterSpec | KubernetesClusterSpec | LocalCudaClusterSpec,
    Field(discriminator="kind"),
]


class TrainingSpec(_Part):
    """Limits of one attempt, and how often a failed one is tried again."""

    timeout: float | None = Field(default=None, gt=0, description="Seconds one attempt may take in all.")
    stall_timeout: float | None = Field(
        default=3600.0,
        gt=0,
        description="Seconds without a finished step after which an attempt counts as hung.",
    )
    grace: float = Field(default=5.0, ge=0, description="Seconds between SIGTERM and SIGKILL.")
    retries: dict[Outcome, int] = Field(
        default_factory=dict,
        description="Further attempts at one target after each kind of failure; merged over the defaults.",
    )
    fail_fast: int | None = Field(
        default=5, ge=1, description="Halt when so many trials were abandoned before the first success."
    )

    def allowed(self, outcome: Outcome) -> int:
        """How many failures of this kind one target may have before the trial is abandoned."""
        return self.retries.get(outcome, DEFAULT_RETRIES.get(outcome, 0))


DEFAULT_RETRIES: dict[Outcome, int] = {
    Outcome.ERROR: 0,
    Outcome.CRASHED: 1,
    Outcome.OUT_OF_MEMORY: 1,
    Outcome.TIMEOUT: 0,
    Outcome.HUNG: 1,
    Outcome.CHECKPOINT_BAD: 10,
    Outcome.LOST: 10,  # then the study halts: it says nothing about the trial, but something is wrong
    Outcome.PREEMPTED: 1_000_000,
}


class StopSpec(_Part):
    """Rules that end a study before its search does; it can be resumed, which grants the same again."""

    total_resource: int | None = Field(
        default=None, ge=1, description="Units of training in all; grants end when used and running ones reach it."
    )
    seconds: float | None = Field(default=None, gt=0, description="Wall-clock seconds a controller drives the study.")
    target: float | None = Field(default=None, description="Value of the (first) metric that is good enough.")
    running: Literal["finish", "cancel"] = Field(
        default="finish",
        description="Whether running jobs finish or are cancelled (a resume trains them again); total_resource counts "
        "running ones as used, so they finish.",
    )


class CheckpointSpec(_Part):
    """Where the study's checkpoints lie, and their limits (``hpo_core/checkpoints.py`` says which go first)."""

    max_bytes: int | None = Field(default=None, ge=1, description="Bytes of all checkpoints together.")
    max_count: int | None = Field(
        default=None,
        ge=1,
        description="Number of all checkpoints together; 2 is the least that can work: the best and one being written.",
    )
    folder: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9+.-]*://[^@?#*\[\]]+$",
        description="URL for the files that fsspec knows, such as s3://bucket/hpo; each study makes a folder there, so "
        "one URL belongs to one journal. Default: below the study's folder.",
    )


class PastTrial(_Part):
    """What an earlier study found for one configuration, as the journal of the new study keeps it."""

    params: dict[str, Any]
    losses: dict[int, list[float]] = Field(description="By units of training; one loss per objective.")
    proposed: int | None = Field(default=None, description="The trial of the new study that tries it again.")


class WarmStartSpec(_Part):
    """Begin with what earlier studies found: their incumbents first, their results as decayed observations."""

    studies: list[str] = Field(min_length=1, description="Names of earlier studies of this journal, the newest first.")
    first: int = Field(default=3, ge=0, le=1000, description="So many of their best configurations are tried first.")
    decay: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Of their results a sampler is shown this share of the newest study's, its square of the next "
        "one's, and so on; 0: none.",
    )
    most: int = Field(default=300, ge=0, le=10_000, description="So many results at most are shown to a sampler.")
    proposals: list[dict[str, Any]] | None = Field(
        default=None, description="Filled in from the journal when the study is created: what is tried first."
    )
    past: list[PastTrial] = Field(default_factory=list, description="Filled in likewise: what a sampler is shown.")


class TrackingSpec(_Part):
    """Where MLflow is; the study never waits for it."""

    mlflow: str | None = Field(
        default=None,
        description="Tracking URI; default: MLFLOW_TRACKING_URI or SQLite in the home folder; 'off'.",
    )
    experiment: str = Field(default="hpo", min_length=1, description="MLflow experiment that holds the runs.")

    @model_validator(mode="after")
    def _check_secrets(self) -> TrackingSpec:
        """On the whole part, not the field: an error about a field repeats its value."""
        if self.mlflow is not None and "@" in self.mlflow.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "mlflow holds a user or a password, and journal, MLflow and Prefect keep what a study says; leave it "
                "out and set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return self


class PrefectSpec(_Part):
    grain: Literal["auto", "job", "rung"] = Field(
        default="auto",
        description="A Prefect task run per job, or one per rung; auto: per job up to about 300 expected jobs.",
    )


class StudySpec(_Part):
    """One hyperparameter search, fully described."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name; one journal per name.")
    objective: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Training function as package.module:function; None for studies driven by hand.",
    )
    style: Literal["handle", "optuna"] = Field(
        default="handle",
        description="What the function is: handle, train(trial) with trial.steps(); optuna, an Optuna objective as it "
        "is, whose suggestions must agree with the space. A promoted one is trained from its start again.",
    )
    metric: MetricSpec = Field(description="What is optimized; with several objectives, the first of ``metrics``.")
    metrics: list[MetricSpec] = Field(
        default_factory=list, description="Several objectives: promotion by non-dominated sorting."
    )
    space: dict[str, Parameter] = Field(min_length=1)
    search: Search
    sampler: SamplerSpec = SamplerSpec()
    seed: int = Field(default=0, ge=0, description="All draws and all training seeds follow from it.")
    cluster: Cluster = LocalClusterSpec()
    training: TrainingSpec = TrainingSpec()
    stop: StopSpec = StopSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    tracking: TrackingSpec = TrackingSpec()
    prefect: PrefectSpec = PrefectSpec()
    warm_start: WarmStartSpec | None = Field(default=None, description="Earlier studies to begin from.")
    pythonpath: list[str] = Field(
        default_factory=list, description="Folders the objective is imported from, relative to the YAML file."
    )

    @model_validator(mode="before")
    @classmethod
    def _first_metric(cls, data: Any) -> Any:
        """``metrics`` alone will do; ``metric`` is its first one."""
        if isinstance(data, dict) and "metric" not in data and isinstance(data.get("metrics"), list):
            return data | {"metric": data["metrics"][0]} if data["metrics"] else data
        return data

    @model_validator(mode="after")
    def _check_parts(self) -> StudySpec:
        SearchSpace(self.space)
        if self.metrics and self.metrics[0] != self.metric:
            raise ValueError(
                f"metric {self.metric.name!r} is not the first of metrics {self.metrics[0].name!r}; give one of the two"
            )
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"metrics = {names} names one metric twice; drop it")
        if len(names) > 1 and self.search.method == "pasha":
            raise ValueError("pasha ranks by one metric; use asha with several metrics, or give one metric")
        if len(names) > 1 and getattr(self.search, "noise", None) is not None:
            raise ValueError("search.noise is the noise of one metric, and there are several; drop it")
        if len(names) > 1 and self.sampler.name != "random":
            from hpo_core.samplers.optuna import check_objectives

            check_objectives(self.sampler.name, self.sampler.arguments, len(names))
        if self.search.method == "grid":
            from hpo_core.grid import Grid

            try:
                Grid(self)
            except SpecError as error:
                raise ValueError(str(error)) from None
        if self.style == "optuna" and self.search.method == "pbt":
            raise ValueError(
                "style optuna cannot go on from another trial's weights, which pbt does; use another method, or write "
                "the objective as train(trial) with trial.track() and trial.steps()"
            )
        if self.search.method == "pbt":
            self._check_bounds(self.search)
        if self.warm_start is not None and self.search.method in ("grid", "recorded"):
            raise ValueError(
                f"warm_start: search {self.search.method} says itself which configurations are tried; drop warm_start, "
                "or use another method"
            )
        endless = getattr(self.search, "configs", 1) is None and self.search.method != "grid"
        if endless and self.stop == StopSpec(running=self.stop.running):
            raise ValueError(
                f"search {self.search.method} without configs has no end; give configs, or a stop rule "
                "(stop: total_resource, seconds or target)"
            )
        return self

    def _check_bounds(self, search: PbtSearch) -> None:
        for name, (low, high) in search.bounds.items():
            parameter = self.space.get(name)
            if not isinstance(parameter, FloatParameter | IntParameter):
                kind = "no parameter of the space" if parameter is None else f"a {parameter.type} parameter"
                raise ValueError(f"search.bounds.{name}: {name!r} is {kind}; bounds are for float and int parameters")
            if not parameter.low <= low <= high <= parameter.high:
                raise ValueError(
                    f"search.bounds.{name} = [{low}, {high}] must ascend and lie within the parameter's range "
                    f"[{parameter.low}, {parameter.high}]; narrow the one or widen the other"
                )

    @property
    def objectives(self) -> tuple[MetricSpec, ...]:
        """All metrics that are optimized, the first one first."""
        return tuple(self.metrics) or (self.metric,)

    @property
    def checkpoint_base(self) -> str:
        """Folder of the checkpoints, relative to the study's, or a URL."""
        place = self.checkpoints.folder
        return "checkpoints" if place is None else f"{place.rstrip('/')}/{self.study}"

    def training_seed(self, trial: int) -> int:
        """Seed of a trial's training, the same for each of its attempts, and for a rerun of it."""
        numbers = self.search.numbers if self.search.method == "recorded" else []
        return derive_seed(self.seed, "training", numbers[trial] if numbers else trial)

    def search_space(self) -> SearchSpace:
        return SearchSpace(self.space)

    def plain(self) -> dict[str, Any]:
        """As plain data, the form the journal keeps; :meth:`from_plain` is the inverse."""
        return self.model_dump(mode="json", exclude_defaults=False)

    @classmethod
    def from_plain(cls, data: Any, where: str = "study", lines: dict[tuple[Any, ...], int] | None = None) -> StudySpec:
        """Validate plain data.

        Raises:
            SpecError: one line for each thing that is wrong: place, value, rule, cure.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(_explain(error, where, data, lines or {})) from None


def load_spec(path: str | Path, changes: Sequence[str] = ()) -> StudySpec:
    """Read a study file. Relative paths in it are relative to the file.

    Args:
        changes: made before anything is validated, as if the file said so (:mod:`hpo_core.spec_changes`).

    Raises:
        SpecError: the file is absent, no YAML, or describes no valid study.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        lines = _lines(yaml.compose(text, Loader=_Loader))
        data = yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file. Give the path of a study's YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error}). Check the path and its permissions.") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: is no YAML ({error}). Mend the place it names.") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: holds {type(data).__name__} where a mapping with the key 'study' belongs.")
    where = str(path)
    if changes:
        from hpo_core.spec_changes import changed

        data, lines, where = changed(data, changes), {}, f"{path} with {', '.join(changes)}"
    spec = StudySpec.from_plain(data, where, lines)
    folder = path.resolve().parent
    if spec.tracking.mlflow and spec.tracking.mlflow.startswith("sqlite:///"):
        database = folder / Path(spec.tracking.mlflow.removeprefix("sqlite:///")).expanduser()
        tracking = spec.tracking.model_copy(update={"mlflow": f"sqlite:///{database}"})
        spec = spec.model_copy(update={"tracking": tracking})
    searched = [str((folder / Path(entry).expanduser()).resolve()) for entry in spec.pythonpath] or [
        str(folder),
        str(Path.cwd()),
    ]
    return spec.model_copy(update={"pythonpath": searched})


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``1e-4`` is a number (YAML 1.1 wants ``1.0e-4``) and yes, no, on, off are words."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


def _lines(node: yaml.Node | None, at: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Line number (from 1) of every key in a YAML document."""
    found: dict[tuple[Any, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value)
            if place in found:
                raise yaml.YAMLError(
                    f"line {key.start_mark.line + 1}: the key {key.value!r} stands twice; line {found[place]} has it"
                )
            found[place] = key.start_mark.line + 1
            found.update(_lines(value, place))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            found[(*at, i)] = value.start_mark.line + 1
            found.update(_lines(value, (*at, i)))
    return found


_TAGS = {
    "asha", "sha", "hyperband", "pasha", "pbt", "grid", "random", "recorded",
    "local", "address", "slurm", "kubernetes", "local_cuda", "float", "int", "categorical", "ordinal",
}  # fmt: skip


def _explain(error: ValidationError, where: str, data: Any, lines: dict[tuple[Any, ...], int]) -> str:
    found = []
    for item in error.errors(include_url=False):
        place = _without_tags(item["loc"], data)
        line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
        name = ".".join(str(part) for part in place) or "the study"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key" + _suggest(str(place[-1]), item["loc"])
        elif item["type"] == "missing":
            message = "is required and absent; add it"
        elif item["type"] == "union_tag_not_found":
            context = item.get("ctx", {})
            message = f"{context.get('discriminator', 'its kind')} is required and absent; add it to this mapping"
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"a mapping belongs here, such as {{name: ...}} (got {item['input']!r})"
        elif not isinstance(item["input"], dict | list):
            message += f" (got {item['input']!r})"
        found.append(f"{where}{f':{line}' if line else ''}: {name}: {message}")
    return "\n".join(found)


def _without_tags(loc: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    """Pydantic puts the tag of a discriminated union into the place; a user never wrote it."""
    place: list[Any] = []
    for part in loc:
        if part in _TAGS and isinstance(data, dict) and part not in data:
            continue
        place.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
    return tuple(place)


def _suggest(key: str, loc: tuple[Any, ...]) -> str:
    known: set[str] = set()
    for model in _Part.__subclasses__():
        known.update(model.model_fields)
    if len(loc) > 1 and loc[0] == "space":
        known = {"type", "low", "high", "log", "step", "choices", "when", "static"}
    if key in known:
        return " here, though other parts or methods take it; remove it"
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; remove it"
