"""Placement policies: pure functions from jobs and free slots to placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job
from hpo_core.placement.slots import Slots

Placement = tuple[Job, Slot]
"""A job on its slot."""


class PlacementPolicy(Protocol):
    """Chooses slots. It never waits, draws or does IO, and changes neither argument."""

    def place(self, jobs: Sequence[Job], slots: Slots) -> list[Placement]:
        """Placements for some or all of ``jobs`` (the oldest first); the others wait."""
        ...


class OneJobPerSlot:
    """Every job takes one free slot: the oldest job the first slot in the inventory's order.

    >>> from hpo_core.model.devices.inventory import Inventory
    >>> from hpo_core.model.stage import Rung
    >>> slots = Slots()
    >>> slots.update(Inventory.of(1, "worker-0"))
    >>> jobs = [Job(trial, 0, Rung(0, 0), 1, {}) for trial in (4, 5)]
    >>> [(job.trial, slot.name) for job, slot in OneJobPerSlot().place(jobs, slots)]
    [(4, 'worker-0')]
    """

    def place(self, jobs: Sequence[Job], slots: Slots) -> list[Placement]:
        return list(zip(jobs, slots.free(len(jobs)), strict=False))
