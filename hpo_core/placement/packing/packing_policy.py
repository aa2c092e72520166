"""The seam between packing policies and whoever places jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.room import Room

Assignment = tuple[int, int]
"""(place among the waiting jobs, place among the room's devices)."""


class PackingPolicy(Protocol):
    """Chooses which waiting jobs begin now, and where. It never waits, draws or does IO."""

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        """Assignments for some or all of ``jobs`` that ``room`` holds together; neither is changed.

        Args:
            jobs: the oldest first.
            room: what is left on each device.
        """
        ...


def by_run_time(jobs: Sequence[WaitingJob]) -> list[int]:
    """Places of the jobs by decreasing expected run time; the older first among equals.

    "Decreasing" is by expected completion time, not by size (Section IV-B, first-fit-decreasing).
    """
    return sorted(range(len(jobs)), key=lambda place: -jobs[place].seconds)
