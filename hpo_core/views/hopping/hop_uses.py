"""What each worker and each partition did: units, seconds, utilization, models that came."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hpo_core.model.partition_file import PartitionFile, natural_order
from hpo_core.views.hopping.hop_units import HopUnit


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """A worker over all units."""

    worker: str
    units: int
    partitions: int
    """Different ones that models visited there."""
    seconds: float
    """That its units took."""
    utilization: float
    """Share of the time from the first unit of any worker to the end of the last one."""
    models: int
    """Times that a model came from another worker."""
    received: int
    """Bytes of their states."""


class PartitionUse(msgspec.Struct, frozen=True, kw_only=True):
    """A partition over all units."""

    name: str
    trains: bool
    """False: models are evaluated on it."""
    count: int | None
    """Examples, where that is known."""
    bytes: int | None
    units: int
    seconds: float
    workers: tuple[str, ...]
    """Where models visited it; the journal does not hold who else has a copy."""


def worker_uses(units: Sequence[HopUnit]) -> list[WorkerUse]:
    """By name of the worker."""
    by_worker: dict[str, list[HopUnit]] = defaultdict(list)
    for unit in units:
        by_worker[unit.worker].append(unit)
    whole = max((unit.ended for unit in units), default=0.0) - min((unit.started for unit in units), default=0.0)
    found = []
    for worker, own in sorted(by_worker.items(), key=lambda item: natural_order(item[0])):
        came = [unit for unit in own if unit.changed_worker]
        seconds = math.fsum(unit.seconds for unit in own)
        found.append(
            WorkerUse(
                worker=worker,
                units=len(own),
                partitions=len({unit.partition for unit in own}),
                seconds=seconds,
                utilization=seconds / whole if whole > 0 else 0.0,
                models=len(came),
                received=sum(unit.size for unit in came),
            )
        )
    return found


def mean_utilization(uses: Sequence[WorkerUse]) -> float | None:
    """Over all workers; None where there is none."""
    return math.fsum(use.utilization for use in uses) / len(uses) if uses else None


def partition_uses(files: Sequence[PartitionFile], trained_on: int, units: Sequence[HopUnit]) -> list[PartitionUse]:
    """In the order of the partitions, also of those that no model visited yet.

    Args:
        files: all partitions, those of validation at the end.
        trained_on: so many of them are trained on.
        units: of the study.
    """
    by_place: dict[int, list[HopUnit]] = defaultdict(list)
    for unit in units:
        by_place[unit.partition].append(unit)
    return [
        PartitionUse(
            name=file.name,
            trains=place < trained_on,
            count=file.count,
            bytes=file.bytes,
            units=len(by_place[place]),
            seconds=math.fsum(unit.seconds for unit in by_place[place]),
            workers=tuple(sorted({unit.worker for unit in by_place[place]}, key=natural_order)),
        )
        for place, file in enumerate(files)
    ]
