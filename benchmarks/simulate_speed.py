"""How fast studies are simulated: 1e5 trials on 500 virtual workers, every event journaled in memory, on one core.

Each search method has a process of its own; its time is CPU time from the creation of the study to its end (and the
wall-clock time beside it). Two workloads:

- ``bare``: a loss and a duration from one multiplication each: what study, method, journal and clock cost;
- ``full``: what ``hpo simulate --stragglers 0.5 --drops 0.0001`` runs: made-up curves with noise,
  configurations of different costs, stragglers, dropped jobs, and the figures of the run.

``bytes/trial`` is what the process grew by at its largest, divided by the number of trials: study, method, and all
entries of the journal (and with ``full`` the curves). The aim: under 30 s.

Hyperband has no number of configurations: rounds are run until it has about as many.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import result_file

AIM_SECONDS = 30.0
LEVELS = {"min_resource": 1, "max_resource": 256, "reduction_factor": 4}
METHODS: dict[str, dict[str, Any]] = {
    "ASHA, one bracket": {"method": "asha", **LEVELS},
    "ASHA, three brackets": {"method": "asha", **LEVELS, "brackets": [0, 1, 2]},
    "ASHA, all brackets, shared rungs": {
        "method": "asha", **LEVELS, "brackets": "all", "assignment": "proportional", "rung_system": "shared",
    },
    "ASHA, stopping": {"method": "asha", "variant": "stopping", **LEVELS},
    "PASHA": {"method": "pasha", **LEVELS},
    "SHA, synchronous": {"method": "sha", **LEVELS},
    "Hyperband, synchronous": {"method": "hyperband", **LEVELS},
    "random search": {"method": "random", "max_resource": 256},
}  # fmt: skip
SPACE = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 256, "log": True},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
}


def resident() -> int:
    """Bytes of this process in memory."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Most bytes this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def spec_of(name: str, trials: int) -> dict[str, Any]:
    search = dict(METHODS[name])
    if search["method"] == "hyperband":
        from hpo_core.search.brackets import hyperband_size

        search["rounds"] = max(1, round(trials / sum(hyperband_size(s, 5, 4) for s in range(5))))
    else:
        search["configs"] = trials
    return {"study": "speed", "metric": {"name": "loss"}, "space": SPACE, "search": search}


def bare(name: str, trials: int, workers: int) -> dict[str, Any]:
    from hpo_core import Job, MemoryJournal, Study, StudySpec
    from hpo_core.simulation import Simulation, VirtualClock

    spec = StudySpec.from_plain(spec_of(name, trials))

    def seconds(job: Job) -> float:
        return (job.target - (job.checkpoint.resource if job.checkpoint else 0)) * (1.0 + job.params["learning_rate"])

    def train(job: Job) -> dict[str, float]:
        return {"loss": job.params["learning_rate"] + job.params["width"] / job.target}

    def run() -> dict[str, Any]:
        clock, journal = VirtualClock(), MemoryJournal()
        study = Study.create(spec, journal, clock=clock)
        Simulation(study, clock, workers=workers, train=train, seconds=seconds).run()
        state = study.state
        return {"trials": len(state.trials), "reports": state.completed_jobs, "virtual": clock.now}

    return timed(run)


def full(name: str, trials: int, workers: int) -> dict[str, Any]:
    from hpo_core import StudySpec
    from hpo_core.simulation import AnalyticCurves, Faults, make_workers
    from hpo_core.simulation.repeats import Scenario, World, play

    spec = StudySpec.from_plain(spec_of(name, trials))
    curves = AnalyticCurves(spec, cost_spread=0.5)
    scenario = Scenario(name, spec, make_workers(workers), Faults(stragglers=0.5, drops=1e-4))

    def run() -> dict[str, Any]:
        found = play(scenario, lambda spec, repeat: World(curves), 0)
        return {"trials": found.trials, "reports": found.jobs + found.failed, "virtual": found.seconds}

    return timed(run)


def timed(run: Any) -> dict[str, Any]:
    before, began, cpu = resident(), time.perf_counter(), time.process_time()
    found = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    grown = peak() - before
    return found | {
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "reports_per_second": round(found["reports"] / cpu),
        "bytes_per_trial": round(grown / found["trials"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=2, help="runs of which the quickest is shown")
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "METHOD"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/simulate_speed.json)")
    given = parser.parse_args()
    if given.one:
        kind, name = given.one
        print(json.dumps((bare if kind == "bare" else full)(name, given.trials, given.workers)))
        return
    facts = result_file.machine()
    figures: dict[str, dict[str, Any]] = {}
    for name in METHODS:
        for kind in ("bare", "full"):
            command = [sys.executable, __file__, "--trials", str(given.trials), "--workers", str(given.workers),
                       "--one", kind, name]  # fmt: skip
            runs = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for _ in range(given.repeats)
            ]
            best = min(runs, key=lambda run: run["cpu_seconds"])
            figures.setdefault(name, {})[kind] = best | {"runs_cpu_seconds": [run["cpu_seconds"] for run in runs]}
            print(f"  {name}, {kind}: {best['cpu_seconds']} s", file=sys.stderr, flush=True)
    rows = []
    for name, found in figures.items():
        cells: list[Any] = [name, f"{found['bare']['trials']:,}", f"{found['bare']['reports']:,}"]
        for kind in ("bare", "full"):
            one = found[kind]
            cells += [f"{one['cpu_seconds']:.1f}", f"{one['reports_per_second']:,}", f"{one['bytes_per_trial']:,}"]
        rows.append(cells)
    head = ["", "trials", "reports", "bare: s", "reports/s", "bytes/trial", "full: s", "reports/s", "bytes/trial"]
    result_file.table(head, rows)
    worst = max(one["cpu_seconds"] for found in figures.values() for one in found.values())
    met = worst <= AIM_SECONDS
    print(f"\nslowest: {worst:.1f} s (aim <= {AIM_SECONDS:g} s): {'met' if met else 'MISSED'}")
    aim = {"aim": f"<= {AIM_SECONDS:g} s", "seen": worst, "met": met}
    result_file.write("simulate_speed", facts, {"workers": given.workers, "figures": figures, "aim": aim}, given.out)


if __name__ == "__main__":
    main()
