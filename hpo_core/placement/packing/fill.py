"""Fill: per device the waiting jobs that together leave the least of it idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hpo_core.placement.packing.need import Need, WaitingJob
from hpo_core.placement.packing.policy import Assignment, by_run_time
from hpo_core.placement.packing.room import Room

TOLERANCE = 4
"""Permille of a device that may stay idle rather than passing over a longer job."""
STEPS = 120
"""Steps of the search for a subset that memory and cores allow, at most."""
CONSIDERED = 40
"""Jobs that this search looks at."""

Candidate = tuple[int, Need]
"""(place among the waiting jobs, need on this device)."""


class Fill:
    """Fills each device with the subset of waiting jobs that uses most of its compute.

    Equation 5 of HyperSack asks for the largest sum of compute. On one device that is a subset sum: which sums the
    longest waiting jobs reach is one whole number, a bit for each sum, and each further job is one shift of it. The
    shortest list of longest jobs that reaches the device's capacity, but for :data:`TOLERANCE`, is enough: so long
    jobs begin early, as in the decreasing policies, and devices are full, as from an exact solver. Where memory or
    cores forbid the subset found, a bounded branch and bound looks for another. Devices with the most compute left
    come first.

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
    """By architecture: the least compute, memory and cores that any of the jobs needs; a device with less is full."""
    least: dict[str, list[int]] = {}
    for job in jobs:
        for name, need in job.demand.items():
            known = least.get(name)
            if known is None:
                least[name] = [need.compute, need.memory, need.cores]
                continue
            if need.compute < known[0]:
                known[0] = need.compute
            if need.memory < known[1]:
                known[1] = need.memory
            if need.cores < known[2]:
                known[2] = need.cores
    return {name: Need(compute=one, memory=two, cores=three) for name, (one, two, three) in least.items()}


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
    to_fill = Counter(room.node_of)
    for place in sorted(range(len(room.devices)), key=lambda place: -room.compute[place]):
        node = room.node_of[place]
        architecture = room.devices[place].architecture
        compute, memory, cores = room.compute[place], room.memory[place], room.cores[node]
        if share_cores:
            cores //= to_fill[node]
        to_fill[node] -= 1
        if not _with_room([place], room, smallest):
            continue
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
        subset = _largest_subset(candidates, compute)
        if not _is_within(subset, memory, cores):
            subset = _bounded_search(_without_surplus(candidates, compute, memory, cores), compute, memory, cores)
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


def _largest_subset(candidates: list[Candidate], compute: int) -> list[Candidate]:
    """The subset with the largest sum of compute within ``compute``, of as few first candidates as reach it."""
    mask = (1 << (compute + 1)) - 1
    enough = max(compute - TOLERANCE, 0)
    sums = 1
    reached = []
    for _, need in candidates:
        reached.append(sums)
        sums |= (sums << need.compute) & mask
        if sums >> enough:
            break
    total = sums.bit_length() - 1
    subset = []
    for place in range(len(reached) - 1, -1, -1):
        if not (reached[place] >> total) & 1:
            subset.append(candidates[place])
            total -= candidates[place][1].compute
    subset += [candidate for candidate in candidates if candidate[1].compute == 0]
    return subset


def _is_within(subset: list[Candidate], memory: int, cores: int) -> bool:
    return sum(need.memory for _, need in subset) <= memory and sum(need.cores for _, need in subset) <= cores


def _bounded_search(candidates: list[Candidate], compute: int, memory: int, cores: int) -> list[Candidate]:
    """The best subset within all three limits that :data:`STEPS` steps of branch and bound find.

    The first descent takes each candidate that still fits, in the order given; so the answer is never worse than that.
    """
    enough = compute - TOLERANCE
    best: list[Candidate] = []
    best_sum = -1
    steps = STEPS
    rest = [0] * (len(candidates) + 1)
    for place in range(len(candidates) - 1, -1, -1):
        rest[place] = rest[place + 1] + candidates[place][1].compute
    stack: list[tuple[int, int, int, int, tuple[int, ...]]] = [(0, compute, memory, cores, ())]
    while stack and steps and best_sum < enough:
        steps -= 1
        place, compute_left, memory_left, cores_left, subset = stack.pop()
        while place < len(candidates):
            if compute - compute_left + min(rest[place], compute_left) <= best_sum:
                break
            need = candidates[place][1]
            place += 1
            if need.compute <= compute_left and need.memory <= memory_left and need.cores <= cores_left:
                stack.append((place, compute_left, memory_left, cores_left, subset))  # without this one
                compute_left -= need.compute
                memory_left -= need.memory
                cores_left -= need.cores
                subset = (*subset, place - 1)
        if compute - compute_left > best_sum:
            best_sum = compute - compute_left
            best = [candidates[taken] for taken in subset]
    return best


def _without_surplus(candidates: list[Candidate], compute: int, memory: int, cores: int) -> list[Candidate]:
    """The first candidates: of equal needs no more than fit together, and :data:`CONSIDERED` at most."""
    count: Counter[tuple[int, int, int]] = Counter()
    kept = []
    for candidate in candidates:
        need = candidate[1]
        kind = need.compute, need.memory, need.cores
        count[kind] += 1
        number = count[kind]
        if number * need.compute <= compute and number * need.memory <= memory and number * need.cores <= cores:
            kept.append(candidate)
            if len(kept) == CONSIDERED:
                break
    return kept


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
