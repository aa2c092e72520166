"""The settings beside the search: sampler, training, stop rules, checkpoints, cluster, tracking and others.

How a kind of cluster is started is in ``hpo_flows/dask/clusters``; the core never imports Dask.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hpo_core.model import limits
from hpo_core.model.settings import Part, is_recorded
from hpo_core.model.short_text import at_most, shown
from hpo_core.model.trial import Outcome
from hpo_core.samplers.registry import RANKED_GP, check
from hpo_core.samplers.sampler import EarlierResult


class SamplerSpec(Part):
    """``name: random``, ``ranked_gp``, or any sampler of Optuna by its class name (``TPESampler``), with arguments."""

    model_config = ConfigDict(extra="allow")

    if TYPE_CHECKING:

        def __init__(self, name: str = "random", **arguments: Any) -> None: ...

    name: str = Field(
        default="random",
        kw_only=False,
        description="``random``, ``ranked_gp``, or the class name of one of Optuna's samplers.",
    )

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> SamplerSpec:
        if not is_recorded(info):
            _check_arguments(self.name, self.arguments)
        check(self.name, self.arguments)
        return self


def _check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    # Refuse arguments of an Optuna sampler that would fill the memory.
    for argument, most in limits.SAMPLER_ARGUMENTS.items():
        value = arguments.get(argument)
        if isinstance(value, int | float):
            at_most(f"sampler.{argument}", value, most, "; lower it")
    if name == RANKED_GP and importlib.util.find_spec("scipy") is None:
        raise ValueError("sampler ranked_gp needs SciPy, which is not installed: pip install 'hpo-core[samplers]'")
    if name == "GridSampler" and (grid := arguments.get("search_space")) is not None:
        if not isinstance(grid, Mapping):
            raise ValueError(f"search_space is {shown(grid)}; write a list of values for each parameter")
        points = math.prod(len(values) for values in grid.values() if isinstance(values, list | tuple))
        at_most("sampler.search_space", points, limits.GRID_VALUES, "points; use search: {method: grid} with fewer")


class TrainingSpec(Part):
    """Limits of one attempt, and how often a failed one is tried again."""

    timeout: float | None = Field(default=None, gt=0, description="Seconds one attempt may take in all.")
    stall_timeout: float | None = Field(
        default=3600.0,
        gt=0,
        description="Seconds without a finished step after which an attempt counts as hung. Writing or reading a "
        "checkpoint does not count; it may take an hour.",
    )
    worker_timeout: float = Field(
        default=60.0,
        ge=5,
        description="Seconds without a heartbeat after which a Dask worker counts as gone: its jobs are lost and "
        "granted again. The scheduler, and the process of a worker that starts trainings, may be silent as long.",
    )
    retries: dict[Outcome, int] = Field(
        default_factory=dict,
        description="Further attempts at one target after each kind of failure; merged over the defaults. A trial that "
        "lost its worker three times, while others did not, is abandoned; with a number for lost the study halts after "
        "so many instead.",
    )
    fail_fast: int | None = Field(
        default=5,
        ge=1,
        description="Halt when this many trials were abandoned before the first success, counted anew after a resume, "
        "or when the first 4 times as many trials (after a resume: the next ones) all diverged (NaN, infinite) or were "
        "abandoned. null: never.",
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        default=None,
        description="Threads that one attempt computes with (OpenMP, MKL, OpenBLAS, NumExpr, torch); auto: the cores "
        "of a machine divided by its workers; null: 1, or what the worker's environment says (OMP_NUM_THREADS). Sums "
        "may differ in their last bits between numbers of threads.",
    )
    process: Literal["fresh", "kept"] = Field(
        default="fresh",
        description="Process of an attempt. fresh: a new one for each, exact. kept: one that ended an attempt well "
        "serves the next one on its slot or device, with what libraries set up there (a CUDA context, compiled "
        "kernels) and with the globals of modules as the function left them; hpo check --process kept compares both.",
    )
    gang: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        default=1,
        description="Ranks (processes) that train one trial together, each on a slot of its own, by torch.distributed; "
        "1: one process. All start at once or none, and end as one attempt. auto: one while many trials wait, more "
        "where few are left, see scaling.",
    )

    def allowed(self, outcome: Outcome) -> int:
        return self.retries.get(outcome, DEFAULT_RETRIES.get(outcome, 0))

    @property
    def most_losses(self) -> int | None:
        """Losses after which a trial is abandoned where others lose no worker; None: it never is for them."""
        return None if Outcome.LOST in self.retries else MOST_LOSSES


MOST_LOSSES = 3

DEFAULT_RETRIES: dict[Outcome, int] = {
    Outcome.ERROR: 0,
    Outcome.CRASHED: 1,
    Outcome.OUT_OF_MEMORY: 1,
    Outcome.TIMEOUT: 0,
    Outcome.HUNG: 1,
    Outcome.CHECKPOINT_BAD: 10,
    Outcome.LOST: 10,  # see hpo_core/state/worker_losses.py
    Outcome.PREEMPTED: 1_000_000,
}


class StopSpec(Part):
    """Rules that end a study before its search does; running jobs finish. A resume allows as much again."""

    total_resource: int | None = Field(
        default=None, ge=1, description="Steps of training of all trials together; then no further job begins."
    )
    seconds: float | None = Field(
        default=None, gt=0, description="Seconds that the study may run; time without a controller is free."
    )
    target: float | None = Field(default=None, description="Value of the (first) metric that is good enough.")


class CheckpointSpec(Part):
    """Folder of the study's checkpoints, and limits on them. Those least likely to be promoted go first."""

    public_name: ClassVar[str] = "Checkpoints"

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

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str | None) -> str | None:
        if folder is not None and {".", ".."} & set(unquote(folder).split("/")):
            raise ValueError("folder holds . or .. as a part; write the URL that it comes to")
        return folder


