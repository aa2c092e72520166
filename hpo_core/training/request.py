"""JobRequest: all that one attempt needs, in one value that can be sent to other processes.

What it shares with the study's other jobs comes along (some 600 bytes): a worker may serve many studies and join late,
and one message that is enough for a job can neither be lost nor be of another run of the study.
"""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import msgspec

from hpo_core.checkpoints import storage as paths
from hpo_core.model.devices.inventory import Portion
from hpo_core.model.errors import HpoError
from hpo_core.model.partition_file import Signature, weights_of
from hpo_core.model.trial import Job, Metrics, Outcome, Report, Rung
from hpo_core.placement.gpus import available_cores
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import threads_of
from hpo_core.spec.sent_functions import placed


class RankPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a gang; by default one that trains alone."""

    rank: int = 0
    size: int = 1
    """Ranks of the gang."""
    local_rank: int = 0
    """Number among the ranks on its computer, from 0."""
    local_size: int = 1
    """Ranks on its computer."""
    store: str = ""
    """Path of the file through which the ranks find each other: in a private folder that each of them reaches."""


ALONE = RankPlace()

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class StudySetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the jobs of a study have in common; made once."""

    study: str
    objective: str
    """Training function as ``package.module:function``."""
    metrics: tuple[str, ...]
    """Names of the objectives; must be reported at the target, unless ``required`` says otherwise."""
    folder: str
    """Absolute folder of the study; checkpoints, logs and scratch space lie below it."""
    pythonpath: tuple[str, ...] = ()
    """Folders put in front of ``sys.path`` before the objective is imported."""
    checkpoint_base: str = paths.CHECKPOINTS
    """Folder of the study's checkpoints, relative to ``folder``, or a URL."""
    modes: tuple[str, ...] = ("min",)
    """``min`` or ``max`` for each objective."""
    constraints: tuple[str, ...] = ()
    """Names of the study's constraints; must be reported at the target as well."""
    required: Literal["all", "any", "none"] = "all"
    """Which of several objectives must be reported (a population's fitness may have gaps)."""
    style: str = "handle"
    """``handle``: the objective takes a TrialHandle; ``optuna``: it is an Optuna objective."""
    unit_is_whole: bool = False
    """True if one unit is a whole training, because the study does not say how many units that has."""
    space: dict[str, dict[str, Any]] = {}
    """The study's space as plain data, which an Optuna objective's suggestions must agree with."""
    timeout: float | None = None
    stall_timeout: float | None = None
    storage_timeout: float | None = 3600.0
    """Seconds that writing or reading one checkpoint may take; ``stall_timeout`` does not count them."""
    partition_folder: str = ""
    """Folder of the data's partitions, unless the worker's environment names another; empty: models do not hop."""
    load: str = ""
    """``package.module:function`` that loads a partition; empty: the training function gets its path."""
    threads: int | None = None
    """Threads to compute with; None: as the worker's environment says, or 1."""
    process: Literal["fresh", "kept"] = "fresh"
    """``kept``: the process of an attempt stays for the next one."""
    mps: bool = False
    """True if the worker is to share a GPU among jobs through MPS, where it can."""
    log_limit: int = 10_000_000
    """Maximum size of the attempt's log in bytes: its beginning; and 4 KiB of its end."""
    grace: float = GRACE
    zygote_timeout: float = 60.0
    """Seconds without an answer after which the zygote, which owns the child process, is killed."""
    flow_run: tuple[str, str] = ("", "")
    """Id and name of the study's Prefect flow run; empty: it runs without Prefect."""

    def not_finite(self, metrics: Metrics) -> str | None:
        """The first objective or constraint that is NaN or infinite among these; None: there is none."""
        judged = (*self.metrics, *self.constraints)
        return next((name for name in judged if name in metrics and not math.isfinite(metrics[name])), None)


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run the objective of a study for ``job``, in the study's folder, under its limits."""

    setup: StudySetup
    job: Job
    seed: int
    """Training seed of this trial, already derived; the same for each of its attempts."""
    partitions: tuple[str, ...] = ()
    """Names of the partitions that the attempt trains on in each epoch: the one of its unit, or all."""
    validation: tuple[str, ...] = ()
    """Names of the partitions that it evaluates the model on."""
    weights: tuple[float, ...] = ()
    """Weights of the partitions of validation: numbers of examples, or ones."""
    signature: Signature | None = None
    """Signature of its unit's partition when the worker looked at it; None: any file will do."""
    gang: RankPlace = ALONE
    """Place of this process in its gang."""
    asks: bool = False
    """True if the trial may go on at once: at the target its process waits for the study's answer."""
    over: tuple[tuple[int, int], ...] = ()
    """Attempts (trial, attempt) whose process may wait where this one begins, for an answer: the trial was stopped."""
    portion: Portion | None = None
    """The part of a device that the attempt may use; None: whatever its worker has."""
    worker: str = ""
    """Address of the Dask worker that runs it, which sets this and the next."""
    gpu: str = ""
    """The GPU of that worker, as ``CUDA_VISIBLE_DEVICES`` names it; empty: what its process sees."""

    def __post_init__(self) -> None:
        start = self.job.checkpoint.resource if self.job.checkpoint else 0
        if self.job.target < 1 or self.job.target < start:
            raise ValueError(
                f"Job of trial {self.job.trial}: target = {self.job.target} must be at least 1 and at least the "
                f"{start} units its checkpoint holds; targets are absolute."
            )

    def with_setup(self, **changes: Any) -> JobRequest:
        return msgspec.structs.replace(self, setup=msgspec.structs.replace(self.setup, **changes))

    def report(self, outcome: Outcome, message: str = "", **facts: Any) -> Report:
        """A report of this attempt; it began and ended now, unless ``facts``, fields of a report, say otherwise."""
        now = time.time()
        job = self.job
        own: dict[str, Any] = {"trial": job.trial, "attempt": job.attempt, "outcome": outcome, "message": message}
        if job.unit is not None:
            own["unit"] = job.unit.number
        return Report(**own | {"started": now, "ended": now} | facts)

    @property
    def checkpoint_path(self) -> str:
        """File for the attempt's checkpoint, relative to the study's, or a URL."""
        if self.job.unit is not None and self.job.unit.state:
            return self.job.unit.state
        return paths.checkpoint_path(self.job, self.setup.checkpoint_base)


