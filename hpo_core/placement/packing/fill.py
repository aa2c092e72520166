"""Fill: per device the waiting jobs that should begin early, of those that leave next to none of it idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpo_core.placement.packing.core_split import split_cores
from hpo_core.placement.packing.need import WHOLE, Need, WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment
from hpo_core.placement.packing.room import Room
from hpo_core.placement.packing.subset import TOLERANCE, Candidate, best_subset, is_within


class Fill:
    """Fills each device with the waiting jobs that are worth most together, of those that leave next to none idle.

    Equation 5 of HyperSack asks for the largest sum of compute. A decision may assign :data:`TOLERANCE` permille of
    the cluster's compute less than that, and chooses by :attr:`Need.value` among the subsets that remain: large and
    long jobs early. Otherwise small jobs are used up first, and large ones find no room beside others at the end.
    Where memory or cores forbid the subset found, a bounded branch and bound looks for another. Fast devices come
    first, then those with the most compute left.

    Where cores or memory are what runs out, the cores of each node are split among its devices so that they can hold
    the most compute, and the assignment with these parts is taken if it is better.
    """

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        smallest = _extreme(jobs, min)
        order = sorted(range(len(jobs)), key=lambda job: -jobs[job].value)
        places = _with_room(range(len(room.devices)), room, smallest)
        best, left = _fill(order, jobs, room, smallest, parts={})
        slack = _slack(room)
        if len(best) == len(jobs) or not _is_short_of_other_than_compute(jobs, left, slack):
            return best
        parts, possible = _parts(order, jobs, room, places)
        if possible <= sum(room.compute[place] - left.compute[place] for place in parts) + slack:
            return best
        chosen, left_then = _fill(order, jobs, room, smallest, parts=parts)
        return chosen if sum(left_then.compute) < sum(left.compute) - slack else best


def _slack(room: Room) -> int:
    """Permille of compute, of all devices, that a decision may leave idle."""
    return TOLERANCE * sum(device.oversubscribe for device in room.devices) // WHOLE


def _extreme(jobs: Sequence[WaitingJob], least_or_most: Callable[[list[Any]], Any]) -> dict[str, Need]:
    """By architecture: the least, or the most, of each that any of the jobs needs."""
    needs: dict[str, list[Need]] = {}
    for job in jobs:
        for name, need in job.demand.items():
            if name in needs:
                needs[name].append(need)
            else:
                needs[name] = [need]
    return {
        name: Need(
            compute=least_or_most([need.compute for need in some]),
            memory=least_or_most([need.memory for need in some]),
            cores=least_or_most([need.cores for need in some]),
            seconds=least_or_most([need.seconds for need in some]),
        )
        for name, some in needs.items()
    }


def _fill(
    order: list[int], jobs: Sequence[WaitingJob], room: Room, smallest: Mapping[str, Need], *, parts: Mapping[int, int]
) -> tuple[list[Assignment], Room]:
    """Assignments with ``order`` saying which jobs matter first, and the room that they leave.

    Args:
        smallest: see :func:`_extreme`.
        parts: by device, how much of its node's cores it may take; all of them where it is not named.
    """
    room = room.copy()
    chosen: list[Assignment] = []
    places = _with_room(range(len(room.devices)), room, smallest)
    spare: Counter[int] = Counter()
    filled, subset = ("", 0), list[Candidate]()
    idle = _slack(room) // max(len(places), 1)
    for place in sorted(places, key=lambda place: _rank(place, room, smallest)):
        node = room.node_of[place]
        architecture = room.devices[place].architecture
        compute, memory, cores = room.compute[place], room.memory[place], room.cores[node]
        if place in parts:
            cores = min(cores, spare[node] + parts[place])
        if not room.fits(smallest[architecture], place):
            continue
        like = architecture, compute
        subset = _the_same(subset, order, jobs, architecture) if like == filled and not room.apart else []
        if not subset or not is_within(subset, memory, cores):
            candidates = [
                (job, need)
                for job in order
                if (need := jobs[job].demand.get(architecture)) is not None
                and need.compute <= compute
                and need.memory <= memory
                and need.cores <= cores
                and (not room.apart or room.goes_with(need, place))
            ]
            if not candidates:
                continue
            subset = best_subset(candidates, compute=compute, memory=memory, cores=cores, idle=idle)
            while room.apart and (fewer := _without_clash(candidates, subset, room, place)):
                candidates = fewer
                subset = best_subset(candidates, compute=compute, memory=memory, cores=cores, idle=idle)
        filled = like
        for job, need in subset:
            room.take(need, place)
            chosen.append((job, place))
        if place in parts:
            spare[node] += parts[place] - sum(need.cores for _, need in subset)
        taken = {job for job, _ in subset}
        order = [job for job in order if job not in taken]
    chosen += _first_fit(order, jobs, room, smallest)
    return chosen, room


def _without_clash(
    candidates: list[Candidate], subset: list[Candidate], room: Room, place: int
) -> list[Candidate] | None:
    """The candidates that go with the first one of a subset that is kept apart from another of it; None: none is."""
    chosen = {job for job, _ in subset}
    for job, need in candidates:
        if job in chosen:
            apart = room.not_beside(need, place)
            if any(other != job and beside.kind in apart for other, beside in subset):
                return [one for one in candidates if one[0] == job or one[1].kind not in apart]
    return None


def _parts(order: list[int], jobs: Sequence[WaitingJob], room: Room, places: list[int]) -> tuple[dict[int, int], int]:
    """By device, its part of the cores of a node that has several to fill; the compute that they can then hold."""
    parts: dict[int, int] = {}
    possible = 0
    for node in dict.fromkeys(room.node_of[place] for place in places):
        of_node = [place for place in places if room.node_of[place] == node]
        if len(of_node) > 1:
            needs = {
                name: [need for job in order if (need := jobs[job].demand.get(name)) is not None]
                for name in {room.devices[place].architecture for place in of_node}
            }
            split, total = split_cores(
                [needs[room.devices[place].architecture] for place in of_node],
                [room.compute[place] for place in of_node],
                room.cores[node],
            )
            parts.update(zip(of_node, split, strict=True))
            possible += total
    return parts, possible


def _the_same(
    subset: list[Candidate], order: list[int], jobs: Sequence[WaitingJob], architecture: str
) -> list[Candidate]:
    """Other jobs that need what those of ``subset`` need; empty where there are not enough of them.

    What is best for one device is best for the next one like it; so many free devices cost little more than one.
    """
    wanted = Counter((need.compute, need.memory, need.cores) for _, need in subset)
    found: list[Candidate] = []
    for job in order:
        if len(found) == len(subset):
            break
        need = jobs[job].demand.get(architecture)
        if need is not None and wanted[size := (need.compute, need.memory, need.cores)]:
            wanted[size] -= 1
            found.append((job, need))
    return found if len(found) == len(subset) else []


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


def _is_short_of_other_than_compute(jobs: Sequence[WaitingJob], left: Room, slack: int) -> bool:
    """Whether more than ``slack`` is left of compute, and beside it too little memory or cores for some job."""
    if sum(left.compute) <= slack:
        return False
    most = _extreme(jobs, max)
    return any(
        left.compute[place] * len(left.devices) > slack
        and (need := most.get(device.architecture)) is not None
        and (left.memory[place] < need.memory or left.cores[left.node_of[place]] < need.cores)
        for place, device in enumerate(left.devices)
    )