class PrefectSpec(Part):
    """``prefect``: how Prefect runs the study; a word alone is ``tasks``."""

    tasks: Literal["auto", "jobs", "rungs", "off"] = Field(
        default="auto",
        description="Task runs: one for each rung or generation and in it one for each job (jobs), or for rungs alone "
        "(rungs); auto: jobs up to about 300 expected ones. off: a command or a call from Python runs the study "
        "without Prefect.",
    )
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list,
        description="Tags of the task runs of jobs. A job waits for a slot of each concurrency limit that Prefect has "
        "on them, before it goes to the cluster: so a team limits its GPUs across studies and flows. Tags need a task "
        "run for each job.",
    )

    @model_validator(mode="after")
    def _tags_need_jobs(self) -> Self:
        if self.tags and self.tasks in ("rungs", "off"):
            raise ValueError(
                f"tags = {self.tags} are of the task runs of jobs, which tasks = {self.tasks!r} does not have; leave "
                "tags out, or write tasks: jobs"
            )
        return self


LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
LEAST_PRIORITY, MOST_PRIORITY = -100, 100


class ShareSpec(Part):
    """``share``: slots that are shared with other studies; ``true`` stands for all defaults.

    What each gets is stated in :mod:`hpo_core.pool.division`.
    """

    pool: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the pool. Without one, studies at the same cluster.address share its slots. Workers that "
        "are started for the study need a name: studies of one machine that give the same one share as "
        "many slots as the largest of their clusters has.",
    )
    weight: float = Field(
        default=1.0,
        ge=LEAST_WEIGHT,
        le=MOST_WEIGHT,
        description="Slots compared with those of a study of weight 1. `hpo share` changes it while the study runs.",
    )
    priority: int = Field(
        default=0,
        ge=LEAST_PRIORITY,
        le=MOST_PRIORITY,
        description="Studies of a higher priority get all slots that they can use first. `hpo share` changes it.",
    )

    @property
    def words(self) -> str:
        pool = "the slots of its cluster" if self.pool is None else f"pool {self.pool}"
        return f"{pool}, weight {self.weight:g}, priority {self.priority}"


class WarmStartSpec(Part):
    """Begin with what earlier studies found: their three best configurations first, then their results for a sampler.

    It is shown half of the newest study's, a quarter of the one before, and so on.
    """

    studies: list[str] = Field(min_length=1, description="Names of earlier studies of this journal, the newest first.")
    past: list[EarlierResult] | None = Field(
        default=None, description="Filled in from the journal when the study is created: what they found."
    )

    @property
    def proposals(self) -> list[dict[str, Any]]:
        tried = {one.proposed: one.params for one in self.past or () if one.proposed is not None}
        return [tried[number] for number in sorted(tried)]