class JobRequests:
    """Makes the requests of one study.

    Args:
        folder: absolute study folder.

    Raises:
        HpoError: the study has no objective.
    """

    def __init__(self, spec: StudySpec, folder: str) -> None:
        if spec.objective is None:
            raise HpoError(f"Study {spec.study!r} has no objective: it can only be driven by hand.")
        self._spec = spec
        self._top = spec.search.outline().max_resource or 0
        self.setup = StudySetup(
            study=spec.study,
            objective=placed(spec.objective, folder),
            metrics=tuple(metric.name for metric in spec.objectives),
            modes=tuple(metric.mode for metric in spec.objectives),
            constraints=tuple(spec.constraints),
            required="any" if spec.any_metric else "all",
            folder=folder,
            pythonpath=tuple(spec.pythonpath),
            checkpoint_base=spec.checkpoint_base,
            style=spec.style,
            unit_is_whole=spec.search.unit_is_whole(),
            space=spec.plain()["space"] if spec.style == "optuna" else {},
            timeout=spec.training.timeout,
            stall_timeout=spec.training.stall_timeout,
            partition_folder=spec.partition_folder,
            load=placed(spec.functions.get("data.load", ""), folder),
            threads=threads_of(spec, available_cores()),
            process=spec.training.process,
            mps=spec.uses_mps,
            zygote_timeout=spec.training.worker_timeout,
        )

    def of(self, job: Job, portion: Portion | None = None, gang: RankPlace = ALONE) -> JobRequest:
        """The request of one attempt.

        Args:
            portion: the part of a device that it was placed on; None: its worker is all its own.
            gang: which rank of a gang it is.
        """
        spec, unit = self._spec, job.unit
        files, count = spec.partitions, spec.trained_partitions
        names = tuple(file.name for file in files)
        seen: dict[str, Any] = {
            "partitions": names[:count],
            "validation": names[count:],
            "weights": weights_of(files[count:]),
        }
        if unit is not None:  # of an epoch: it sees one partition
            seen = (
                {"partitions": (unit.partition,)}
                if unit.trains
                else {"validation": (unit.partition,), "weights": (1.0,)}
            )
        return JobRequest(
            setup=self.setup,
            job=job,
            seed=spec.training_seed(job.trial),
            portion=portion,
            gang=gang,
            asks=spec.asks_at_rungs and job.target < self._top and type(job.stage) is Rung,
            **seen,
        )


# MessagePack keeps every float exact, NaN and infinity included. The decoders are made at import: msgspec (0.22, too)
# crashes where two threads are the first to decode a type
encode_request = encode_report = msgspec.msgpack.encode
decode_request = msgspec.msgpack.Decoder(JobRequest).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
