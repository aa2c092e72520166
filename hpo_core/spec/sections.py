"""Sampler, training, stop rules, checkpoints, warm start, tracking and Prefect: the settings beside the search."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from hpo_core.model.devices.pool_member import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_SLOTS, MOST_WEIGHT
from hpo_core.model.settings import Part, is_recorded
from hpo_core.model.trial import Outcome
from hpo_core.samplers.registry import check
from hpo_core.samplers.sampler import EarlierResult
from hpo_core.security.masking import holds_credentials
from hpo_core.spec.sizes import check_arguments


class SamplerSpec(BaseModel):
    """``name: random``, ``ranked_gp``, or any sampler of Optuna by its class name (``TPESampler``), with arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "random"

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> SamplerSpec:
        if not is_recorded(info):
            check_arguments(self.name, self.arguments)
        check(self.name, self.arguments)
        return self


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
    grace: float = Field(default=5.0, ge=0, description="Seconds between SIGTERM and SIGKILL.")
    retries: dict[Outcome, int] = Field(
        default_factory=dict,
        description="Further attempts at one target after each kind of failure; merged over the defaults.",
    )
    max_lost: int | None = Field(
        default=3,
        ge=1,
        description="A trial that lost its worker so often, while others did not, is abandoned; null: the study halts "
        "after retries.lost.",
    )
    fail_fast: int | None = Field(
        default=5,
        ge=1,
        description="Halt when so many trials were abandoned before the first success, or when the first four times as "
        "many (after a resume: the next ones) have all ended without a finite value: each diverged (NaN, infinite) or "
        "was abandoned; null: never.",
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = Field(
        default=None,
        description="Threads that one attempt computes with (OpenMP, MKL, OpenBLAS, NumExpr, torch); auto: the cores "
        "of a machine divided by its workers; null: 1, or what the worker's environment says (OMP_NUM_THREADS). Sums "
        "may differ in their last bits between numbers of threads.",
    )
    gang: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        default=1,
        description="Ranks (processes) that train one trial together, each on a slot of its own, by torch.distributed; "
        "1: one process. All start at once or none, and end as one attempt. auto: one while many trials wait, more "
        "where few are left, see scaling; with data: a rank for each partition that a unit sees.",
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
    Outcome.LOST: 10,  # see hpo_core/state/worker_losses.py
    Outcome.PREEMPTED: 1_000_000,
}


class StopSpec(Part):
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


class CheckpointSpec(Part):
    """Where the study's checkpoints lie, and their limits (which go first: ``hpo_core/checkpoints/retention.py``)."""

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
        """What is allowed by its beginning must not lead elsewhere."""
        if folder is not None and {".", ".."} & set(unquote(folder).split("/")):
            raise ValueError("folder holds . or .. as a part; write the URL that it comes to")
        return folder


class ShareSpec(Part):
    """``share``: slots that are shared with other studies; ``true`` stands for all defaults.

    With ``packing``, whole devices. What each gets is stated in :mod:`hpo_core.pool.division`.
    """

    pool: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the pool. Without one, studies at the same cluster.address share its slots. Workers that "
        "are started for the study need a name: studies of one machine that give the same one share.",
    )
    weight: float = Field(
        default=1.0,
        ge=LEAST_WEIGHT,
        le=MOST_WEIGHT,
        description="Its slots compared with those of a study of weight 1. `hpo share` changes it while it runs.",
    )
    priority: int = Field(
        default=0,
        ge=LEAST_PRIORITY,
        le=MOST_PRIORITY,
        description="Studies of a higher priority get all slots that they can use first. `hpo share` changes it.",
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SLOTS,
        description="Slots of the pool (with packing: devices), where each study starts workers of its own; where "
        "studies state different numbers, the smallest. Default: as many as the largest of their clusters has.",
    )
    preempt: float | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Seconds that it waits for its share before it gets a slot by ending the youngest attempt of the "
        "study that has most above its share; that attempt goes on from its checkpoint later. null: it only waits.",
    )


