"""The packing policies: first fit, worst fit, the exact solution, and their names; fill is in ``fill.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hpo_core.model.errors import HpoError
from hpo_core.packing.fill import Fill
from hpo_core.packing.room import WHOLE, Assignment, Demands, Room, WaitingJob


class PackingPolicy(Protocol):
    """Chooses which waiting jobs begin now, and where. It never waits, draws or does IO."""

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        """Assignments for some or all of ``jobs`` that ``room`` holds together; neither is changed.

        Args:
            jobs: the oldest first.
            room: what is left on each device.
        """
        ...


class _JobByJob(ABC):
    """Each job in turn goes to the device that a rule names, as long as one has room.

    Args:
        decreasing: jobs by decreasing expected run time; otherwise the oldest first.
    """

    def __init__(self, *, decreasing: bool) -> None:
        self.decreasing = decreasing

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        room = room.copy()
        chosen = []
        # "decreasing" is by expected completion time, not by size (Section IV-B); the older first among equals
        order = sorted(range(len(jobs)), key=lambda place: -jobs[place].seconds if self.decreasing else 0.0)
        for job in order:
            demand = jobs[job].demand
            if (place := self._place(demand, room)) is not None:
                room.take(demand[room.devices[place].architecture], place)
                chosen.append((job, place))
        return chosen

    @abstractmethod
    def _place(self, demand: Demands, room: Room) -> int | None:
        """The device for a job with this demand; None: no device has room."""


def _places_with_room(demand: Demands, room: Room) -> Iterator[int]:
    for place, device in enumerate(room.devices):
        need = demand.get(device.architecture)
        if need is not None and room.fits(need, place):
            yield place


class FirstFit(_JobByJob):
    """Each job goes to the first device with room for it (Algorithm 1: FF; decreasing: FFD)."""

    def _place(self, demand: Demands, room: Room) -> int | None:
        return next(_places_with_room(demand, room), None)


class WorstFit(_JobByJob):
    """Each job goes to the device with the most compute left; the last of several with as much (Algorithm 2: WF, WFD).

    Constraint 1 compares r_nm * C_nm with the job's compute, constraint 4 compares C_nm alone. With equation 2 (the
    sum of the jobs stays within r_nm * C_nm) a placed job lowers C_nm by its compute / r_nm. So what is compared is
    what is left divided by the oversubscription ratio, and the last device with the largest wins, for the comparison
    is ``>=``.
    """

    def _place(self, demand: Demands, room: Room) -> int | None:
        best, most, ratio = None, 0, WHOLE
        for place in _places_with_room(demand, room):
            left, own = room.compute[place], room.devices[place].oversubscribe
            if left * ratio >= most * own:  # left / its ratio >= most / ratio, in whole numbers
                best, most, ratio = place, left, own
        return best


PARTS = 100_000
"""Memory and cores count in such parts of what is left, rounded up: the solver cannot tell 80 GB from a byte more."""


class ExactPacking:
    """Maximizes the compute assigned (equation 5 of HyperSack) within equations 1 to 4 and the slots of each device.

    The solver is HiGHS, which SciPy ships. (OR-tools, which the paper uses, cannot be installed beside the protobuf of
    today's MLflow.) Jobs with equal demands are one variable per device, so few kinds of jobs are solved fast. Of
    equal jobs the longest are taken. Jobs that add no compute begin where they fit. What ``fill`` chooses is taken
    where that assigns more: the solver ran out of time, or jobs fill a device to the byte.

    Args:
        seconds: time limit of the solver.

    Raises:
        HpoError: SciPy is not installed.
    """

    def __init__(self, *, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.is_optimal = False
        """True if the solver proved that its last solution is the best."""
        self._optimize = _optimize()

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        kinds = _kinds(jobs)
        pairs = [
            (kind, place)
            for kind, (demand, _) in enumerate(kinds)
            for place, device in enumerate(room.devices)
            if (need := demand.get(device.architecture)) is not None and room.fits(need, place)
        ]
        self.is_optimal = True
        if not pairs:
            return []
        left = room.copy()
        chosen = []
        for (kind, place), count in zip(pairs, self._solve(kinds, pairs, room), strict=True):
            demand, members = kinds[kind]
            need = demand[room.devices[place].architecture]
            for _ in range(count):
                left.take(need, place)
                chosen.append((members.pop(0), place))
        rest = sorted(place for _, members in kinds for place in members)
        others = FirstFit(decreasing=True).choose([jobs[place] for place in rest], left)
        chosen += [(rest[number], place) for number, place in others]
        return max(chosen, Fill().choose(jobs, room), key=lambda one: _compute(jobs, room, one))

    def _solve(self, kinds: list[_Kind], pairs: list[tuple[int, int]], room: Room) -> list[int]:
        # For each (kind, place): how many of its jobs begin there; zeros where nothing was found in time.
        needs = [kinds[kind][0][room.devices[place].architecture] for kind, place in pairs]
        rows: list[dict[int, int]] = []
        limits: list[int] = []

        def limit(amounts: dict[int, int], most: int) -> None:
            rows.append(amounts)
            limits.append(most)

        for kind, (_, members) in enumerate(kinds):
            limit({at: 1 for at, pair in enumerate(pairs) if pair[0] == kind}, len(members))
        for place in range(len(room.devices)):
            here = [at for at, pair in enumerate(pairs) if pair[1] == place]
            limit({at: needs[at].compute for at in here}, room.compute[place])
            limit({at: _parts(needs[at].memory, room.memory[place]) for at in here}, PARTS)
            limit({at: needs[at].slots for at in here}, room.slots[place])
        for node, cores in enumerate(room.cores):
            here = [at for at, pair in enumerate(pairs) if room.node_of[pair[1]] == node]
            limit({at: _parts(needs[at].cores, cores) for at in here}, PARTS)
        matrix = np.zeros((len(rows), len(pairs)))
        for number, amounts in enumerate(rows):
            for variable, amount in amounts.items():
                matrix[number, variable] = amount
        found = self._optimize.milp(
            -np.array([need.compute for need in needs], dtype=float),
            constraints=self._optimize.LinearConstraint(matrix, ub=limits),
            integrality=np.ones(len(pairs)),
            bounds=self._optimize.Bounds(0, [len(kinds[kind][1]) for kind, _ in pairs]),
            options={"time_limit": self.seconds, "mip_rel_gap": 0.0},
        )
        self.is_optimal = found.status == 0
        return [0] * len(pairs) if found.x is None else [round(value) for value in found.x]


_Kind = tuple[dict[str, Any], list[int]]
"""(demand, places of the jobs that have it, the longest first)."""


def _parts(amount: int, whole: int) -> int:
    return -(-amount * PARTS // whole) if amount else 0


def _compute(jobs: Sequence[WaitingJob], room: Room, chosen: Sequence[Assignment]) -> int:
    return sum(jobs[job].demand[room.devices[place].architecture].compute for job, place in chosen)


def _kinds(jobs: Sequence[WaitingJob]) -> list[_Kind]:
    found: dict[tuple[tuple[str, int, int, int, int], ...], list[int]] = {}
    for place, job in enumerate(jobs):
        key = tuple(sorted((name, n.slots, n.compute, n.memory, n.cores) for name, n in job.demand.items()))
        found.setdefault(key, []).append(place)
    for members in found.values():
        members.sort(key=lambda place: -jobs[place].seconds)
    return [(dict(jobs[members[0]].demand), members) for members in found.values()]


def _optimize() -> Any:
    try:
        from scipy import optimize
    except ImportError:
        raise HpoError(
            "The packing policy 'exact' needs SciPy, which is not installed. "
            "Install it with: pip install 'hpo-core[samplers]'. The default policy, fill, needs nothing."
        ) from None
    return optimize


POLICIES: dict[str, Callable[[], PackingPolicy]] = {
    "fill": Fill,
    "first_fit": lambda: FirstFit(decreasing=False),
    "first_fit_decreasing": lambda: FirstFit(decreasing=True),
    "worst_fit": lambda: WorstFit(decreasing=False),
    "worst_fit_decreasing": lambda: WorstFit(decreasing=True),
    "exact": lambda: ExactPacking(seconds=1.0),
}
"""By the name that ``packing.policy`` gives."""
