"""Fill: the better of two assignments, device by device or job by job, by the resource that runs out first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing.room import WHOLE, Assignment, Room, WaitingJob

SHARPNESS = 8
"""Exponent of a resource's price: one that the jobs need 10 % less of than of the scarcest costs less than half."""
HASTE = 5.0
"""Weight of the part that a job takes of the time that is left."""
_MOST_HASTE = 20.0
_LEAST_SECONDS = 1e-3


class Prices:
    """Sizes and values of waiting jobs. Memory, cores and slots count as far as they run out.

    The relaxation: jobs could be cut anywhere. The work of all waiting jobs in each resource (compute, memory, cores,
    slots, each times seconds) over what the cluster has of it is the time that it would take; the longest of these is
    the time that is left, and the resource is the scarce one. A resource's price is its time over the longest, to the
    power of :data:`SHARPNESS`.

    A job's value is size * size * seconds * exp(:data:`HASTE` * (seconds / time left) ** 2). A large job only finds
    room while much of a device is free, and small ones fill any gap later. A job that takes much of the time that is
    left should begin first, whatever its size.

    Args:
        jobs: that wait.
        room: what is left on the devices.
    """

    def __init__(self, jobs: Sequence[WaitingJob], room: Room) -> None:
        devices: Counter[str] = Counter()
        there: dict[str, Any] = {}
        on_node = Counter(room.node_of)
        for place, device in enumerate(room.devices):
            cores = room.all_cores[room.node_of[place]] / on_node[room.node_of[place]]
            amounts = np.array([device.oversubscribe, device.memory, cores, device.most], dtype=float)
            there[device.architecture] = there.get(device.architecture, 0.0) + amounts
            devices[device.architecture] += 1
        self.needs: dict[str, list[Demand | None]] = {}
        """By architecture and job; None: it cannot run there. Without architectures where none can."""
        self.smallest: dict[str, Demand] = {}
        """By architecture: the least of each that any of the jobs needs."""
        tables: dict[str, Any] = {}
        for name in there:
            needs = [job.demand.get(name) for job in jobs]
            rows = np.array(
                [
                    (0, 0, 0, 0, 0.0)
                    if need is None
                    else (need.compute, need.memory, need.cores, need.slots, need.seconds)
                    for need in needs
                ],
                dtype=float,
            )
            known = rows if None not in needs else rows[[need is not None for need in needs]]
            if len(known):
                compute, memory, cores, slots, seconds = known.min(axis=0).tolist()
                least = Demand(int(slots), int(compute), int(memory), int(cores), seconds)
                self.needs[name], self.smallest[name], tables[name] = needs, least, rows
                rows[:, -1] = np.maximum(rows[:, -1], _LEAST_SECONDS)
        times = {
            name: (rows[:, :-1] * rows[:, -1:]).sum(axis=0) / np.maximum(there[name], 1.0)
            for name, rows in tables.items()
        }
        total = np.maximum(sum(times.values(), np.zeros(4)), 1e-9)
        prices = (total / total.max()) ** SHARPNESS
        self.whole = float(prices.sum())
        """Size of all of a device."""
        left = 1 / sum((1 / max(time.max(), 1e-9) for time in times.values()), 0.0) if times else 0.0
        taken = 1 - sum(room.compute) / max(1, sum(device.oversubscribe for device in room.devices))
        self.sizes: dict[str, list[float]] = {}
        """By architecture and job: the parts of a mean device that it takes, each times its price."""
        self.values: dict[str, list[float]] = {}
        """By architecture and job: what it is worth that the job begins now rather than later."""
        most = np.zeros(len(jobs))
        for name, rows in tables.items():
            seconds = rows[:, -1]
            rates = prices * devices[name] / np.maximum(there[name], 1.0)
            sizes = _rounded(sum(rows[:, kind] * rate for kind, rate in enumerate(rates)))
            haste = (
                HASTE * (seconds / (left + max(taken, 0.0) * seconds / 2)) ** 2
            )  # half of what runs is still to come
            values = _rounded(sizes * sizes * seconds * np.exp(np.minimum(haste, _MOST_HASTE)))
            self.sizes[name], self.values[name] = sizes.tolist(), values.tolist()
            most = np.maximum(most, values)
        self.order: list[int] = np.argsort(-most, kind="stable").tolist()
        """Places of the jobs, the one that is worth most on any device first; the older one among equals."""


