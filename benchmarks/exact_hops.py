"""The shortest schedule of one epoch, as a mixed integer program: for comparison and small cases."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from played_hops import play

from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.errors import HpoError

Place = tuple[int, int]
"""(configuration, partition) of a unit."""
NODES = 2000
"""Nodes of the solver's search, at most: a limit in seconds would make the answer depend on the machine."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """When each unit starts."""

    starts: dict[Place, float]
    makespan: float
    is_optimal: bool
    """Whether no schedule is proven to be shorter."""


def solve(seconds: Mapping[Place, float], *, workers: Mapping[int, int] | None = None, nodes: int = NODES) -> Plan:
    """The shortest schedule of these units, each partition on one worker (Section 5.1 of Cerebro).

    The solver is HiGHS, which SciPy ships. It starts from what the policy ``remaining`` reaches: where that is the
    lower bound, nothing is left to solve.

    Args:
        seconds: of each unit.
        workers: by partition, the number of its worker; each has its own by default.

    Raises:
        HpoError: SciPy is not installed.

    >>> plan = solve({(0, 0): 1.0, (0, 1): 2.0, (1, 0): 3.0, (1, 1): 1.0})
    >>> plan.makespan, plan.is_optimal
    (4.0, True)
    """
    worker_of = {partition: (workers or {}).get(partition, partition) for _, partition in seconds}
    found = _by_remaining(seconds, worker_of)
    totals: dict[tuple[str, int], float] = {}
    for (configuration, partition), length in seconds.items():
        for key in (("configuration", configuration), ("worker", worker_of[partition])):
            totals[key] = totals.get(key, 0.0) + length
    bound = max(totals.values())
    if found.makespan <= bound * (1 + 1e-9):
        return msgspec.structs.replace(found, is_optimal=True)
    units = list(seconds)
    pairs = [(a, b) for a, b in combinations(range(len(units)), 2)
             if units[a][0] == units[b][0] or worker_of[units[a][1]] == worker_of[units[b][1]]]  # fmt: skip
    result = _solve(list(seconds.values()), pairs, (bound, found.makespan), nodes)
    if result.x is None or result.x[0] > found.makespan:
        return msgspec.structs.replace(found, is_optimal=result.status == 2)  # 2: none is shorter
    starts = {unit: float(start) for unit, start in zip(units, result.x[1:], strict=False)}
    return Plan(starts=starts, makespan=float(result.x[0]), is_optimal=result.status == 0)


def _by_remaining(seconds: Mapping[Place, float], worker_of: Mapping[int, int]) -> Plan:
    count = 1 + max(worker_of)
    schedule = HopSchedule(count)
    for worker in sorted(set(worker_of.values())):
        schedule.worker_joined(str(worker), [partition for partition in worker_of if worker_of[partition] == worker])
    for configuration in dict.fromkeys(configuration for configuration, _ in seconds):
        visited = [partition for partition in range(count) if (configuration, partition) not in seconds]
        cost = max(seconds.get((configuration, place), 0.0) for place in range(count))
        schedule.times.observe(configuration, "", 0, cost)
        schedule.add(configuration, to=1, visited=visited)
    played = play(schedule, lambda unit: seconds[unit.configuration, unit.partition])
    starts = {(each.unit.configuration, each.unit.partition): each.begin for each in played.units}
    return Plan(starts=starts, makespan=played.makespan, is_optimal=False)


def _solve(lengths: list[float], pairs: list[tuple[int, int]], limits: tuple[float, float], nodes: int) -> Any:
    """Columns: the makespan, a start for each unit, for each pair that may not overlap whether the first is first.

    Rows: two for each pair (2.a to 2.d of the paper, the large value V being the makespan known), and one for each
    unit (2.f).
    """
    try:
        from scipy import optimize, sparse
    except ImportError:
        raise HpoError(
            "The exact schedule of units needs SciPy, which is not installed. "
            "Install it with: pip install 'hpo-core[samplers]'. The default policy, remaining, needs nothing."
        ) from None
    count, large = len(lengths), limits[1]
    rows = sparse.lil_matrix((2 * len(pairs) + count, 1 + count + len(pairs)))
    least = np.zeros(rows.shape[0])
    for number, (a, b) in enumerate(pairs):
        column = 1 + count + number
        for row, (one, other, sign) in enumerate([(a, b, -large), (b, a, large)], start=2 * number):
            rows[row, 1 + other], rows[row, 1 + one], rows[row, column] = 1, -1, sign
            least[row] = lengths[one] - (large if sign < 0 else 0.0)
    for unit, length in enumerate(lengths):
        row = 2 * len(pairs) + unit
        rows[row, 0], rows[row, 1 + unit], least[row] = 1, -1, length
    highest = [limits[1], *(large - length for length in lengths), *[1] * len(pairs)]
    return optimize.milp(
        [1.0, *[0.0] * (count + len(pairs))],
        constraints=optimize.LinearConstraint(rows.tocsr(), lb=least),
        integrality=[0] * (1 + count) + [1] * len(pairs),
        bounds=optimize.Bounds([limits[0], *[0] * (count + len(pairs))], highest),
        options={"node_limit": nodes, "time_limit": 60.0, "mip_rel_gap": 1e-6},
    )
