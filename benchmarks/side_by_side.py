"""The same search in Optuna, in Ray Tune and here: lines of code, seconds, and what one holds at the end.

Successive halving over 18 configurations of a small network on scikit-learn's digits, at most 9 epochs, two at a
time: the programs are in ``benchmarks/searches``, as their documentation says one writes them. ``first`` is from the
start of Python to the first result that a training function has, ``all`` to the end of the process. ``lines`` counts
what is between ``# begin`` and ``# end``, without blank lines. ``epochs`` is what was trained in all: the programs
promote and stop by rules of their own, so their ends are at different times. A library that is not installed is
skipped.

    python benchmarks/side_by_side.py --repeats 3
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import result_file

PROGRAMS = Path(__file__).resolve().parent / "searches"
OWN = ("PREFECT_", "MLFLOW_", "HPO_")
ROWS = (
    ("Optuna", "optuna", "with_optuna.py", ()),
    ("Ray Tune", "ray", "with_ray.py", ()),
    ("hpo_core", "hpo_core", "with_hpo.py", ()),
    ("hpo_core, prefect off", "hpo_core", "with_hpo.py", ("--no-prefect",)),
    ("hpo_core, home=None", "hpo_core", "with_hpo.py", ("--nothing-kept",)),
)


def lines_of(program: Path) -> int:
    """Lines of code between the marks."""
    inside = program.read_text().partition("# begin\n")[2].partition("# end\n")[0]
    return sum(bool(line.strip()) for line in inside.splitlines())


def measure(program: Path, options: tuple[str, ...]) -> dict[str, Any]:
    """One run in a folder of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OWN)}
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        log = Path(name) / "results.log"
        environment |= {"SEARCH_LOG": str(log), "OMP_NUM_THREADS": "1"}
        start = time.time()
        done = subprocess.run(
            [sys.executable, str(program), *options],
            cwd=name,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        seconds = time.time() - start
        if done.returncode:
            raise SystemExit(f"{program.name} {' '.join(options)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        times = sorted(map(float, log.read_text().split()))
        held = json.loads(done.stdout.splitlines()[-1])
        if abs(held["best"] - held["loaded"]) > 1e-6:
            raise SystemExit(f"{program.name}: the best loss is {held['best']}, that of its weights {held['loaded']}")
        return held | {"first": times[0] - start, "all": seconds, "epochs": len(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="JSON file for the figures; default: they are printed alone")
    given = parser.parse_args()
    facts = result_file.machine()
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, package, _, _ in ROWS:
        if importlib.util.find_spec(package) is None:
            print(f"{name} is not installed: skipped (pip install '{'ray[tune]' if package == 'ray' else package}')")
    for _ in range(given.repeats):  # in turn: what else the machine does hits all alike
        for name, package, program, options in ROWS:
            if importlib.util.find_spec(package) is not None:
                rows.setdefault(name, []).append(measure(PROGRAMS / program, options))
    found = []
    for name, _, program, _ in ROWS:
        if name in rows:
            first, whole, best = (statistics.median(one[key] for one in rows[name]) for key in ("first", "all", "best"))
            last = rows[name][-1]
            counts = [last[key] for key in ("epochs", "trials", "results", "attempts")]
            found.append([name, lines_of(PROGRAMS / program), f"{first:.2f}", f"{whole:.1f}", *counts, f"{best:.4f}"])
    result_file.table(["", "lines", "first", "all", "epochs", "trials", "results", "attempts", "best"], found)
    if given.out is not None:
        lines = {name: lines_of(PROGRAMS / program) for name, _, program, _ in ROWS}
        result_file.write("side_by_side", facts, {"lines": lines, "runs": rows}, given.out)


if __name__ == "__main__":
    main()