class WarmStartSpec(Part):
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
    proposals: list[dict[str, Any]] | None = Field(
        default=None, description="Filled in from the journal when the study is created: what is tried first."
    )
    past: list[EarlierResult] = Field(default_factory=list, description="Filled in likewise: what a sampler is shown.")


class JournalSpec(Part):
    """How the controller treats the journal; where it lies is a setting of the home."""

    retry_seconds: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="How long a journal that cannot be reached (failover, lock, full disk) is tried again before the "
        "study ends; attempts go on training meanwhile.",
    )


_STORAGE = re.compile(r"(sqlite(\+\w+)?:///|(postgresql|mysql|mariadb)(\+\w+)?://)(?!:memory:)[^\s\x00-\x1f]+")


class TrackingSpec(Part):
    """Where the study is copied to, for other eyes: MLflow, an Optuna storage; it never waits for either."""

    mlflow: str | None = Field(
        default=None,
        description="Tracking URI; default: MLFLOW_TRACKING_URI or SQLite in the home folder; 'off'.",
    )
    experiment: str = Field(
        default="hpo", pattern=r"^[^\x00-\x1f\x7f]+$", description="MLflow experiment that holds the runs."
    )
    optuna: str | None = Field(
        default=None,
        description="Database URL of an Optuna storage, such as sqlite:///optuna.db, that the study is copied to; "
        "'on': HPO_OPTUNA_STORAGE or SQLite in the home folder; 'off', the default: none.",
    )

    @model_validator(mode="after")
    def _check_secrets(self) -> TrackingSpec:
        """On the whole part, not the field: an error about a field repeats its value."""
        if self.mlflow is not None and holds_credentials(self.mlflow):
            raise ValueError(
                "mlflow holds a user or a password, and journal, MLflow and Prefect keep what a study says; leave it "
                "out and set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        if self.optuna is not None and holds_credentials(self.optuna):
            raise ValueError(
                "optuna holds a user or a password, and journal and Prefect keep what a study says; write 'on' and set "
                "HPO_OPTUNA_STORAGE to the URL"
            )
        if self.optuna not in (None, "on", "off") and not _STORAGE.fullmatch(self.optuna or ""):
            raise ValueError(
                "optuna is no database URL; write sqlite:///PATH, postgresql+psycopg://HOST/DATABASE, "
                "mysql+DRIVER://HOST/DATABASE, or on or off"
            )
        return self


class PrefectSpec(Part):
    """How a study that the command line drives is shown in Prefect; it runs the same without."""

    enabled: bool = Field(
        default=True,
        description="Whether the command line shows it in Prefect; a run started in Prefect's UI is shown anyway.",
    )
    grain: Literal["auto", "job", "rung"] = Field(
        default="auto",
        description="A Prefect task run per job, or one per rung; auto: per job up to about 300 expected jobs.",
    )


MOST_RANKS = 1024


class ScalingSpec(Part):
    """How many slots a trial may grow to.

    Without ``speedups`` they follow from times that the study itself measures.
    """

    efficiency: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="A gang of g ranks trains at least efficiency * g times as fast as one; larger ones are not used.",
    )
    most: int | None = Field(
        default=None,
        ge=2,
        le=MOST_RANKS,
        description="Slots that one trial may have at most; null: as many as are worth it.",
    )
    speedups: dict[int, float] = Field(
        default_factory=dict,
        description="How many times as fast as one rank, by ranks: {2: 1.9, 4: 3.4}. Other sizes are not used.",
    )

    @model_validator(mode="after")
    def _check_speedups(self) -> ScalingSpec:
        most = self.most or MOST_RANKS
        for ranks, speedup in sorted(self.speedups.items()):
            if not 2 <= ranks <= most:
                given = " (scaling.most)" if self.most else ""
                raise ValueError(f"speedups names {ranks} ranks; sizes must be from 2 to {most}{given}; drop it")
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
