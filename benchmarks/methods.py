"""Cost of one decision by search method: a result goes in, the next jobs come out.

``Study.tell_report`` with a journal in memory. Nine slots, three parameters, eta 3, r = 1, R = 81 (PBT: 20 members).
Every measurement has a process of its own, and is run ``--repeats`` times; the lowest mean is shown, for noise of a
shared machine only adds.

    python benchmarks/methods.py
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from typing import Any

import result_file

LADDER = {"min_resource": 1, "max_resource": 81, "reduction_factor": 3}
SLOTS = 9


def searches(results: int) -> dict[str, dict[str, Any]]:
    """Each long enough for so many results."""
    return {
        "random": {"method": "random", "configs": results + SLOTS, "max_resource": 9},
        "grid": {"method": "grid", "points": {"x": results // 2 + SLOTS, "width": [64]}},
        "asha": {"method": "asha", "configs": results, **LADDER},
        "asha, all brackets": {"method": "asha", "configs": results, **LADDER, "brackets": "all"},
        "asha, shared rungs": {
            "method": "asha", "configs": results, **LADDER, "brackets": "all", "rung_system": "shared",
        },
        "asha, stopping": {"method": "asha", "configs": results, **LADDER, "variant": "stopping"},
        "sha": {"method": "sha", "configs": results, **LADDER},
        "hyperband": {"method": "hyperband", **LADDER, "rounds": results // 100 + 1},
        "pasha": {"method": "pasha", "configs": results, **LADDER},
        "pbt": {"method": "pbt", "population": 20, "generations": results // 20 + 1},
        "pbt, truncation": {
            "method": "pbt", "population": 20, "generations": results // 20 + 1, "selection": "truncation",
        },
    }  # fmt: skip


def measure(name: str, results: int) -> dict[str, float]:
    """Microseconds per result: mean, and mean of the last tenth."""
    from hpo_core import MemoryJournal, Study
    from hpo_core.model.trial import Checkpoint, Outcome, Report

    spec = {
        "study": "methods",
        "metric": {"name": "loss"},
        "space": {
            "x": {"type": "float", "low": 0.0, "high": 1.0},
            "width": {"type": "int", "low": 8, "high": 256, "log": True},
            "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
        },
        "search": searches(results)[name],
    }
    study = Study.create(spec, MemoryJournal())
    waiting = list(study.set_capacity(SLOTS))
    spent = []
    for number in range(results):
        job = waiting.pop(0)
        draw = random.Random(job.trial)
        loss = draw.random() + 1.0 / job.target + random.Random(f"{job.trial}/{job.target}").gauss(0, 0.02)
        report = Report(
            trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics={"loss": loss},
            checkpoint=Checkpoint(f"t{job.trial}/{job.target}", "", job.target, 0), worker="w", started=0.0, ended=1.0,
        )  # fmt: skip
        began = time.perf_counter()
        waiting += study.tell_report(report)
        spent.append(time.perf_counter() - began)
        if not waiting:
            raise SystemExit(f"{name} ended after {number + 1} of {results} results")
    last = spent[-max(1, results // 10) :]
    return {"us": 1e6 * sum(spent) / results, "last_tenth_us": 1e6 * sum(last) / len(last)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "RESULTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]))))
        return
    facts = result_file.machine()
    figures: dict[str, Any] = {}
    print(f"{'method':20} " + " ".join(f"{n:>24,}" for n in given.results))
    for name in searches(1):
        figures[name] = {}
        for results in given.results:
            runs = []
            for _ in range(given.repeats):
                command = [sys.executable, __file__, "--one", name, str(results)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout))
            best = min(runs, key=lambda run: run["us"])
            figures[name][str(results)] = best | {"runs_us": [round(run["us"], 1) for run in runs]}
        cells = [figures[name][str(n)] for n in given.results]
        shown = (f"{c['us']:.1f} ({c['last_tenth_us']:.1f}) us, {1e6 / c['us']:,.0f}/s" for c in cells)
        print(f"{name:20} " + " ".join(f"{text:>24}" for text in shown), flush=True)
    print(result_file.write("methods", facts, figures, given.out))


if __name__ == "__main__":
    main()
