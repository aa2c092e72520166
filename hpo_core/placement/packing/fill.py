"""Fill: per device the waiting jobs that together leave the least of it idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hpo_core.placement.packing.need import Need, WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment, by_run_time
from hpo_core.placement.packing.room import Room
from hpo_core.placement.packing.subset import largest_subset


class Fill:
    """Fills each device with the subset of waiting jobs that uses most of its compute.

    Equation 5 of HyperSack asks for the largest sum of compute. On one device that is a subset sum: which sums the
    longest waiting jobs reach is one whole number, a bit for each sum, and each further job is one shift of it. The
    shortest list of longest jobs that reaches the device's capacity, but for a small tolerance, is enough: so long
    jobs begin early, as in the decreasing policies, and devices are full, as from an exact solver. Where memory or
    cores forbid the subset found, a bounded branch and bound looks for another. Fast devices come first, then those
    with the most compute left.

    Where cores or memory are what runs out, the order by run time would spend them on few jobs; the same is then done
    in order of compute per share of what is scarce, and the better of both is taken.
    """

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        smallest = _smallest(jobs)
        order = by_run_time(jobs)
        best, left = _fill(order, jobs, room, smallest, share_cores=False)
        if len(best) == len(jobs) or not _is_short_of_other_than_compute(jobs, best, left):
            return best
        share = _compute_per_share(room)
        scarce = sorted(order, key=lambda job: -share(jobs[job]))
        for other, share_cores in ((scarce, False), (order, True), (scarce, True)):
            chosen, left_then = _fill(other, jobs, room, smallest, share_cores=share_cores)
            if sum(left_then.compute) < sum(left.compute):
                best, left = chosen, left_then
        return best


def _smallest(jobs: Sequence[WaitingJob]) -> dict[str, Need]:
    """By architecture: the least of each that any of the jobs needs; a device with less room is full."""
    least: dict[str, list[float]] = {}
    for job in jobs:
        for name, need in job.demand.items():
            known = least.get(name)
            if known is None:
                least[name] = [need.compute, need.memory, need.cores, need.seconds]
                continue
            if need.compute < known[0]:
                known[0] = need.compute
            if need.memory < known[1]:
                known[1] = need.memory
            if need.cores < known[2]:
                known[2] = need.cores
            if need.seconds < known[3]:
                known[3] = need.seconds
    return {
        name: Need(compute=int(compute), memory=int(memory), cores=int(cores), seconds=seconds)
        for name, (compute, memory, cores, seconds) in least.items()
    }


def _fill(
    order: list[int], jobs: Sequence[WaitingJob], room: Room, smallest: Mapping[str, Need], *, share_cores: bool
) -> tuple[list[Assignment], Room]:
    """Assignments with ``order`` saying which jobs matter first, and the room that they leave.

    Args:
        smallest: see :func:`_smallest`.
        share_cores: a device takes no more of the cores that its node has left than its part among the node's devices
            that are still to be filled.
    """
    room = room.copy()
    chosen: list[Assignment] = []
    places = _with_room(range(len(room.devices)), room, smallest)
    to_fill = Counter(room.node_of[place] for place in places)
    for place in sorted(places, key=lambda place: _rank(place, room, smallest)):
        node = room.node_of[place]
        architecture = room.devices[place].architecture
        compute, memory, cores = room.compute[place], room.memory[place], room.cores[node]
        if share_cores:
            cores //= to_fill[node]
        to_fill[node] -= 1
        candidates = [
            (job, need)
            for job in order
            if (need := jobs[job].demand.get(architecture)) is not None
            and need.compute <= compute
            and need.memory <= memory
            and need.cores <= cores
        ]
        if not candidates:
            continue
        subset = largest_subset(candidates, compute=compute, memory=memory, cores=cores)
        for job, need in subset:
            room.take(need, place)
            chosen.append((job, place))
        taken = {job for job, _ in subset}
        order = [job for job in order if job not in taken]
    chosen += _first_fit(order, jobs, room, smallest)
    return chosen, room


def _first_fit(
    order: list[int], jobs: Sequence[WaitingJob], room: Room, smallest: Mapping[str, Need]
) -> list[Assignment]:
    """Jobs that fit beside the subsets all the same: they need next to no compute, or others' cores were left."""
    chosen: list[Assignment] = []
    places = _with_room(range(len(room.devices)), room, smallest)
    for job in order:
        if not places:
            break
        for place in places:
            need = jobs[job].demand.get(room.devices[place].architecture)
            if need is not None and room.fits(need, place):
                room.take(need, place)
                chosen.append((job, place))
                places = _with_room(places, room, smallest)
                break
    return chosen


def _with_room(places: Iterable[int], room: Room, smallest: Mapping[str, Need]) -> list[int]:
    """The devices that may have room for a job."""
    return [
        place
        for place in places
        if (least := smallest.get(room.devices[place].architecture)) is not None and room.fits(least, place)
    ]


def _rank(place: int, room: Room, smallest: Mapping[str, Need]) -> tuple[float, int]:
    """Fast devices first: the cores of a node do more there; then those with the most compute left."""
    return smallest[room.devices[place].architecture].seconds, -room.compute[place]


def _is_short_of_other_than_compute(jobs: Sequence[WaitingJob], chosen: list[Assignment], left: Room) -> bool:
    """Whether a job that still waits has compute enough somewhere, but not memory or cores."""
    placed = {job for job, _ in chosen}
    most: dict[str, int] = {}
    for place, device in enumerate(left.devices):
        most[device.architecture] = max(most.get(device.architecture, 0), left.compute[place])
    return any(
        need.compute <= most.get(architecture, -1)
        for place, job in enumerate(jobs)
        if place not in placed
        for architecture, need in job.demand.items()
    )


def _compute_per_share(room: Room) -> Callable[[WaitingJob], float]:
    """A job's compute for each share of a device's memory, or of its part of the cores, whichever is larger."""
    memory: dict[str, int] = {}
    cores: dict[str, float] = {}
    devices = Counter(room.node_of)
    for place, device in enumerate(room.devices):
        node = room.node_of[place]
        memory[device.architecture] = max(memory.get(device.architecture, 1), room.memory[place])
        cores[device.architecture] = max(cores.get(device.architecture, 1.0), room.cores[node] / devices[node])

    def of(job: WaitingJob) -> float:
        shares = [
            need.compute / max(need.memory / memory[name], need.cores / cores[name], 1e-9)
            for name, need in job.demand.items()
            if name in memory
        ]
        return max(shares, default=0.0)

    return of
