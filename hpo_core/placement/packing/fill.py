"""Fill: the better of two assignments, device by device or job by job, by the resource that runs out first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hpo_core.placement.packing.need import WHOLE, Need, WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment
from hpo_core.placement.packing.prices import Prices
from hpo_core.placement.packing.room import Room
from hpo_core.placement.packing.subset import Candidate, best_subset

IDLE = 5
"""Permille of the devices' compute that subsets may leave idle for the sake of jobs that should begin early."""
CLOSE = 0.01
"""Share of the devices, by priced size, by which two assignments may differ and count as equally full."""


class Fill:
    """Makes two assignments and takes the fuller one; of two that are about as full the one that is worth more.

    - Device by device: the subset of the waiting jobs that is worth most, of those that leave next to none of the
      device's compute idle. What memory or cores forbid of it is left out, and others fill the gap.
    - Job by job, the most valuable first: on the device where it is fastest, of those the one with the most compute
      left.

    How full an assignment is, and what a job is worth, goes by :class:`Prices`: where cores run out first, jobs that
    fill the cores count, and of jobs with equal cores the longest begin first, as by worst fit decreasing.
    """

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        prices = Prices(jobs, room)
        if not _with_room(range(len(room.devices)), room, prices.smallest):
            return []
        by_device = _by_device(room.copy(), prices)
        if len(by_device) == len(jobs):
            return by_device
        by_job = _by_job(prices.order, room.copy(), prices)
        one, other = _sums(by_device, room, prices), _sums(by_job, room, prices)
        if abs(one[0] - other[0]) <= CLOSE * prices.whole * len(room.devices):
            return by_device if one[1] >= other[1] else by_job
        return by_device if one[0] > other[0] else by_job


def _sums(chosen: Sequence[Assignment], room: Room, prices: Prices) -> tuple[float, float]:
    """(size, value) of all jobs of an assignment."""
    size = value = 0.0
    for job, place in chosen:
        architecture = room.devices[place].architecture
        size += prices.sizes[architecture][job]
        value += prices.values[architecture][job]
    return size, value


def _by_device(room: Room, prices: Prices) -> list[Assignment]:
    """Fast devices first: the cores of a node do more there; then those with the most compute left."""
    chosen: list[Assignment] = []
    order, smallest = prices.order, prices.smallest
    places = _with_room(range(len(room.devices)), room, smallest)
    idle = IDLE * sum(device.oversubscribe for device in room.devices) // WHOLE // len(places)
    filled, subset = ("", 0), list[Candidate]()
    for place in sorted(
        places, key=lambda place: (smallest[room.devices[place].architecture].seconds, -room.compute[place])
    ):
        architecture, compute = room.devices[place].architecture, room.compute[place]
        if not room.fits(smallest[architecture], place):
            continue
        needs, values = prices.needs[architecture], prices.values[architecture]
        like = architecture, compute
        subset = _the_same(subset, order, needs) if like == filled else []
        if not subset:
            candidates = [(job, need) for job in order if (need := needs[job]) is not None and room.fits(need, place)]
            subset = best_subset(candidates, values, compute=compute, idle=idle)
        filled = like
        taken = set()
        for job, need in subset:
            if room.fits(need, place):
                room.take(need, place)
                chosen.append((job, place))
                taken.add(job)
        order = [job for job in order if job not in taken]
    return chosen + _by_job(order, room, prices)


def _the_same(subset: list[Candidate], order: list[int], needs: Sequence[Need | None]) -> list[Candidate]:
    """Other jobs that need what those of ``subset`` need; empty where there are not enough of them.

    What is best for one device is best for the next one like it; so many free devices cost little more than one.
    """
    wanted = Counter((need.compute, need.memory, need.cores) for _, need in subset)
    found: list[Candidate] = []
    for job in order:
        if len(found) == len(subset):
            break
        need = needs[job]
        if need is not None and wanted[size := (need.compute, need.memory, need.cores)]:
            wanted[size] -= 1
            found.append((job, need))
    return found if len(found) == len(subset) else []


def _by_job(order: Sequence[int], room: Room, prices: Prices) -> list[Assignment]:
    """In this order, each on the device where it is fastest, and with the most compute left; ``room`` is changed."""
    chosen: list[Assignment] = []
    architectures = [device.architecture for device in room.devices]
    places = _with_room(range(len(room.devices)), room, prices.smallest)
    for job in order:
        if not places:
            break
        best, best_rank = -1, (0.0, 0.0)
        for place in places:
            need = prices.needs[architectures[place]][job]
            if need is not None and room.fits(need, place):
                rank = -need.seconds, room.compute[place] / room.devices[place].oversubscribe
                if best < 0 or rank >= best_rank:
                    best, best_rank = place, rank
        if best >= 0:
            need = prices.needs[architectures[best]][job]
            assert need is not None, "it fits there"
            room.take(need, best)
            chosen.append((job, best))
            places = _with_room(places, room, prices.smallest)
    return chosen


def _with_room(places: Iterable[int], room: Room, smallest: Mapping[str, Need]) -> list[int]:
    """The devices that may have room for a job."""
    return [
        place
        for place in places
        if (least := smallest.get(room.devices[place].architecture)) is not None and room.fits(least, place)
    ]
