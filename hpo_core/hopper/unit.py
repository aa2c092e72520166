"""Values that the hop schedule hands out: units, what became of them, partitions that nobody holds."""

from __future__ import annotations

import msgspec


class Unit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pass of one configuration over one partition, on one worker (a sub-epoch).

    A gang unit is a pass over several partitions at once, on as many workers: a rank of a gang on each.
    """

    configuration: int
    """Number of the trial."""
    epoch: int
    """From 1: a job that trains from epoch 2 to epoch 4 has the units of epochs 3 and 4."""
    partition: int
    """Place among the schedule's partitions."""
    worker: str
    number: int
    """Counts the units of a schedule from 0. A late end of a lost unit is told apart by it."""
    others: tuple[tuple[int, str], ...] = ()
    """Of a gang: (partition, worker) of its other ranks, from rank 1 on."""

    @property
    def seats(self) -> tuple[tuple[int, str], ...]:
        """(partition, worker) of all ranks, from rank 0 on."""
        return ((self.partition, self.worker), *self.others)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that are visited, by rank."""
        return tuple(partition for partition, _ in self.seats)


class UnitEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the end of a unit meant."""

    counted: bool
    """False where the unit was lost, or its configuration removed, before it ended."""
    order: tuple[int, ...] | None = None
    """Where the epoch ended with this unit: its partitions in the order of the visits."""
    job_ended: bool = False
    """Whether this was the last epoch that the configuration was given."""


class Halted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A partition that no worker holds while configurations still have to visit it."""

    partition: int
    name: str
    configurations: tuple[int, ...]
    """Those that need it, in this epoch or a later one that they were given."""