class TrackingSpec(Part):
    """The study's copy in MLflow. No trial waits for it."""

    mlflow: Literal["off"] | None = Field(
        default=None,
        description="'off': no copy. Default, or 'on': to the MLflow of MLFLOW_TRACKING_URI, else SQLite in the home.",
    )
    experiment: str = Field(
        default="hpo", pattern=r"^[^\x00-\x1f\x7f]+$", description="MLflow experiment that holds the runs."
    )
    parent_run: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="ID of the MLflow run that the study's run is a child of; hpo.tune writes the active run here.",
    )

    @field_validator("mlflow", mode="before")
    @classmethod
    def _default(cls, mlflow: object) -> object:
        if mlflow not in (None, "on", "off"):
            raise ValueError("is 'on' or 'off'; name the server in MLFLOW_TRACKING_URI: a study keeps no address")
        return None if mlflow == "on" else mlflow


MOST_RANKS = 1024


class ScalingSpec(Part):
    """Number of slots that a trial may grow to.

    Without ``speedups`` they follow from times that the study itself measures.
    """

    efficiency: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="A gang of g ranks trains at least efficiency * g times as fast as one; larger ones are not used.",
    )
    speedups: dict[int, float] = Field(
        default_factory=dict,
        description="How many times as fast as one rank, by ranks: {2: 1.9, 4: 3.4}. Other sizes are not used, "
        "so the largest is the most that a trial gets.",
    )

    @model_validator(mode="after")
    def _check_speedups(self) -> ScalingSpec:
        for ranks, speedup in sorted(self.speedups.items()):
            if not 2 <= ranks <= MOST_RANKS:
                raise ValueError(f"speedups names {ranks} ranks; sizes must be from 2 to {MOST_RANKS}; drop it")
            if not 0 < speedup <= ranks:
                raise ValueError(
                    f"speedups[{ranks}] = {speedup} must be above 0 and at most {ranks}: so many times as fast as one "
                    "rank"
                )
        if self.speedups and all(gain < self.efficiency * ranks for ranks, gain in self.speedups.items()):
            raise ValueError(
                f"speedups: no size reaches efficiency = {self.efficiency}, so no trial could ever grow; lower "
                "efficiency, or set training.gang to 1"
            )
        return self


class WorkerRange(Part):
    """The fewest and the most workers of a cluster; between them there are as many as the study can use."""

    min: int = Field(ge=0, le=1024, kw_only=False, description="Workers that stay, whatever there is to do.")
    max: int = Field(ge=1, le=1024, kw_only=False, description="Workers at most.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min} is larger than max = {self.max}; swap them")
        return self

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


RANGE = "range"
"""Tag of :class:`WorkerRange`, for messages to leave out."""


def _one_number(workers: int | WorkerRange) -> int | WorkerRange:
    return workers.max if isinstance(workers, WorkerRange) and workers.min == workers.max else workers


WorkerCount = Annotated[
    Annotated[int, Field(ge=1, le=1024), Tag("number")] | Annotated[WorkerRange, Tag(RANGE)],
    Discriminator(lambda workers: RANGE if isinstance(workers, Mapping | WorkerRange) else "number"),
    AfterValidator(_one_number),
]
"""Workers of a cluster: a number, or ``{min, max}`` between which it follows what the study can use."""


class ClusterSettings(Part):
    """Base of all kinds of clusters, and what others ask of a kind."""

    kind: str

    @property
    def size(self) -> int | None:
        workers = getattr(self, "workers", None)
        return workers.max if isinstance(workers, WorkerRange) else workers

    @property
    def scales(self) -> WorkerRange | None:
        workers = getattr(self, "workers", None)
        return workers if isinstance(workers, WorkerRange) else None

    def cores_each(self, machine: int) -> int | None:
        """CPU cores of one worker; None: nobody knows.

        Args:
            machine: cores of the machine of the study.
        """
        return None

    @property
    def place(self) -> str:
        return f"a cluster of kind {self.kind}"

    @property
    def title(self) -> str:
        return f"Dask workers ({self.kind})"

    @property
    def permission(self) -> str | None:
        """The word that ``HPO_ALLOWED_CLUSTERS`` must hold for a deployment to use it; None: it needs none.

        By default the kind: settings may hold shell lines, container images and other people's machines.
        """
        return self.kind

    @property
    def named(self) -> str:
        return f"cluster.kind = {self.kind!r}"


