"""Placer: which waiting job begins now, on which slot. The seam between the loop and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.devices.usage import Usage
from hpo_core.model.trial import Job, Report

Placement = tuple[Job, Slot]
"""A job on its slot."""
JobKey = tuple[int, int]
"""(trial, attempt)."""


class Placer(Protocol):
    """Knows what is free. It never waits, draws or does IO; it is told the time."""

    @property
    def inventory(self) -> Inventory:
        """The devices that are there now."""
        ...

    def update(self, inventory: Inventory, usages: Mapping[JobKey, Usage] = {}) -> None:
        """These devices are there now. Jobs keep what they hold until they are released.

        Args:
            usages: what running attempts were seen to use so far.
        """
        ...

    def capacity(self) -> Inventory:
        """What the study may grant jobs for now, as the journal records it."""
        ...

    def lowered(self) -> list[tuple[JobKey, int]]:
        """Running jobs whose memory is limited to so many bytes from now on; each is told once."""
        ...

    def homeless(self) -> list[JobKey]:
        """Jobs that run on a device that is gone, where nobody else would notice."""
        ...

    def place(self, jobs: Sequence[Job], *, now: float | None = None) -> list[Placement]:
        """Slots for some or all of ``jobs`` (the oldest first), which hold them from now on; the others wait.

        Args:
            now: of the study's clock; None: not known.
        """
        ...

    def release(self, job: JobKey) -> None:
        """The job ended; nothing happens where it holds nothing."""
        ...

    def judge(self, report: Report) -> Report:
        """What the study is told of how an attempt ended, and what is learned from it. Before :meth:`release`."""
        ...

    def is_doubtful(self, report: Report) -> bool:
        """Whether a neighbour on the same device, whose report is on its way, may be why this attempt failed.

        Then it is judged a moment later.
        """
        ...

    def refused(self, jobs: Sequence[Job]) -> list[Report]:
        """Reports for those of the waiting ``jobs`` that no device could hold, even if nothing else ran."""
        ...
