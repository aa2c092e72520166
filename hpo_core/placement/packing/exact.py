"""The exact solution of one decision, as a mixed integer program: for comparison and small cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpo_core.model.errors import HpoError
from hpo_core.placement.packing.fill import Fill
from hpo_core.placement.packing.first_fit import FirstFit
from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment
from hpo_core.placement.packing.room import Room

MOST_CORRECTIONS = 100
"""How often a decision is solved anew because a solution exceeds a limit by less than the solver's tolerance."""


class Exact:
    """Maximizes the compute assigned (equation 5 of HyperSack) within equations 1 to 4.

    The solver is HiGHS, which SciPy ships. (OR-tools, which the paper uses, cannot be installed beside the protobuf of
    today's MLflow.) Jobs with equal demands are one variable per device, so few kinds of jobs are solved fast. Of
    equal jobs the longest are taken. Jobs that add no compute begin where they fit.

    Args:
        seconds: time limit of one run of the solver. What it found by then is taken, or what ``fill`` chooses where
            that assigns more.

    Raises:
        HpoError: SciPy is not installed.
    """

    def __init__(self, *, seconds: float = 10.0) -> None:
        self.seconds = seconds
        self.is_optimal = False
        """Whether the last decision is proven to be the best."""
        self._optimize = _optimize()

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
        counts, self.is_optimal = _program(kinds, pairs, room).solve(self._optimize, self.seconds)
        left = room.copy()
        chosen = []
        for (kind, place), count in zip(pairs, counts, strict=True):
            demand, members = kinds[kind]
            need = demand[room.devices[place].architecture]
            for _ in range(count):
                if left.fits(need, place):
                    left.take(need, place)
                    chosen.append((members.pop(0), place))
        rest = sorted(place for _, members in kinds for place in members)
        others = FirstFit(decreasing=True).choose([jobs[place] for place in rest], left)
        chosen += [(rest[number], place) for number, place in others]
        if self.is_optimal:
            return chosen
        return max(chosen, Fill().choose(jobs, room), key=lambda one: _compute(jobs, room, one))


class _Program:
    """Whole numbers worth most within limits, some of which must not be reached together.

    Args:
        gains: what one of each is worth.
        most: the largest value of each.
    """

    def __init__(self, gains: Sequence[int], most: Sequence[int]) -> None:
        self._gains = gains
        self._most = most
        self._limits: list[tuple[Mapping[int, int], int]] = []
        self._steps: dict[tuple[int, int], int] = {}
        """By (variable, value): place of another one, which is 1 where the variable reaches the value."""
        self._forbidden: list[list[int]] = []

    def limit(self, amounts: Mapping[int, int], most: int) -> None:
        """The sum of these amounts, each times its variable, is at most ``most``."""
        needed = {variable: amount for variable, amount in amounts.items() if amount}
        if sum(amount * self._most[variable] for variable, amount in needed.items()) > most:
            self._limits.append((needed, most))

    def forbid(self, values: Mapping[int, int]) -> None:
        """These variables do not all reach these values."""
        first = len(self._gains)
        self._forbidden.append(
            [self._steps.setdefault((variable, value), first + len(self._steps)) for variable, value in values.items()]
        )

    def solve(self, optimize: Any, seconds: float) -> tuple[list[int], bool]:
        """The values, all 0 where none were found in time; and whether they are proven to be the best.

        The solver computes in floating point, and calls 80 GB and one byte within a limit of 80 GB. Its solution is
        checked in whole numbers. One that exceeds a limit is forbidden, and the program is solved again.
        """
        for _ in range(MOST_CORRECTIONS):
            found = self._solve_once(optimize, seconds)
            if found.x is None:
                break
            values = [round(value) for value in found.x[: len(self._gains)]]
            exceeded = [limit for limit in self._limits if _sum(limit[0], values) > limit[1]]
            if not exceeded:
                return values, found.status == 0
            for amounts, most in exceeded:
                self.forbid(_reduced(amounts, most, values))
        return [0] * len(self._gains), False

    def _solve_once(self, optimize: Any, seconds: float) -> Any:
        count = len(self._gains)
        size = count + len(self._steps)
        rows: list[tuple[Mapping[int, float], float]] = [
            ({variable: amount / most for variable, amount in amounts.items()}, 1.0) for amounts, most in self._limits
        ]
        for (variable, value), step in self._steps.items():
            rows.append(({variable: 1.0, step: value - 1.0 - self._most[variable]}, value - 1.0))
        rows += [(dict.fromkeys(steps, 1.0), len(steps) - 1.0) for steps in self._forbidden]
        matrix = np.zeros((len(rows), size))
        for number, (amounts, _) in enumerate(rows):
            for variable, amount in amounts.items():
                matrix[number, variable] = amount
        return optimize.milp(
            -np.array([*self._gains, *[0] * len(self._steps)], dtype=float),
            constraints=optimize.LinearConstraint(matrix, ub=[most for _, most in rows]) if rows else (),
            integrality=np.ones(size),
            bounds=optimize.Bounds(0, [*self._most, *[1] * len(self._steps)]),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )


def _program(kinds: Sequence[tuple[dict[str, Any], list[int]]], pairs: list[tuple[int, int]], room: Room) -> _Program:
    """One variable for each kind on each device that it fits on: how many of its jobs begin there."""
    needs = [kinds[kind][0][room.devices[place].architecture] for kind, place in pairs]
    program = _Program([need.compute for need in needs], [len(kinds[kind][1]) for kind, _ in pairs])
    for kind, (_, members) in enumerate(kinds):
        program.limit({at: 1 for at, pair in enumerate(pairs) if pair[0] == kind}, len(members))
    for place in range(len(room.devices)):
        here = [at for at, pair in enumerate(pairs) if pair[1] == place]
        program.limit({at: needs[at].compute for at in here}, room.compute[place])
        program.limit({at: needs[at].memory for at in here}, room.memory[place])
    for node, cores in enumerate(room.cores):
        program.limit({at: needs[at].cores for at, pair in enumerate(pairs) if room.node_of[pair[1]] == node}, cores)
    return program


def _sum(amounts: Mapping[int, int], values: Sequence[int]) -> int:
    return sum(amount * values[variable] for variable, amount in amounts.items())


def _reduced(amounts: Mapping[int, int], most: int, values: Sequence[int]) -> dict[int, int]:
    """Values as small as can be, none above the given ones, that exceed the limit together."""
    surplus = _sum(amounts, values) - most - 1
    found = {}
    for variable, amount in sorted(amounts.items(), key=lambda item: item[1]):
        fewer = min(values[variable], surplus // amount)
        surplus -= fewer * amount
        if values[variable] > fewer:
            found[variable] = values[variable] - fewer
    return found


def _compute(jobs: Sequence[WaitingJob], room: Room, chosen: Sequence[Assignment]) -> int:
    return sum(jobs[job].demand[room.devices[place].architecture].compute for job, place in chosen)


def _kinds(jobs: Sequence[WaitingJob]) -> list[tuple[dict[str, Any], list[int]]]:
    """Jobs that differ in run time at most: (their demand, their places, the longest first)."""
    found: dict[tuple[tuple[str, int, int, int], ...], list[int]] = {}
    for place, job in enumerate(jobs):
        key = tuple(sorted((name, n.compute, n.memory, n.cores) for name, n in job.demand.items()))
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
