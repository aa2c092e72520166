"""Placer: which waiting job begins now, on which slot. The seam between the loop and the room that jobs fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, JobKey, Report

Placement = tuple[Job, Slot]
"""A job on its slot."""


class Placed(NamedTuple):
    """What became of waiting jobs; those that are named in neither list wait on."""

    begun: list[Placement]
    """Jobs that hold their slots from now on."""
    refused: Sequence[Report] = ()
    """Reports of jobs that no device could hold, even if nothing else ran."""


class Placer(Protocol):
    """Knows what is free. It never waits or draws; it is told the time."""

    def update(self, inventory: Inventory) -> Sequence[JobKey]:
        """Take these devices as those that are there now. Jobs keep what they hold until they are released.

        Returns:
            Jobs to be cancelled: they run on a device that is gone, and nobody else would notice.
        """
        ...

    def capacity(self) -> Inventory:
        """What the study may grant jobs for now, as the journal records it."""
        ...

    def place(self, jobs: Sequence[Job], *, now: float | None = None) -> Placed:
        """Give slots to some or all of ``jobs``, the oldest of which comes first.

        Args:
            now: seconds of the study's clock; None: not known.
        """
        ...

    def release(self, job: JobKey) -> None:
        """Free what a job held that ended; nothing happens where it holds nothing."""
        ...

    def judge(self, report: Report, *, waited: bool = True) -> Report | None:
        """What the study is told of how an attempt ended, before :meth:`release`; what it shows is learned.

        Args:
            waited: whether it was held back already, or must not be.

        Returns:
            None: it is to be held back for a moment, for another attempt on its device may be to blame.
        """
        ...


class Meter(Protocol):
    """Measures attempts while they run, and limits them: the workers of a cluster whose devices jobs share."""

    def usages(self) -> Mapping[JobKey, Usage]:
        """What running attempts were seen to use so far."""
        ...

    def limit(self, attempt: JobKey, memory: int) -> None:
        """Let a running attempt use at most so many bytes of its device from now on; returns at once."""
        ...