def _rounded(amounts: Any) -> Any:
    # To nine digits: processors differ in the last ones, and equal jobs must be equal on all of them.
    mantissa, exponent = np.frexp(amounts)
    return np.ldexp(np.round(mantissa, 9), exponent)


MOST_ITEMS = 96
"""Jobs that the knapsack of one device is filled from."""

Candidate = tuple[int, Demand]
"""(place among the waiting jobs, need on this device)."""


def best_subset(candidates: list[Candidate], values: Sequence[float], *, compute: int, idle: int) -> list[Candidate]:
    """The candidates worth most together, of those that leave at most ``idle`` more compute idle than must be.

    A knapsack by dynamic programming over the sums of compute. In the order of the candidates.

    Args:
        candidates: the first matter most.
        values: what each waiting job is worth on this device.
        compute: permille that are left.
        idle: permille.
    """
    items = _items(candidates, compute)
    worth = np.full(compute + 1, -np.inf)
    worth[0] = 0.0
    taken = []
    for job, need in items:
        with_it = worth[: -need.compute] + values[job]
        is_better = with_it > worth[need.compute :]
        np.copyto(worth[need.compute :], with_it, where=is_better)
        taken.append(is_better)
    most = int(np.flatnonzero(worth >= 0)[-1])
    least = max(most - idle, 0)
    total = least + int(worth[least : most + 1].argmax())
    subset = []
    for candidate, is_better in zip(reversed(items), reversed(taken), strict=True):
        rest = total - candidate[1].compute
        if rest >= 0 and is_better[rest]:
            subset.append(candidate)
            total = rest
    return subset[::-1]


def _items(candidates: list[Candidate], compute: int) -> list[Candidate]:
    # Return the first candidates of each size of compute, as many as fit; about :data:`MOST_ITEMS` in all.
    for width in (1, 4, 16, 64):
        count: Counter[int] = Counter()
        items = []
        for candidate in candidates:
            size = candidate[1].compute
            if size and (count[size // width] + 1) * size <= compute:
                count[size // width] += 1
                items.append(candidate)
        if len(items) <= MOST_ITEMS:
            break
    return items


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
    size = value = 0.0
    for job, place in chosen:
        architecture = room.devices[place].architecture
        size += prices.sizes[architecture][job]
        value += prices.values[architecture][job]
    return size, value


def _by_device(room: Room, prices: Prices) -> list[Assignment]:
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


def _the_same(subset: list[Candidate], order: list[int], needs: Sequence[Demand | None]) -> list[Candidate]:
    # Other jobs that need what those of ``subset`` need; empty where there are not enough of them.
    # What is best for one device is best for the next one like it; so many free devices cost little more than one.
    wanted = Counter((need.slots, need.compute, need.memory, need.cores) for _, need in subset)
    found: list[Candidate] = []
    for job in order:
        if len(found) == len(subset):
            break
        need = needs[job]
        if need is not None and wanted[size := (need.slots, need.compute, need.memory, need.cores)]:
            wanted[size] -= 1
            found.append((job, need))
    return found if len(found) == len(subset) else []


def _by_job(order: Sequence[int], room: Room, prices: Prices) -> list[Assignment]:
    # In this order, each on the device where it is fastest, and with the most compute left; `room` is changed.
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


def _with_room(places: Iterable[int], room: Room, smallest: Mapping[str, Demand]) -> list[int]:
    return [
        place
        for place in places
        if (least := smallest.get(room.devices[place].architecture)) is not None and room.fits(least, place)
    ]
