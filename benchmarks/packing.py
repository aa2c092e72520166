"""Packing policies: occupancy of the first decision, makespan, and milliseconds a decision (HyperSack, Table III).

Workloads like the paper's Table II: SP3 is one model (96 jobs, 4 GPUs), SP4 six models (384 jobs, 16 GPUs), each with
four batch sizes and many learning rates. Utilization and run time belong to model and batch size and are drawn anew
for each seed around the paper's range (22 to 50 % of an A100); actual run times differ from expected ones by up to
5 %. A cell is a space with

- GPUs ``alike``, or ``unlike``: the last quarter of them is twice as fast;
- what binds beside compute: ``nothing``; ``cores``, the paper's 88 a node and 4 a job; ``mixed cores``, 48 a node and
  2 to 8 a job; ``memory``, so that a GPU holds some three jobs at r = 1 and four at r = 2;
- the oversubscription ratio ``r``.

``makespan``: virtual seconds until the last job has ended, as a ratio to a lower bound (``packing_bound.py``): the time
in which jobs that could be cut anywhere would be done by sets that fit on a device, and within the cores of a node.
``one per device`` is the paper's baseline; it
does not slow down by sharing, nor do the others: this measures the choice alone. ``behind``: by how much ``fill`` is
behind the best of the paper's four in that cell. ``occupancy`` is the compute that
the first decision assigns, ``short`` by how much the worst seed falls below the exact solver (within
``--exact-seconds``; ``proven``: for so many seeds it is the best). Processor time per decision, over all decisions.

The rule of ``fill`` was chosen with other seeds (1000 and above) than those that are shown.

    python benchmarks/packing.py [--seeds 16] [--first-seed 0] [--close 0.01]
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import result_file
from packing_bound import lower_bound

from hpo_core.model.devices.inventory import Demand
from hpo_core.packing import fill
from hpo_core.packing.fill import Fill
from hpo_core.packing.policies import ExactPacking, FirstFit, PackingPolicy, WorstFit
from hpo_core.packing.room import Assignment, Room, SharedDevice, WaitingJob

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
MEMORY = 80_000_000_000
"""Bytes of a GPU."""
RATIOS = (1.0, 1.5, 2.0, 2.5, 3.0)
PAPERS = ("FF", "FFD", "WF", "WFD")


class Cell(NamedTuple):
    """What a workload runs on."""

    unlike: bool
    binds: str
    """Beside compute."""
    ratio: float

    @property
    def has_exact(self) -> bool:
        """Whether the first decision is solved, too."""
        return self.ratio == 1 and self.binds in ("nothing", "mixed cores")


CELLS = [
    Cell(unlike, binds, ratio)
    for binds, ratios in (("nothing", RATIOS), ("cores", RATIOS), ("mixed cores", (1.0,)), ("memory", (1.0, 2.0)))
    for ratio in ratios
    for unlike in (False, True)
]


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
    "fill": Fill(),
}


def problem(space: str, cell: Cell, seed: int) -> tuple[list[WaitingJob], Room, dict[object, float]]:
    """Jobs in the order of their grid, the cluster, and by job how much longer it takes than expected."""
    rng = random.Random(f"{space} {seed}")
    models, rates, gpus = SPACES[space]
    jobs = []
    for compute, seconds in list(MODELS.values())[:models]:
        for batch, (of_compute, of_seconds) in BATCHES.items():
            share = round(compute * of_compute * rng.uniform(0.85, 1.15))
            expected = seconds * of_seconds * rng.uniform(0.85, 1.15)
            memory = int((2 + batch / 64) * 1e9 * rng.uniform(0.8, 1.2))
            if cell.binds == "memory":
                memory = int(MEMORY / (2 + cell.ratio) * rng.uniform(0.4, 1.6))
            cores = 1000 * (rng.choice([2, 4, 6, 8]) if cell.binds == "mixed cores" else 4)
            slow = Demand(compute=share, memory=memory, cores=cores, seconds=expected)
            fast = Demand(compute=share, memory=memory, cores=cores, seconds=expected / 2)
            jobs += [{"A100": slow, "H100": fast}] * rates
    rng.shuffle(jobs)
    waiting = [WaitingJob(key, demand) for key, demand in enumerate(jobs)]
    devices = [
        SharedDevice(
            name=f"gpu-{number}",
            node=f"node-{number // GPUS_PER_NODE}",
            architecture="H100" if cell.unlike and number >= gpus * 3 // 4 else "A100",
            memory=MEMORY,
            oversubscribe=round(1000 * cell.ratio),
        )
        for number in range(gpus)
    ]
    cores = {"cores": 88_000, "mixed cores": 48_000}.get(cell.binds, 1_000_000)
    room = Room(devices, dict.fromkeys((device.node for device in devices), cores))
    return waiting, room, {job.key: rng.uniform(0.95, 1.05) for job in waiting}


def play(
    jobs: Sequence[WaitingJob], room: Room, longer: Mapping[object, float], policy: PackingPolicy
) -> dict[str, float]:
    """One workload to its end: a decision at the start and whenever a job ended."""
    room = room.copy()
    total = sum(room.compute)
    waiting = list(jobs)
    ends: list[tuple[float, int, Demand, int]] = []
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
    solver = ExactPacking(seconds=seconds)
    chosen = solver.choose(jobs, room)
    held = sum(jobs[job].demand[room.devices[place].architecture].compute for job, place in chosen)
    return held / sum(room.compute), solver.is_optimal


def measure(space: str, cell: Cell, seeds: range, exact_seconds: float) -> list[dict[str, Any]]:
    problems = [problem(space, cell, seed) for seed in seeds]
    bounds = [lower_bound(*one) for one in problems]
    named: dict[str, Any] = {
        "space": space,
        "gpus": "unlike" if cell.unlike else "alike",
        "binds": cell.binds,
        "r": cell.ratio,
    }
    rows: list[dict[str, Any]] = []
    best: list[float] = []
    if cell.has_exact:
        exact = [exact_occupancy(jobs, room, exact_seconds) for jobs, room, _ in problems]
        best = [occupancy for occupancy, _ in exact]
        proven = sum(is_optimal for _, is_optimal in exact)
        rows.append(named | {"policy": "exact", "occupancy": round(statistics.mean(best), 4), "proven": proven})
    makespans: dict[str, float] = {}
    for name, policy in POLICIES.items():
        runs = [play(*one, policy) for one in problems]
        ratios = [run["makespan"] / bound for run, bound in zip(runs, bounds, strict=True)]
        makespans[name] = statistics.mean(ratios)
        row = named | {
            "policy": name, "makespan": round(makespans[name], 3), "worst_makespan": round(max(ratios), 3),
            "occupancy": round(statistics.mean(run["occupancy"] for run in runs), 4),
            "ms": round(statistics.mean(run["ms"] for run in runs), 3),
        }  # fmt: skip
        if best:
            row["short"] = round(max(e - run["occupancy"] for e, run in zip(best, runs, strict=True)), 4)
        if name == "fill":
            row["behind"] = round(makespans[name] / min(makespans[one] for one in PAPERS) - 1, 4)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--close", type=float, default=fill.CLOSE, help="share within which assignments are equally full"
    )
    parser.add_argument("--exact-seconds", type=float, default=2.0, help="time limit of the solver for one decision")
    parser.add_argument("--out", help="file for the figures; default results/packing.json")
    given = parser.parse_args()
    facts = result_file.machine()
    fill.CLOSE = given.close
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    columns = (
        "space",
        "gpus",
        "binds",
        "r",
        "policy",
        "makespan",
        "worst_makespan",
        "occupancy",
        "behind",
        "short",
        "proven",
        "ms",
    )
    rows: list[dict[str, Any]] = []
    for space in SPACES:
        for cell in CELLS:
            found = measure(space, cell, seeds, given.exact_seconds)
            rows += found
            result_file.table(columns, [[row.get(column) for column in columns] for row in found])
    result_file.write("packing", facts, {"seeds": given.seeds, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
