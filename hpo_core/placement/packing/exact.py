"""The exact solution of one decision, as a mixed integer program: for comparison and small cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpo_core.model.errors import HpoError
from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment
from hpo_core.placement.packing.room import Room

MEMORY_UNIT = 2**20
"""Bytes that the solver counts memory in: rounded up for jobs, down for devices."""


class Exact:
    """Maximizes the compute assigned (equation 5 of HyperSack) within equations 1 to 4.

    The solver is HiGHS, which SciPy ships. (OR-tools, which the paper uses, cannot be installed beside the protobuf of
    today's MLflow.) Jobs with equal demands are one variable per device, so few kinds of jobs are solved fast. Of
    equal jobs the longest are taken.

    Args:
        seconds: time limit of one decision; the best assignment found by then is taken.

    Raises:
        HpoError: SciPy is not installed.
    """

    def __init__(self, *, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.is_optimal = False
        """Whether the last decision is proven to be the best."""
        self._milp = _milp()

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        kinds = _kinds(jobs)
        pairs = [
            (kind, place)
            for kind, (demand, _) in enumerate(kinds)
            for place, device in enumerate(room.devices)
            if (need := demand.get(device.architecture)) is not None and room.fits(need, place)
        ]
        if not pairs:
            self.is_optimal = True
            return []
        found = self._solve(kinds, pairs, room)
        self.is_optimal = found.status == 0
        if found.x is None:
            return []  # no time to find any
        left = room.copy()
        chosen = []
        for (kind, place), count in zip(pairs, np.rint(found.x).astype(int), strict=True):
            demand, members = kinds[kind]
            need = demand[room.devices[place].architecture]
            for _ in range(count):
                if members and left.fits(need, place):  # the solver's own tolerances
                    left.take(need, place)
                    chosen.append((members.pop(0), place))
        return chosen

    def _solve(self, kinds: list[Any], pairs: list[tuple[int, int]], room: Room) -> Any:
        """One row for each kind, device and resource, node; one column for each kind on each device."""
        optimize = self._milp
        needs = [kinds[kind][0][room.devices[place].architecture] for kind, place in pairs]
        devices, nodes = len(room.devices), len(room.cores)
        rows = np.zeros((len(kinds) + 2 * devices + nodes, len(pairs)))
        most = np.array(
            [
                *(len(members) for _, members in kinds),
                *room.compute,
                *(memory // MEMORY_UNIT for memory in room.memory),
                *room.cores,
            ],
            dtype=float,
        )
        for column, ((kind, place), need) in enumerate(zip(pairs, needs, strict=True)):
            rows[kind, column] = 1
            rows[len(kinds) + place, column] = need.compute
            rows[len(kinds) + devices + place, column] = -(-need.memory // MEMORY_UNIT)
            rows[len(kinds) + 2 * devices + room.node_of[place], column] = need.cores
        return optimize.milp(
            -np.array([need.compute for need in needs], dtype=float),
            constraints=optimize.LinearConstraint(rows, ub=most),
            integrality=np.ones(len(pairs)),
            bounds=optimize.Bounds(0, [len(kinds[kind][1]) for kind, _ in pairs]),
            options={"time_limit": self.seconds, "mip_rel_gap": 0.0},
        )


def _kinds(jobs: Sequence[WaitingJob]) -> list[tuple[dict[str, Any], list[int]]]:
    """Jobs that differ in run time at most: (their demand, their places, the longest first)."""
    found: dict[tuple[tuple[str, int, int, int], ...], list[int]] = {}
    for place, job in enumerate(jobs):
        key = tuple(sorted((name, need.compute, need.memory, need.cores) for name, need in job.demand.items()))
        found.setdefault(key, []).append(place)
    for members in found.values():
        members.sort(key=lambda place: -jobs[place].seconds)
    return [(dict(jobs[members[0]].demand), members) for members in found.values()]


def _milp() -> Any:
    try:
        from scipy import optimize
    except ImportError:
        raise HpoError(
            "The packing policy 'exact' needs SciPy, which is not installed. "
            "Install it with: pip install 'hpo-core[samplers]'. The default policy, fill, needs nothing."
        ) from None
    return optimize
