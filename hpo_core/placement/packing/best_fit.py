"""Best fit decreasing by run time: the tightest device with room for a job."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment, by_run_time
from hpo_core.placement.packing.room import Room


class BestFit:
    """The longest job first, each on the device that has the least compute left of those with room for it.

    Not in the paper: the opposite of worst fit, for comparison.
    """

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        room = room.copy()
        chosen = []
        for job in by_run_time(jobs):
            demand = jobs[job].demand
            best, least = -1, 0
            for place, device in enumerate(room.devices):
                need = demand.get(device.architecture)
                if need is None or not room.fits(need, place):
                    continue
                left = room.compute[place] - need.compute
                if best < 0 or left < least:
                    best, least = place, left
            if best >= 0:
                room.take(demand[room.devices[best].architecture], best)
                chosen.append((job, best))
        return chosen
