"""The end of a hopping study in gangs (``training: {gang: auto}`` and ``data``): time to the end, with and without.

Real studies, loops and schedules in virtual time: eight workers with a partition each, an epoch takes eight minutes on
one worker. Speed-ups of gangs: ``steep`` and ``flat`` as in `growth.py`; ``network``: 2, 4, 8 ranks train 1.1, 1.0 and
0.7 times as fast as one worker, as where exchanging gradients takes longer than training (Cerebro, 6.3).

- ``alone``: units of one rank. ``given``: `gang: auto` with these speed-ups. ``measured``: `gang: auto` without.

    python benchmarks/hopping_gangs.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import result_file

from hpo_core.execution.virtual import Worker
from hpo_core.simulation import AnalyticCurves, VirtualClock
from hpo_core.study import Study

WORKERS, EPOCH = 8, 480.0
SPEEDS = {
    "steep": {1: 1.0, 2: 1.982, 3: 2.92, 4: 3.861, 5: 4.7, 6: 5.55, 7: 6.4, 8: 7.221},
    "flat": {1: 1.0, 2: 1.7, 3: 2.45, 4: 3.1, 5: 3.55, 6: 3.95, 7: 4.3, 8: 4.6},
    "network": {1: 1.0, 2: 1.1, 3: 1.05, 4: 1.0, 5: 0.9, 6: 0.8, 7: 0.75, 8: 0.7},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "1 model": {"method": "random", "configs": 1, "max_resource": 16},
    "3 models": {"method": "random", "configs": 3, "max_resource": 16},
    "SHA, 16": {"method": "sha", "configs": 16, "max_resource": 16, "reduction_factor": 4},
    "SHA, 64": {"method": "sha", "configs": 64, "max_resource": 64, "reduction_factor": 4},
    "ASHA, 64": {"method": "asha", "configs": 64, "max_resource": 64, "reduction_factor": 4},
    "Hyperband": {"method": "hyperband", "max_resource": 16, "reduction_factor": 4},
}
WAYS = ("alone", "given", "measured")


def play(search: dict[str, Any], way: str, speeds: dict[int, float], seed: int) -> tuple[float, float]:
    """Hours to the end, and hours in which workers trained."""
    sys.path.insert(0, str(result_file.ROOT.parent))
    from tests.virtual_units import HoppingSimulation, PartitionedData

    clock = VirtualClock()
    given = {size: gain for size, gain in speeds.items() if size > 1} if way == "given" else {}
    if given and all(gain < 0.75 * size for size, gain in given.items()):
        given, way = {}, "alone"  # refused: no size reaches the wanted efficiency
    study = Study.create(
        {
            "study": "hopping-gangs",
            "objective": "nowhere:train",
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "search": search,
            "cluster": {"kind": "local", "workers": WORKERS},
            "data": {"partitions": [f"part-{place}" for place in range(WORKERS)]},
            "training": {"gang": 1 if way == "alone" else "auto"},
            "scaling": {"speedups": given},
            "seed": seed,
        },
        clock=clock,
    )
    curves = AnalyticCurves(study.spec, seed, seconds_per_unit=EPOCH, cost_spread=0.25)
    played = HoppingSimulation(
        study, clock, placed=PartitionedData(), workers=[Worker()] * WORKERS, train=curves.train,
        seconds=curves.seconds, speedup=lambda job: speeds[job.unit.ranks],
    )  # fmt: skip
    played.run()
    assert study.finished
    study.check()
    return clock.now / 3600, played.executor.busy_seconds / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="repeats (default: 10)")
    parser.add_argument("--out", help="where the JSON goes (default: results/hopping_gangs.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    rows = []
    for name, search in SEARCHES.items():
        for kind, speeds in SPEEDS.items():
            found = {way: [play(search, way, speeds, seed) for seed in range(given.seeds)] for way in WAYS}
            ratios = {
                way: [run[0] / alone[0] for run, alone in zip(runs, found["alone"], strict=True)]
                for way, runs in found.items()
            }
            rows.append(
                {
                    "search": name,
                    "speeds": kind,
                    "hours, alone": round(statistics.fmean(run[0] for run in found["alone"]), 3),
                    "given / alone": round(statistics.fmean(ratios["given"]), 3),
                    "measured / alone": round(statistics.fmean(ratios["measured"]), 3),
                    "worst": round(max(*ratios["given"], *ratios["measured"]), 3),
                    "worker-hours, alone": round(statistics.fmean(run[1] for run in found["alone"]), 2),
                    "worker-hours, measured": round(statistics.fmean(run[1] for run in found["measured"]), 2),
                }
            )
    result_file.table(list(rows[0]), [list(row.values()) for row in rows])
    result_file.write("hopping_gangs", facts, {"rows": rows}, given.out)


if __name__ == "__main__":
    main()
