"""The nouns of model hopping: a unit to train, and a visit that was made (Cerebro, Section 3)."""

from __future__ import annotations

import msgspec


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Pass of a trial over one partition of the data: what a model does between two hops.

    The job that carries it trains from ``target - 1`` to ``target``: its units make that epoch.
    """

    partition: str
    """Name of the partition, which is its file's path below the worker's folder of partitions."""
    index: int
    """Index among the study's partitions; those of validation come after the ones trained on."""
    place: int
    """How many partitions of this epoch come before it."""
    count: int
    """Partitions of the epoch that are trained on."""
    number: int
    """Counts all units that the executor started for the attempt: no two write to one path."""
    state: str = ""
    """Path of the model's state afterwards, relative to the study's folder or a URL; empty: nothing is written."""
    durable: bool = False
    """Whether the state must survive a crash of the computer: at the end of an epoch."""
    hopped: bool = False
    """Whether the job's checkpoint is a state that came from another unit, not a checkpoint of the study."""
    trains: bool = True
    """Whether it trains; else the model is evaluated on a partition of the validation data."""
    cached: int = 1
    """Number of loaded partitions that may stay in the memory of its worker, however large; small ones all stay."""
    elapsed: float = 0.0
    """Seconds that earlier units of the job took; ``training.timeout`` counts them."""

    @property
    def ends_epoch(self) -> bool:
        """True if it is the last one of its epoch that trains."""
        return self.trains and self.place + 1 >= self.count


class Doubt(msgspec.Struct, frozen=True, gc=False):
    """A unit was lost for its partition was not there, or was not the one that its worker had looked at."""

    partition: str
    """Name of the partition."""
    looked: int = 0
    """How often the worker had looked at partitions by then (:mod:`hpo_core.training.partition_data`):
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
