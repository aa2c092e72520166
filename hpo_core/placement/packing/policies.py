"""The seam between packing policies and whoever places jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hpo_core.placement.packing.room import WHOLE, Room, WaitingJob

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


class FirstFit:
    """Each job goes to the first device with room for it (Algorithm 1).

    Args:
        decreasing: jobs by decreasing expected run time (FFD); otherwise the oldest first (FF).
    """

    def __init__(self, *, decreasing: bool) -> None:
        self.decreasing = decreasing

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        room = room.copy()
        chosen = []
        for job in by_run_time(jobs) if self.decreasing else range(len(jobs)):
            demand = jobs[job].demand
            for place, device in enumerate(room.devices):
                need = demand.get(device.architecture)
                if need is not None and room.fits(need, place):
                    room.take(need, place)
                    chosen.append((job, place))
                    break
        return chosen


class WorstFit:
    """Each job goes to the device with the most compute left; the last of several that have as much (Algorithm 2).

    Constraint 1 compares r_nm * C_nm with the job's compute, constraint 4 compares C_nm alone. With equation 2 (the
    sum of the jobs stays within r_nm * C_nm) a placed job lowers C_nm by its compute / r_nm. So what is compared is
    what is left divided by the oversubscription ratio, and the last device with the largest wins, for the comparison
    is ``>=``.

    Args:
        decreasing: jobs by decreasing expected run time (WFD); otherwise the oldest first (WF).
    """

    def __init__(self, *, decreasing: bool) -> None:
        self.decreasing = decreasing

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        room = room.copy()
        ratios = [device.oversubscribe for device in room.devices]
        chosen = []
        for job in by_run_time(jobs) if self.decreasing else range(len(jobs)):
            demand = jobs[job].demand
            best, most, ratio = -1, 0, WHOLE
            for place, device in enumerate(room.devices):
                need = demand.get(device.architecture)
                if need is None or not room.fits(need, place):
                    continue
                left = room.compute[place]
                if left * ratio >= most * ratios[place]:  # left / its ratio >= most / ratio, in whole numbers
                    best, most, ratio = place, left, ratios[place]
            if best >= 0:
                room.take(demand[room.devices[best].architecture], best)
                chosen.append((job, best))
        return chosen
