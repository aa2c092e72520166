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
        for (kind, place), count in zip(pairs, np.rint(found.x[: len(pairs)]).astype(int), strict=True):
            demand, members = kinds[kind]
            need = demand[room.devices[place].architecture]
            for _ in range(count):
                if members and left.fits(need, place):  # the solver's own tolerances
                    left.take(need, place)
                    chosen.append((members.pop(0), place))
        return chosen

    def _solve(self, kinds: list[Any], pairs: list[tuple[int, int]], room: Room) -> Any:
        """One row for each kind, device and resource, node; one column for each kind on each device.

        Kinds of :attr:`Room.apart` have another column each, which is 1 where any of them is there.
        """
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
        members = [len(kinds[kind][1]) for kind, _ in pairs]
        compute = np.array([need.compute for need in needs], dtype=float)
        clashes = [
            (one, other)
            for one, (_, place) in enumerate(pairs)
            if (not_beside := room.not_beside(needs[one], place))
            for other in range(one, len(pairs))
            if pairs[other][1] == place and needs[other].kind in not_beside
        ]
        if clashes:
            apart = _rows_of(clashes, members)
            rows = np.vstack([np.hstack([rows, np.zeros((len(rows), len(pairs)))]), apart])
            is_clash = (apart[:, : len(pairs)].sum(axis=1) == 0).astype(float)
            most = np.concatenate([most, is_clash])
            compute = np.concatenate([compute, np.zeros(len(pairs))])
            own = {one for one, other in clashes if one == other}
            members = [1 if column in own else count for column, count in enumerate(members)] + [1] * len(pairs)
        return optimize.milp(
            -compute,
            constraints=optimize.LinearConstraint(rows, ub=most),
            integrality=np.ones(len(members)),
            bounds=optimize.Bounds(0, members),
            options={"time_limit": self.seconds, "mip_rel_gap": 0.0},
        )


def _rows_of(clashes: Sequence[tuple[int, int]], members: Sequence[int]) -> Any:
    """Rows for columns that are kept apart: a column is at most its members times its presence; of two one is there."""
    count = len(members)
    involved = sorted({column for clash in clashes for column in clash})
    two = [clash for clash in clashes if clash[0] != clash[1]]
    rows = np.zeros((len(involved) + len(two), 2 * count))
    for row, column in enumerate(involved):
        rows[row, column], rows[row, count + column] = 1, -members[column]
    for row, (one, other) in enumerate(two, len(involved)):
        rows[row, count + one] = rows[row, count + other] = 1
    return rows


def _kinds(jobs: Sequence[WaitingJob]) -> list[tuple[dict[str, Any], list[int]]]:
    """Jobs that differ in run time at most: (their demand, their places, the longest first)."""
    found: dict[tuple[tuple[str, int, int, int, str], ...], list[int]] = {}
    for place, job in enumerate(jobs):
        key = tuple(sorted((name, n.compute, n.memory, n.cores, n.kind) for name, n in job.demand.items()))
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
