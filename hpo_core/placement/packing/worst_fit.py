"""Worst fit and worst fit decreasing: Algorithm 2 of HyperSack."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.placement.packing.need import WHOLE, WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment, by_run_time
from hpo_core.placement.packing.room import Room


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
