"""What a hop costs: milliseconds of a unit beyond its training, memory of the workers, ways of a state.

- ``units``: a real study with its SQL journal on one and on two Dask workers (without Prefect and MLflow): 8
  partitions, units that sleep 10 ms, a state of 4 KB. Figure: slot time of a unit, (last end - first start) x workers /
  units - 10 ms. ``within`` is from a unit's start to its end beyond the 10 ms: load the state, begin, save; ``between``
  is from one unit's end to the next one's start on the same worker: child, Dask, schedule, fork. Beside it plain
  dask.distributed with pinned tasks whose states Dask moves (``hopping/plain_units.py``), and jobs of the same 10 ms
  that do not hop, without a state and with one that is saved durably (``jobs/layers.py``). ``kept``: one process trains
  one unit after another, and partitions and states stay in its memory. All in turn, several
  rounds; the lowest is shown and the JSON has all.
- ``processor``: milliseconds of processor time, of all processes, that a unit costs beside its training: the difference
  of a long and a short run, by the difference of their units. A busy neighbour changes it little.
- ``speed-up``: how much sooner two workers end than one, with units of 10 ms, and with units that keep a core busy.
- ``states``: a state of 0.01 to 100 MB through the folder, and straight from worker to worker (``hopping/states.py``).
- ``memory``: two workers with half of 8 partitions of 100 MB each (``hopping/memory.py``).

    python benchmarks/hopping_overhead.py            # 8 min on two busy cores
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import result_file

sys.path.insert(0, str(result_file.ROOT / "hopping"))
from driven import Ended, run_study

MS = 10.0
PARTS = 8


def hop_study(
    workers: int, units: int, seconds: float, *, function: str = "train", process: str = "fresh"
) -> dict[str, Any]:
    """One study; figures from the visits that its reports tell.

    Args:
        process: ``training.process``; with ``kept``, a process trains one unit after another.
    """
    models = 2 * workers
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        data = Path(name) / "shards"
        data.mkdir()
        for number in range(PARTS):
            np.save(data / f"part-{number}.npy", np.arange(10.0))
        plain = {
            "study": "units",
            "objective": f"units:{function}",
            "metric": {"name": "loss", "mode": "min"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "constants": {"bytes": 4_000},
            "search": {"method": "random", "configs": models, "max_resource": max(1, units // PARTS // models)},
            "data": {
                "partitions": [f"part-{number}.npy" for number in range(PARTS)],
                "folder": str(data),
                "load": "units:load",
            },
            "cluster": {"kind": "local", "workers": workers},
            "training": {"process": process},
        }
        return figures_of(run_study(Path(name) / "run", plain, seconds=seconds), workers)


def figures_of(ended: Sequence[Ended], workers: int) -> dict[str, Any]:
    visits = [visit for each in ended for visit in (each.report.visits or ())]
    by_worker = defaultdict(list)
    for visit in visits:
        by_worker[visit.worker].append((visit.started, visit.ended))
    gaps = []
    for spans in by_worker.values():
        spans.sort()
        gaps += [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    wall = max(visit.ended for visit in visits) - min(visit.started for visit in visits)
    return {
        "units": len(visits),
        "seconds": round(wall, 2),
        "slot_ms": round(wall * workers / len(visits) * 1e3 - MS, 2),
        "within_ms": round(statistics.mean(v.ended - v.started for v in visits) * 1e3 - MS, 2),
        "between_ms": round(statistics.mean(gaps) * 1e3, 2),
        "between_median_ms": round(statistics.median(gaps) * 1e3, 2),
    }


def script(name: str, *words: str, seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(result_file.ROOT / name), *words], capture_output=True, text=True, timeout=seconds
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    given = _parser().parse_args()
    facts = result_file.machine()
    figures: dict[str, Any] = {}
    if "units" in given.part:
        figures["units"] = units(given)
    if "processor" in given.part:
        figures["processor_ms"] = processor(given)
    if "states" in given.part:
        figures["states"] = {"load": _load()} | script(
            "hopping/states.py", "--megabytes", *map(str, given.megabytes), seconds=given.seconds
        )
        rows = [[size, *(f"{each['best'] * 1e3:.1f}" for each in found.values())]
                for size, found in figures["states"].items() if size != "load"]  # fmt: skip
        result_file.table(
            ["ms for a state of", "save", "load", "durable", "hash", "write", "read", "socket", "dask"], rows
        )
    if "memory" in given.part:
        figures["memory"] = script("hopping/memory.py", seconds=given.seconds)
        print(json.dumps(figures["memory"], indent=1))
    path = given.out or result_file.RESULTS / "hopping_overhead.json"
    if path.exists():  # parts not asked for stay as they were
        before = json.loads(path.read_text())
        known = ("units", "processor_ms", "states", "memory")
        figures = {part: before[part] for part in known if part in before} | figures
    result_file.write("hopping_overhead", facts, figures, given.out)


def units(given: argparse.Namespace) -> dict[str, Any]:
    """All variants, round by round."""
    count, limit = str(given.units), given.seconds
    plan: dict[str, Callable[[], dict[str, Any]]] = {
        "hops, 1 worker": lambda: hop_study(1, given.units, limit),
        "hops, 2 workers": lambda: hop_study(2, given.units, limit),
        "hops, 2 workers, kept": lambda: hop_study(2, given.units, limit, process="kept"),
        "plain Dask, 1 worker": lambda: script(
            "hopping/plain_units.py", "--workers", "1", "--units", count, seconds=limit
        ),
        "plain Dask, 2 workers": lambda: script("hopping/plain_units.py", "--units", count, seconds=limit),
        "jobs, 2 workers": lambda: script("jobs/layers.py", "--layer", "driver", "--jobs", count, seconds=limit),
        "jobs that save, 2 workers": lambda: script(
            "jobs/layers.py",
            "--layer",
            "driver",
            "--objective",
            "objective:train_saving",
            "--jobs",
            count,
            seconds=limit,
        ),
        "hops that compute, 1 worker": lambda: hop_study(1, given.units // 4, limit, function="compute"),
        "hops that compute, 2 workers": lambda: hop_study(2, given.units // 4, limit, function="compute"),
    }
    plan = {name: run for name, run in plan.items() if not given.only or name in given.only}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plan}
    for turn in range(given.rounds):
        for name, run in plan.items():
            load = _load()
            found[name].append(run() | {"load_before": load})
            print(f"  {turn + 1}: {name}: {found[name][-1]}", file=sys.stderr, flush=True)
            time.sleep(1)
    told = {
        name: min(seen, key=lambda each: each["slot_ms"]) | {"slot_ms_of_all": [each["slot_ms"] for each in seen]}
        for name, seen in found.items()
    }
    keys = ("units", "slot_ms", "within_ms", "between_ms", "between_median_ms", "load_before")
    result_file.table(
        ["ms of a unit beyond its 10 ms", *keys],
        [[name, *(seen.get(key) for key in keys)] for name, seen in told.items() if "compute" not in name],
    )
    speed_up = {}
    for kind in ("hops", "hops that compute"):
        if not {f"{kind}, 1 worker", f"{kind}, 2 workers"} <= plan.keys():
            continue
        one, two = (
            min(each["seconds"] / each["units"] for each in found[f"{kind}, {count}"])
            for count in ("1 worker", "2 workers")
        )
        speed_up[kind] = round(one / two, 2)
        print(f"{kind}: two workers are {speed_up[kind]} times as fast as one")
    return {"variants": told, "speed_up_of_two_workers": speed_up}


def processor(given: argparse.Namespace) -> dict[str, float]:
    """Milliseconds by variant."""
    limit = given.seconds
    plan: dict[str, Callable[[int], Any]] = {
        "hops, 2 workers": lambda count: hop_study(2, count, limit),
        "hops, 2 workers, kept": lambda count: hop_study(2, count, limit, process="kept"),
        "jobs that save, 2 workers": lambda count: script(
            "jobs/layers.py", "--layer", "driver", "--objective", "objective:train_saving", "--jobs", str(count),
            seconds=limit,
        ),
        "plain Dask, 2 workers": lambda count: script("hopping/plain_units.py", "--units", str(count), seconds=limit),
    }  # fmt: skip
    found = {}
    for name, run in plan.items():
        spent, done = [], []
        for count in (given.units // 4, given.units + given.units // 4):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seen = run(count)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            done.append(seen.get("units") or seen["jobs"])
        found[name] = round((spent[1] - spent[0]) / (done[1] - done[0]) * 1e3, 1)
    result_file.table(["ms of processor time", "a unit"], [[name, each] for name, each in found.items()])
    return found


def _load() -> float:
    return round(os.getloadavg()[0], 2)


_PARTS = ("units", "processor", "states", "memory")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a variant of units (repeatable)")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.01, 1, 10, 100], help="sizes of states")
    parser.add_argument("--units", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time of one variant")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/hopping_overhead.json)")
    return parser


if __name__ == "__main__":
    main()