class LocalClusterSpec(ClusterSettings):
    """Dask workers on this machine, started for the study and ended with it."""

    kind: Literal["local"] = "local"
    workers: WorkerCount = Field(
        default=2,
        description="Jobs at once; one process each. ``{min: 0, max: 8}``: as many as the study can use now.",
    )

    def cores_each(self, machine: int) -> int:
        return max(1, machine // (self.size or 1))

    @property
    def title(self) -> str:
        return f"{self.workers} local Dask worker{'' if self.workers == 1 else 's'}"

    @property
    def permission(self) -> None:
        return None


class AddressClusterSpec(ClusterSettings):
    """A Dask scheduler that runs already; every worker thread is one slot.

    Behind ``tls://`` the certificates come from Dask's own configuration (``distributed.comm.tls``).
    """

    kind: Literal["address"] = "address"
    address: str = Field(description="For example tcp://127.0.0.1:8786, or tls://HOST:PORT")

    @field_validator("address")
    @classmethod
    def _check(cls, value: str) -> str:
        if "://" not in value:
            raise ValueError(f"address = {value!r} has no protocol; write tcp://HOST:PORT or tls://HOST:PORT")
        return value

    @property
    def place(self) -> str:
        return self.address

    @property
    def title(self) -> str:
        return f"Dask cluster {self.address}"

    @property
    def permission(self) -> str:
        return self.address

    @property
    def named(self) -> str:
        return f"cluster.address = {self.address!r}"


class SlurmClusterSpec(ClusterSettings):
    """Slurm jobs, submitted for the study and ended with it (dask-jobqueue); each is one worker with one slot.

    The home folder and the Python environment must be on storage that all nodes see. A worker that ended, for
    its walltime too, is submitted anew. Dask's configuration has ``jobqueue.slurm.interface``, the network interface
    between nodes, such as ib0, and ``jobqueue.slurm.job-script-prologue``, shell lines before a worker starts.
    """

    kind: Literal["slurm"] = "slurm"
    workers: WorkerCount = Field(
        default=2,
        description="Slurm jobs; each trains one job at a time. ``{min: 0, max: 64}``: as many as the study can use "
        "now; the others end when they are idle.",
    )
    cores: int = Field(default=1, ge=1, description="CPUs of one Slurm job (--cpus-per-task).")
    memory: str = Field(
        default="4GB", pattern=r"^\d+(\.\d+)? ?[KMGT]i?B$", description="Memory of a Slurm job, such as 16GB."
    )
    walltime: str = Field(
        default="01:00:00",
        pattern=r"^(\d+-)?\d+(:\d\d){0,2}$",
        description="Time limit of a Slurm job, in Slurm's format.",
    )
    directives: list[str] = Field(
        default_factory=list,
        description="Further #SBATCH lines: --partition=gpu, --gres=gpu:1, --account=lab.",
    )

    def cores_each(self, machine: int) -> int:
        return self.cores

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, value: str) -> str:
        if not any(digit in value for digit in "123456789"):
            raise ValueError(f"memory = {value!r}: a worker needs some; write an amount such as 4GB")
        return value


class LocalCudaClusterSpec(ClusterSettings):
    """A worker for each NVIDIA GPU of this machine, which alone its jobs see, as device 0.

    ``CUDA_VISIBLE_DEVICES`` chooses GPUs.
    """

    kind: Literal["local_cuda"] = "local_cuda"

    @property
    def place(self) -> str:
        return "the GPUs of a machine"

    @property
    def permission(self) -> None:
        return None


Cluster = Annotated[
    LocalClusterSpec | AddressClusterSpec | SlurmClusterSpec | LocalCudaClusterSpec,
    Field(discriminator="kind"),
]
"""The registry of kinds: a further kind is a further line."""
