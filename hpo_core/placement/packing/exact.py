"""The exact solution of one decision, by CP-SAT of OR-tools: for comparison and small cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.placement.packing.need import WaitingJob
from hpo_core.placement.packing.policy import Assignment
from hpo_core.placement.packing.room import Room


class Exact:
    """Maximizes the compute assigned (equation 5 of HyperSack) within equations 1 to 4.

    Jobs with equal demands are one variable per device, so few kinds of jobs are solved fast. Of equal jobs the
    longest are taken.

    Args:
        seconds: time limit of one decision; the best assignment found by then is taken.
        workers: threads of the solver.

    Raises:
        HpoError: OR-tools is not installed.
    """

    def __init__(self, *, seconds: float = 10.0, workers: int = 1) -> None:
        self.seconds = seconds
        self.workers = workers
        self.is_optimal = False
        """Whether the last decision is proven to be the best."""

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        cp_model = _cp_model()
        model = cp_model.CpModel()
        kinds = _kinds(jobs)
        counts: dict[tuple[int, int], Any] = {}
        for kind, (demand, members) in enumerate(kinds):
            for place, device in enumerate(room.devices):
                need = demand.get(device.architecture)
                if need is not None and room.fits(need, place):
                    counts[kind, place] = model.new_int_var(0, len(members), "")
            model.add(sum(counts.get((kind, place), 0) for place in range(len(room.devices))) <= len(members))

        def total(places: Sequence[int], what: str) -> Any:
            return sum(
                getattr(kinds[kind][0][room.devices[place].architecture], what) * count
                for (kind, place), count in counts.items()
                if place in places
            )

        for place in range(len(room.devices)):
            model.add(total([place], "compute") <= room.compute[place])
            model.add(total([place], "memory") <= room.memory[place])
        for node, cores in enumerate(room.cores):
            model.add(total([place for place, of in enumerate(room.node_of) if of == node], "cores") <= cores)
        model.maximize(total(range(len(room.devices)), "compute"))
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = self.seconds
        solver.parameters.num_workers = self.workers
        status = solver.solve(model)
        self.is_optimal = status == cp_model.OPTIMAL
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return []  # no time to find any
        chosen = []
        for (kind, place), count in counts.items():
            members = kinds[kind][1]
            begun = solver.value(count)
            chosen += [(job, place) for job in members[:begun]]
            del members[:begun]
        return chosen


def _kinds(jobs: Sequence[WaitingJob]) -> list[tuple[dict[str, Any], list[int]]]:
    """Jobs that differ in run time at most: (their demand, their places, the longest first)."""
    found: dict[tuple[tuple[str, int, int, int], ...], list[int]] = {}
    for place, job in enumerate(jobs):
        key = tuple(sorted((name, need.compute, need.memory, need.cores) for name, need in job.demand.items()))
        found.setdefault(key, []).append(place)
    for members in found.values():
        members.sort(key=lambda place: -jobs[place].seconds)
    return [(dict(jobs[members[0]].demand), members) for members in found.values()]


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise HpoError(
            "The packing policy 'exact' needs OR-tools, which is not installed. "
            "Install it with: pip install 'hpo-core[exact]'. The default policy, fill, needs nothing."
        ) from None
    return cp_model
