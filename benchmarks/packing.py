"""Packing policies: occupancy of the first decision, makespan, and milliseconds a decision (HyperSack, Table III).

Workloads like the paper's Table II: SP3 is one model (96 jobs, 4 GPUs), SP4 six models (384 jobs, 16 GPUs), each with
four batch sizes and many learning rates. Utilization and run time belong to model and batch size and are drawn anew
for each seed around the paper's range (22 to 50 % of an A100); actual run times differ from expected ones by up to
5 %. ``heterogeneous``: the last quarter of the GPUs is twice as fast. ``cores``: jobs need 2 to 8 cores, and the nodes
have too few for all.

``makespan``: virtual seconds until the last job has ended, as a ratio to a lower bound (``packing_bound.py``): the time
in which jobs that could be cut anywhere would be done by sets that fit on a device, and within the cores of a node.
``one per device`` is the paper's baseline; it
does not slow down by sharing, nor do the others: this measures the choice alone. ``occupancy`` is the compute that
the first decision assigns, ``short`` by how much the worst seed falls below the exact solver (within
``--exact-seconds``; ``proven``: for so many seeds it is the best). Processor time per decision, over all decisions.

    python benchmarks/packing.py [--seeds 25]
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import result_file
from packing_bound import lower_bound

from hpo_core.placement.packing.best_fit import BestFit
from hpo_core.placement.packing.exact import Exact
from hpo_core.placement.packing.fill import Fill
from hpo_core.placement.packing.first_fit import FirstFit
from hpo_core.placement.packing.need import Need, WaitingJob
from hpo_core.placement.packing.packing_policy import Assignment, PackingPolicy
from hpo_core.placement.packing.room import Room, SharedDevice
from hpo_core.placement.packing.worst_fit import WorstFit

MODELS = {
    "ResNet-18": (300, 400),
    "ShuffleNet": (220, 500),
    "MobileNet": (280, 650),
    "ViT-Tiny": (330, 620),
    "DeiT-Tiny": (330, 640),
    "ResNet-34": (420, 620),
}
"""(permille of an A100, seconds), in the middle."""
BATCHES = {64: (0.8, 1.5), 128: (0.95, 1.15), 256: (1.1, 1.0), 512: (1.25, 0.95)}
"""(share of the utilization, share of the run time)."""
SPACES = {"SP3": (1, 24, 4), "SP4": (6, 16, 16)}
"""(models, learning rates, GPUs)."""
GPUS_PER_NODE = 4
VARIANTS = {
    "alike": (False, False),
    "heterogeneous": (True, False),
    "cores": (False, True),
    "heterogeneous, cores": (True, True),
}


class OnePerDevice:
    """The baseline: a device holds one job."""

    def choose(self, jobs: Sequence[WaitingJob], room: Room) -> list[Assignment]:
        free = [place for place, device in enumerate(room.devices) if room.compute[place] == device.oversubscribe]
        return list(zip(range(len(jobs)), free, strict=False))


POLICIES: dict[str, PackingPolicy] = {
    "one per device": OnePerDevice(),
    "FF": FirstFit(decreasing=False),
    "FFD": FirstFit(decreasing=True),
    "WF": WorstFit(decreasing=False),
    "WFD": WorstFit(decreasing=True),
    "best fit": BestFit(),
    "fill": Fill(),
}


def problem(space: str, variant: str, seed: int) -> tuple[list[WaitingJob], Room, dict[object, float]]:
    """Jobs in the order of their grid, the cluster, and by job how much longer it takes than expected."""
    rng = random.Random(f"{space} {seed}")
    models, rates, gpus = SPACES[space]
    heterogeneous, cores_bind = VARIANTS[variant]
    jobs = []
    for compute, seconds in list(MODELS.values())[:models]:
        for batch, (of_compute, of_seconds) in BATCHES.items():
            share = round(compute * of_compute * rng.uniform(0.85, 1.15))
            expected = seconds * of_seconds * rng.uniform(0.85, 1.15)
            memory = int((2 + batch / 64) * 1e9 * rng.uniform(0.8, 1.2))
            cores = 1000 * (rng.choice([2, 4, 6, 8]) if cores_bind else 2)
            slow = Need(compute=share, memory=memory, cores=cores, seconds=expected)
            fast = Need(compute=share, memory=memory, cores=cores, seconds=expected / 2)
            jobs += [{"A100": slow, "H100": fast}] * rates
    rng.shuffle(jobs)
    waiting = [WaitingJob(key, demand) for key, demand in enumerate(jobs)]
    devices = [
        SharedDevice(
            name=f"gpu-{number}",
            node=f"node-{number // GPUS_PER_NODE}",
            architecture="H100" if heterogeneous and number >= gpus * 3 // 4 else "A100",
            memory=80_000_000_000,
        )
        for number in range(gpus)
    ]
    nodes = {device.node for device in devices}
    room = Room(devices, dict.fromkeys(nodes, 48_000 if cores_bind else 88_000))
    return waiting, room, {job.key: rng.uniform(0.95, 1.05) for job in waiting}


def play(
    jobs: Sequence[WaitingJob], room: Room, longer: Mapping[object, float], policy: PackingPolicy
) -> dict[str, float]:
    """One workload to its end: a decision at the start and whenever a job ended."""
    room = room.copy()
    total = sum(room.compute)
    waiting = list(jobs)
    ends: list[tuple[float, int, Need, int]] = []
    now = spent = occupancy = 0.0
    decisions = begun_in_all = 0
    while waiting or ends:
        if waiting:
            start = time.process_time()
            chosen = policy.choose(waiting, room)
            spent += time.process_time() - start
            decisions += 1
            for job, place in chosen:
                need = waiting[job].demand[room.devices[place].architecture]
                room.take(need, place)
                begun_in_all += 1
                heapq.heappush(ends, (now + need.seconds * longer[waiting[job].key], begun_in_all, need, place))
            begun = {job for job, _ in chosen}
            waiting = [job for number, job in enumerate(waiting) if number not in begun]
            if decisions == 1:
                occupancy = 1 - sum(room.compute) / total
        now, _, need, place = heapq.heappop(ends)
        room.give_back(need, place)
    return {"makespan": now, "occupancy": occupancy, "ms": 1e3 * spent / decisions}


def exact_occupancy(jobs: Sequence[WaitingJob], room: Room, seconds: float) -> tuple[float, bool]:
    """Of the first decision, and whether it is proven to be the best."""
    solver = Exact(seconds=seconds)
    chosen = solver.choose(jobs, room)
    held = sum(jobs[job].demand[room.devices[place].architecture].compute for job, place in chosen)
    return held / sum(room.compute), solver.is_optimal


def measure(space: str, variant: str, seeds: int, exact_seconds: float) -> list[dict[str, Any]]:
    problems = [problem(space, variant, seed) for seed in range(seeds)]
    bounds = [lower_bound(*one) for one in problems]
    exact = [exact_occupancy(jobs, room, exact_seconds) for jobs, room, _ in problems]
    best = [occupancy for occupancy, _ in exact]
    rows: list[dict[str, Any]] = [{
        "space": space, "variant": variant, "policy": "exact",
        "occupancy": round(statistics.mean(best), 4), "proven": sum(is_optimal for _, is_optimal in exact),
    }]  # fmt: skip
    for name, policy in POLICIES.items():
        runs = [play(*one, policy) for one in problems]
        ratios = [run["makespan"] / bound for run, bound in zip(runs, bounds, strict=True)]
        rows.append({
            "space": space, "variant": variant, "policy": name,
            "makespan": round(statistics.mean(ratios), 3), "worst_makespan": round(max(ratios), 3),
            "occupancy": round(statistics.mean(run["occupancy"] for run in runs), 4),
            "short": round(max(e - run["occupancy"] for e, run in zip(best, runs, strict=True)), 4),
            "ms": round(statistics.mean(run["ms"] for run in runs), 3),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--exact-seconds", type=float, default=2.0, help="time limit of the solver for one decision")
    parser.add_argument("--out", help="file for the figures; default results/packing.json")
    given = parser.parse_args()
    facts = result_file.machine()
    rows = []
    for variant in VARIANTS:
        for space in SPACES:
            rows += measure(space, variant, given.seeds, given.exact_seconds)
    columns = ("space", "variant", "policy", "makespan", "worst_makespan", "occupancy", "short", "proven", "ms")
    result_file.table(columns, [[row.get(column) for column in columns] for row in rows])
    result_file.write("packing", facts, {"seeds": given.seeds, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
