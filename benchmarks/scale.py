"""What saturates first on the way to 10,000 workers and a million trials: each layer measured by itself.

    python benchmarks/scale.py decisions journal ...     # these layers; without names all of them
    python benchmarks/scale.py plot                      # the picture and the table of rates, from the results

Each case runs in a process of its own, ``--repeats`` times; the run with the least processor time is shown, and all are
in the JSON. Processor time tells how much a layer can do on a free core; ``per_second`` is what it did beside the
machine's other work, with the load given for each case. What was not asked for keeps its earlier results.

Layers: ``decisions``, ``journal``, ``following`` (the processes that show a study elsewhere), ``simulator``,
``checkpoints``, ``dask``, ``prefect``, ``mlflow``, ``demand`` (workers that follow a study), and ``waiting``, a
simulation of what they add up to. The module of each says what it measures (``saturation/``).
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
from typing import Any

import result_file

LAYERS = {
    "decisions": "decision_cost",
    "journal": "journal_cost",
    "following": "following_cost",
    "simulator": "simulator_cost",
    "checkpoints": "checkpoint_cost",
    "dask": "dask_cost",
    "prefect": "prefect_cost",
    "mlflow": "mlflow_cost",
    "waiting": "worker_wait",
    "demand": "workers_by_demand",
}
LIMIT = 900.0
"""Seconds after which a case counts as failed."""


def module_of(layer: str) -> Any:
    return importlib.import_module(f"saturation.{LAYERS[layer]}")


def run(layer: str, case: dict[str, Any]) -> dict[str, Any]:
    """One case in a process of its own."""
    command = [sys.executable, __file__, "--one", layer, json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise SystemExit(f"{layer} {case}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def costs(found: dict[str, Any]) -> float:
    """Processor time of a run, by whatever its layer calls it; else what it did in a second."""
    spent = [value for key, value in found.items() if "cpu" in key or key.endswith(("_ms", "_share"))]
    return float(sum(spent)) if spent else -float(found.get("per_second", 0.0))


def measured(layer: str, case: dict[str, Any], repeats: int) -> dict[str, Any]:
    """A row of the results: the case, its best run, all runs, and when and beside what it ran."""
    load = round(os.getloadavg()[0], 2)
    runs = [run(layer, case) for _ in range(repeats)]
    best = min(runs, key=costs)
    print(f"  {layer} {json.dumps(case)}: {json.dumps(best)}", file=sys.stderr, flush=True)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"case": case, "date": date, "load": [load, round(os.getloadavg()[0], 2)], **best, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help=f"of {', '.join(LAYERS)}; or plot")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", help="one case of one layer as JSON, in place of all")
    parser.add_argument("--one", nargs=2, metavar=("LAYER", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/scale.json)")
    given = parser.parse_args()
    if given.one:
        layer, case = given.one
        print(json.dumps(module_of(layer).measure(**json.loads(case))))
        return
    path = result_file.RESULTS / "scale.json" if given.out is None else result_file.Path(given.out)
    known = json.loads(path.read_text())["layers"] if path.exists() else {}
    if given.layers == ["plot"]:
        from saturation.picture import draw

        draw(known)
        return
    for layer in given.layers or LAYERS:
        cases = [json.loads(given.case)] if given.case else module_of(layer).CASES
        for case in cases:
            facts = result_file.machine()
            row = measured(layer, case, 1 if layer == "waiting" else given.repeats)
            earlier = [one for one in known.get(layer, {}).get("rows", ()) if one["case"] != case]
            known[layer] = {"rows": [*earlier, row]}
            result_file.write("scale", facts, {"layers": known}, given.out)


if __name__ == "__main__":
    main()
