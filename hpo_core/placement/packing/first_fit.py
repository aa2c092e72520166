"""First fit and first fit decreasing: Algorithm 1 of HyperSack."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment, by_run_time
from hpo_core.placement.packing.room import Room


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
