"""The partitions of each epoch of a job in the order of the visits, as rows and lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise

import msgspec

from hpo_core.model.hops import TogetherField, Visit, units_of
from hpo_core.views.formatting import duration, plural
from hpo_core.views.hopping.partition_names import PartitionNames

VISITS_NAMED = 64
"""In one line; an epoch may have thousands."""


class EpochVisits(msgspec.Struct, frozen=True):
    """One epoch of a trial."""

    epoch: int
    """From 0."""
    trained: tuple[tuple[str, str, float], ...]
    """(partition, worker, seconds) in the order of the visits."""
    evaluated: tuple[tuple[str, str, float], ...]
    """Likewise on the validation data."""
    ranks: tuple[int, ...]
    """Of the units that trained, in their order: how many of these visits were one unit."""

    @property
    def seconds(self) -> float:
        """That its units took."""
        units = [*self.units, *([visit] for visit in self.evaluated)]
        return math.fsum(max(seconds for _, _, seconds in unit) for unit in units)

    @property
    def line(self) -> str:
        """``epoch 2: part-1 on w0 (4 s), part-0 on w1 + part-2 on w2 (5 s); 9 s``."""
        parts = [_listed(self.units)]
        if self.evaluated:
            parts.append(f"validation {_listed([[visit] for visit in self.evaluated])}")
        return f"epoch {self.epoch}: {'; '.join(parts)}; {duration(self.seconds)}"

    @property
    def units(self) -> list[Sequence[tuple[str, str, float]]]:
        """:attr:`trained`, unit by unit."""
        ends = list(accumulate(self.ranks))
        return [self.trained[end - ranks : end] for end, ranks in zip(ends, self.ranks, strict=True)]


def epochs_of(
    visits: Sequence[Visit], names: PartitionNames, together: TogetherField = msgspec.UNSET
) -> list[EpochVisits]:
    """Visits of one job, by epoch."""
    found = []
    for epoch, group in groupby(units_of(visits, together), key=lambda unit: unit[0].epoch):
        units = list(group)
        own = [visit for unit in units for visit in unit]
        found.append(
            EpochVisits(
                epoch,
                tuple(_named(visit, names) for visit in own if visit.partition < names.trained_on),
                tuple(_named(visit, names) for visit in own if visit.partition >= names.trained_on),
                tuple(len(unit) for unit in units if unit[0].partition < names.trained_on),
            )
        )
    return found


def epoch_lines(
    visits: Sequence[Visit], names: PartitionNames, most: int, together: TogetherField = msgspec.UNSET
) -> Iterator[str]:
    """A line for each of the first epochs, and one that counts the others."""
    epochs = epochs_of(visits, names, together)
    yield from (epoch.line for epoch in epochs[:most])
    if len(epochs) > most:
        yield f"and {plural(len(epochs) - most, 'epoch')} more"


def hops_in_short(visits: Sequence[Visit], together: TogetherField = msgspec.UNSET) -> str:
    """How much a job hopped.

    >>> at = dict(started=0.0, ended=1.0, size=9)
    >>> hops_in_short([Visit(0, 1, "w0", **at), Visit(0, 0, "w1", **at), Visit(1, 0, "w1", **at)])
    '2 epochs, 3 units on 2 workers, 1 hop to another'
    """
    if not visits:
        return ""
    epochs = len({visit.epoch for visit in visits})
    workers = len({visit.worker for visit in visits})
    units = list(units_of(visits, together))
    changed = sum(one[0].worker != other[0].worker for one, other in pairwise(units))
    where = f"{plural(epochs, 'epoch')}, {plural(len(units), 'unit')} on {plural(workers, 'worker')}"
    return f"{where}, {plural(changed, 'hop')} to another" if workers > 1 else where


def worker_name(worker: str) -> str:
    """As people read it.

    >>> worker_name("tcp://127.0.0.1:40001")
    '127.0.0.1:40001'
    """
    return worker.removeprefix("tcp://").removeprefix("tls://")


def _named(visit: Visit, names: PartitionNames) -> tuple[str, str, float]:
    known = visit.partition < len(names.all)
    name = names.all[visit.partition] if known else f"partition {visit.partition}"
    return name, worker_name(visit.worker), max(0.0, visit.ended - visit.started)


def _listed(units: Sequence[Sequence[tuple[str, str, float]]]) -> str:
    shown = [
        f"{' + '.join(f'{name} on {worker}' for name, worker, _ in unit)} ({duration(unit[0][2])})"
        for unit in units[:VISITS_NAMED]
    ]
    more = f" and {len(units) - VISITS_NAMED:,} more" if len(units) > VISITS_NAMED else ""
    return ", ".join(shown) + more
