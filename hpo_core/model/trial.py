"""The nouns of training as frozen values: stage, checkpoint, job, outcome."""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from numbers import Real
from typing import Any

import msgspec

from hpo_core.model.devices.inventory import ONE_SLOT, Demand
from hpo_core.model.devices.measurement import UsageField


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Pass of a trial over one partition of the data: what a model does between two hops.

    The job that carries it trains from ``target - 1`` to ``target``: its units make that epoch.
    """

    partition: str
    """Name of the partition, which is its file's path below the worker's folder of partitions."""
    index: int
    """Index among the study's partitions; those of validation come after the ones trained on."""
    place: int
    """Number of partitions of this epoch before it."""
    count: int
    """Partitions of the epoch that are trained on."""
    number: int
    """Counts all units that the executor started for the attempt: no two write to one path."""
    state: str = ""
    """Path of the model's state afterwards, relative to the study's folder or a URL; empty: nothing is written."""
    durable: bool = False
    """True if the state must survive a crash of the computer: at the end of an epoch."""
    hopped: bool = False
    """True if the job's checkpoint is a state that came from another unit, not a checkpoint of the study."""
    trains: bool = True
    """False: the model is evaluated on a partition of the validation data."""
    cached: int = 1
    """Number of loaded partitions that may stay in the memory of its worker, however large; small ones all stay."""
    elapsed: float = 0.0
    """Seconds that earlier units of the job took; ``training.timeout`` counts them."""

    @property
    def ends_epoch(self) -> bool:
        return self.trains and self.place + 1 >= self.count


class Doubt(msgspec.Struct, frozen=True, gc=False):
    """A unit was lost for its partition was not there, or was not the one that its worker had looked at."""

    partition: str
    """Name of the partition."""
    looked: int = 0
    """Number of looks of the worker at partitions by then (:mod:`hpo_core.training.partition_data`):
    what it said of this one before is void."""


class Visit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unit that a result came from: where and when a trial saw a partition."""

    epoch: int
    """Epoch, from 0."""
    partition: int
    """Index among the study's partitions; those of validation come after the ones trained on."""
    worker: str
    started: float
    ended: float
    """Seconds since the epoch (or virtual seconds in a simulation)."""
    size: int
    """Bytes of the state that the trial came with."""


VisitsField = tuple[Visit, ...] | msgspec.UnsetType
"""Field of a report or an event: not set, and left out of the journal, where models do not hop."""


class _Stage(msgspec.Struct, frozen=True, tag_field="is", tag=True, gc=False):
    """Base: frozen, tagged with its class name in the journal."""


class Rung(_Stage, frozen=True):
    """A job of the successive halving family, of random and of grid search."""

    bracket: int
    rung: int
    """Place in the bracket's ladder, 0 at the bottom."""


class Generation(_Stage, frozen=True):
    """A session of one member of a population (PBT)."""

    member: int
    """Place in the population, from 0."""
    generation: int

    @property
    def bracket(self) -> int:
        return 0

    @property
    def rung(self) -> int:
        return self.generation


Stage = Rung | Generation


Params = dict[str, Any]
"""Name to value; values are float, int, str, bool or None. Inactive conditional parameters are absent."""

Metrics = dict[str, float]
"""Name to value; non-finite values are allowed here and judged later."""


class Outcome(StrEnum):
    """The way an attempt ended. ``completed`` and ``diverged`` are results; the others are failures."""

    COMPLETED = "completed"
    DIVERGED = "diverged"
    """The target was reached but the metric is NaN or infinite: ranks last, is never promoted."""
    ERROR = "error"
    """The training function raised, or broke its contract."""
    CRASHED = "crashed"
    """The training process ended by itself (``os._exit``, segmentation fault)."""
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    """Longer than ``training.timeout``."""
    HUNG = "hung"
    """No step finished within ``training.stall_timeout``."""
    CHECKPOINT_BAD = "checkpoint_bad"
    """The checkpoint to start from is missing, truncated or corrupt; the trial goes back to an older one."""
    STORAGE = "storage"
    """The study's folder cannot be written (full disk, permission): the study halts, the job stays wanted."""
    LOST = "lost"
    """The worker or the controller went away; says nothing about the trial."""
    PREEMPTED = "preempted"
    """We took the worker away on purpose (cancel, shutdown)."""


RESULTS = frozenset({Outcome.COMPLETED, Outcome.DIVERGED})


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Immutable reference to a training state on disk."""

    uri: str
    """Path relative to the study's folder, or a full URI."""
    digest: str
    """``blake3:`` and the BLAKE3 of the file, hexadecimal; of files of earlier versions their SHA-256."""
    resource: int
    """Units of training (epochs, steps) done when it was taken."""
    size: int
    """Bytes."""
    parent: str | None = None
    """``uri`` of the checkpoint this attempt started from."""


