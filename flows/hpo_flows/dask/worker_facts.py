"""Facts that Dask workers send with their heartbeats."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from hpo_core.model.devices.inventory import SeenDevice
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.partition_file import PartitionFile

if TYPE_CHECKING:  # workers need not import it
    from hpo_core.spec import StudySpec

T = TypeVar("T")
_ATTEMPT = re.compile(r"/trial-([0-9]+)/attempt-([0-9]+)")

METRIC = "hpo_beats"
"""Dask metric with :func:`hpo_core.training.worker.TrainerPool.heartbeats`."""
DEVICES = "hpo_devices"
"""Dask metric with :func:`hpo_core.training.visible_devices.seen_devices`."""
USAGES = "hpo_usages"
"""Dask metric with :func:`hpo_core.training.worker.TrainerPool.usages`."""
PARTITIONS = "hpo_partitions"
"""Dask metric with :func:`hpo_core.training.partition_data.held_partitions`, by folder of the study."""


class ToldPartitions(NamedTuple):
    """Partitions of a study on a worker, as the worker told."""

    places: frozenset[int]
    """Indices among the study's partitions, those of validation last."""
    problems: dict[str, str]
    """Reasons for which partitions that are there cannot be used, by name."""
    looked: int = 0
    """Number of the look; later looks have larger ones."""
    reading: bool = False
    """True if a partition is being read there, which may then count."""


class WorkerFacts(NamedTuple):
    """Facts about one worker, as the scheduler has them."""

    threads: int
    last_seen: float
    keys: list[str]
    """Tasks of the study that were sent to it and are not answered."""
    executing: list[str]
    """Tasks among ``keys`` that a thread of it runs."""
    heartbeats: dict[str, int]
    devices: dict[str, SeenDevice] | None
    """Devices that jobs can share there, by name; None before it was asked."""
    usages: dict[str, Usage]
    """Measured use of the attempts that run there, by attempt."""
    partitions: ToldPartitions | None = None
    """Partitions that lie there; None before it was asked."""


class WorkerQuestions(NamedTuple):
    """Questions to the workers of a study; each worker is asked once."""

    folder: str
    """Folder of the study."""
    devices: bool = False
    """True if jobs share devices (``packing``)."""
    mps: bool = False
    partitions: tuple[PartitionFile, ...] = ()
    """Partitions that models hop over, those of validation last."""
    partition_folder: str = ""
    jobs_on_device: int = 1
    """Maximum number of jobs that share a device."""
    computers: bool = False
    """True if the ranks of gangs are placed on computers, told apart by the addresses of their workers."""

    @classmethod
    def of(cls, spec: StudySpec, folder: str) -> WorkerQuestions:
        """Questions that a study has for its workers."""
        return cls(
            folder,
            devices=spec.packs,
            mps=spec.uses_mps,
            partitions=spec.partitions,
            partition_folder=spec.partition_folder,
            jobs_on_device=spec.jobs_on_device,
            computers=spec.gangs,
        )

    def is_answered_by(self, facts: WorkerFacts) -> bool:
        return (not self.devices or facts.devices is not None) and (not self.partitions or facts.partitions is not None)


def facts_of_workers(prefix: str, dask_scheduler: Any = None) -> dict[str, tuple[Any, ...]]:
    """Runs on the scheduler; plain values, for it may be a process of another version of this package."""
    return {
        worker.address: (
            worker.nthreads,
            worker.last_seen,
            [task.key for task in worker.processing if str(task.key).startswith(prefix)],
            [task.key for task in worker.executing if task in worker.processing and str(task.key).startswith(prefix)],
            worker.metrics.get(METRIC),
            worker.metrics.get(DEVICES),
            worker.metrics.get(USAGES),
            worker.metrics.get(PARTITIONS),
        )
        for worker in dask_scheduler.workers.values()
    }


def decoded_facts(sent: tuple[Any, ...], asked: WorkerQuestions) -> WorkerFacts:
    """Decode a value of :func:`facts_of_workers`; what a worker of another version tells otherwise is left out."""
    threads, last_seen, keys, executing, heartbeats, devices, usages, partitions = sent
    try:
        held = ToldPartitions(
            *msgspec.convert(partitions[asked.folder], tuple[frozenset[int], dict[str, str], int, bool])
        )
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        held = None
    return WorkerFacts(
        threads,
        last_seen,
        keys,
        executing,
        _fitting(heartbeats, int),
        devices=None if devices is None else _fitting(devices, SeenDevice),
        usages=_fitting(usages, Usage),
        partitions=held,
    )


def usages_in(workers: Mapping[str, WorkerFacts], folder: str) -> dict[tuple[int, int], Usage]:
    found = {}
    for facts in workers.values():
        for name, usage in facts.usages.items():
            numbers = _ATTEMPT.fullmatch(name.removeprefix(folder))
            if name.startswith(folder) and numbers:
                found[int(numbers[1]), int(numbers[2])] = usage
    return found


def _fitting(sent: Any, wanted: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in sent.items() if isinstance(sent, dict) else ():
        try:
            found[msgspec.convert(name, str)] = msgspec.convert(value, wanted)
        except (ValueError, msgspec.ValidationError) as error:
            logging.getLogger(__name__).debug("a Dask worker says of %r: %s", name, error)
    return found