JobKey = tuple[int, int]
"""(trial, attempt): what tells one attempt from every other."""


class Job(msgspec.Struct, frozen=True, gc=False):
    """Train trial ``trial`` *to* ``target`` (absolute), starting from ``checkpoint``.

    ``(trial, attempt)`` is the fence: a report that carries another attempt number is noted and dropped.
    """

    trial: int
    attempt: int
    stage: Stage
    """Rung of a bracket, or generation of a population."""
    target: int
    params: Params
    checkpoint: Checkpoint | None = None
    retry: bool = False
    """True if an earlier attempt at the same target failed."""
    parent: int | None = None
    """The trial whose checkpoint this is, where it is another one (PBT: warm start); None: its own, or none."""
    demand: Demand = ONE_SLOT
    """Need of a device."""
    unit: Unit | None = None
    """The part of its epoch that this is, where models hop; None: the whole job."""

    @property
    def key(self) -> JobKey:
        return self.trial, self.attempt

    @property
    def bracket(self) -> int:
        return self.stage.bracket

    @property
    def rung(self) -> int:
        return self.stage.rung


class Point(msgspec.Struct, frozen=True, gc=False):
    """Metrics at one resource, for pictures, trackers, and search methods that read curves (PASHA, noise: auto)."""

    resource: int
    metrics: Metrics


LogLine = tuple[float, int, str]
"""Seconds since the epoch, level as in :mod:`logging`, and message of one line of a log."""


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result or failure of one attempt."""

    trial: int
    attempt: int
    outcome: Outcome
    metrics: Metrics = {}
    """Last value of each metric at the target (empty on failure)."""
    curve: tuple[Point, ...] = ()
    """Per-step metrics of this attempt, thinned to at most ``CURVE_POINTS``."""
    checkpoint: Checkpoint | None = None
    message: str = ""
    """One line for people: what failed and how to cure it."""
    detail: str = ""
    """Traceback and the tail of the attempt's output."""
    worker: str = ""
    started: float = 0.0
    ended: float = 0.0
    """Seconds since the epoch (or virtual seconds in a simulation)."""
    unrestored: tuple[str, ...] = ()
    """Parts that a start from another trial's checkpoint left as built, in journals of earlier versions."""
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Changes of the training loop that its checkpoint does not hold, with the cure; unset: nothing was found."""
    usage: UsageField = msgspec.UNSET
    """Measured use of the machine; not set where nothing was measured."""
    visits: VisitsField = msgspec.UNSET
    """Where models hop: which partition the trial saw where and when, in that order, from the job's start."""
    unit: int | msgspec.UnsetType = msgspec.UNSET
    """Number of the unit that was trained, where it is not the whole job."""
    doubt: Doubt | msgspec.UnsetType = msgspec.UNSET
    """Partition for which a unit was lost. The report of a whole job has none."""
    log: tuple[LogLine, ...] | msgspec.UnsetType = msgspec.UNSET
    """Lines of the training function to Prefect's run logger. They are taken out before the report is recorded."""
    stood_still: float | msgspec.UnsetType = msgspec.UNSET
    """Seconds of it in which the process that watches its limits stood still; not set where there were none."""

    @property
    def seconds(self) -> float:
        stood_still = 0.0 if self.stood_still is msgspec.UNSET else self.stood_still
        return max(0.0, self.ended - self.started - stood_still)


CURVE_POINTS = 64
"""A job's curve is thinned to this many points before it is recorded."""


COLUMNS = frozenset({"trial", "state", "resource", "at", "trained", "bracket", "parent", "attempts"})
"""Columns of a result's tables beside metrics and ``params.NAME``."""
_REAL_DTYPE = re.compile(r"(torch\.)?(float|bfloat|int|uint)\d+\w*")


def refused_name(name: str) -> str:
    if name not in COLUMNS and not name.startswith("params."):
        return ""
    others = ", ".join(sorted(COLUMNS - {name}))
    return (
        f"is a column of the tables of a result, which also have {others} and params.NAME; give the metric another "
        f"name, such as my_{name.replace('.', '_')}"
    )


def real_number(value: Any) -> float | None:
    """One real number as a float; None for anything else: truth values, complex numbers, texts, times, masked values.

    Integers and floats of Python, fractions, decimals, and scalars or arrays without dimensions of NumPy, torch and
    other libraries whose arrays have ``dtype``, ``ndim`` and ``item()``.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is not None and not isinstance(value, type):
        if not _REAL_DTYPE.fullmatch(getattr(dtype, "name", str(dtype))) or getattr(value, "ndim", None) != 0:
            return None
        if getattr(value, "mask", False):  # numpy.ma.masked is 0.0 for float()
            return None
        value = value.item()
    elif type(value) is bool or not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):  # too large; a signaling NaN of decimal
        return None
