"""Cost of one decision: a result goes in, the next job comes out.

ASHA, eta 3, r = 1, R = 81, nine slots, at 1e3 to 1e6 results:

- ``study, memory journal``: Study.tell_report, with parameters drawn and one journal entry each;
- ``study, SQL journal``: the same on SQLite, every entry durable (``--sql-results``, default up to 1e4);
- ``method only``: Asha.apply and next_action, no study, no journal;
- ``bare heap``: a heappush per result, a heappop for one in three: the floor in Python;
- peers, each in its own environment, called directly, at 1e3 and 1e4 (``--peer-python NAME=PATH``):
  ray, optuna (this environment where not named), syne-tune-0.13, syne-tune-0.16.

Every measurement has a process of its own; only the decision calls are timed. ``last tenth`` is the mean over
the last 10 % of the results: what a decision costs once so many are known. Every measurement is run ``--repeats``
times, ours and theirs, at every size; the run with the lowest mean is shown (noise of a shared machine only adds)
and the means of all runs are in the JSON, ``runs_us``.

    python benchmarks/decisions.py --peer-python ray=/path/to/ray-env/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import result_file

DECIDE = result_file.ROOT / "decide"
PEERS = {
    "ray": ("Ray Tune AsyncHyperBand (stops)", "ray_tune.py"),
    "optuna": ("Optuna SuccessiveHalvingPruner (stops)", "optuna_halving.py"),
    "syne-tune-0.13": ("Syne Tune 0.13 ASHA (promotes)", "syne_tune_promotion.py"),
    "syne-tune-0.16": ("Syne Tune 0.16 ASHA (stops)", "syne_tune_stopping.py"),
}
PEER_RESULTS = (1_000, 10_000)
OUR_RESULTS = (1_000, 10_000, 100_000, 1_000_000)
MOST_US, MOST_GROWTH, LEAST_ENTRIES = 40.0, 1.5, 300.0


def measure(python: str, script: str, results: int, *more: str, seconds: float, repeats: int = 1) -> dict[str, Any]:
    """The best of some runs of one script; a failure is told, not hidden."""
    best: dict[str, Any] = {"results": results, "error": "not run"}
    runs = []
    for _ in range(repeats):
        try:
            done = subprocess.run(
                [python, str(DECIDE / script), "--results", str(results), *more],
                capture_output=True, text=True, timeout=seconds, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"results": results, "error": f"longer than {seconds:g} s"}
        except OSError as error:
            return {"results": results, "error": error.strerror or type(error).__name__}
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            return {"results": results, "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
        found = json.loads(lines[-1])
        runs.append(found["mean_us"])
        if "error" in best or found["mean_us"] < best["mean_us"]:
            best = found
    return best | {"runs_us": runs}


def row(name: str, found: dict[str, Any]) -> list[Any]:
    if "error" in found:
        return [f"{name}: {found['error']}", f"{found['results']:,}", *[None] * 5]
    shown = [f"{found[key]:,.1f}" for key in ("mean_us", "median_us", "p99_us", "last_tenth_us")]
    return [name, f"{found['results']:,}", *shown, found["bytes_per_trial"]]


def verdicts(figures: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The aims beside what was seen."""
    good = [found for found in figures["study, memory journal"] if "error" not in found]
    durable = [found for found in figures.get("study, SQL journal", []) if "entries_per_second" in found]
    seen: dict[str, Any] = {}
    if good:
        worst = max(found["mean_us"] for found in good)
        seen["memory_journal_us"] = {"aim": f"<= {MOST_US:g}", "seen": worst, "met": worst <= MOST_US}
        growth = round(good[-1]["mean_us"] / good[0]["mean_us"], 3)
        name = f"growth_{good[0]['results']}_to_{good[-1]['results']}"
        seen[name] = {"aim": f"<= {MOST_GROWTH:g}", "seen": growth, "met": growth <= MOST_GROWTH}
    if durable:
        rate = durable[-1]["entries_per_second"]
        seen["durable_entries_per_second"] = {
            "aim": f">= {LEAST_ENTRIES:g}",
            "seen": rate,
            "met": rate >= LEAST_ENTRIES,
        }
    return seen


def main() -> None:
    given = _parser().parse_args()
    facts = result_file.machine()
    pythons = {"optuna": sys.executable}
    for item in given.peer_python:
        name, _, path = item.partition("=")
        if name not in PEERS or not path:
            raise SystemExit(f"--peer-python {item}: write NAME=PATH with NAME one of {', '.join(PEERS)}.")
        pythons[name] = path
    counts = [n for n in OUR_RESULTS if n <= given.most]
    figures: dict[str, list[dict[str, Any]]] = {}

    def run(name: str, python: str, script: str, results: list[int], *more: str) -> None:
        for n in results:
            found = measure(python, script, n, *more, seconds=given.seconds, repeats=given.repeats)
            figures.setdefault(name, []).append(found)
            print(f"  {name}, {n:,}: {found.get('mean_us', found.get('error'))}", file=sys.stderr, flush=True)

    run("study, memory journal", sys.executable, "ours.py", counts, "--kind", "memory")
    sql = [n for n in OUR_RESULTS if n <= given.sql_results]
    run("study, SQL journal", sys.executable, "ours.py", sql, "--kind", "sql")
    run("method only", sys.executable, "ours.py", counts, "--kind", "bare")
    run("bare heap", sys.executable, "ours.py", counts, "--kind", "heap")
    for name, (title, script) in PEERS.items():
        if name in pythons:
            run(title, pythons[name], script, [n for n in PEER_RESULTS if n <= given.most])
        else:
            figures[title] = [{"results": 0, "error": "not installed (see --peer-python)"}]

    head = ["microseconds per decision", "results", "mean", "median", "p99", "last tenth", "bytes/trial"]
    result_file.table(head, [row(name, found) for name, all_found in figures.items() for found in all_found])
    aims = verdicts(figures)
    print()
    for found in figures.get("study, SQL journal", []):
        if "entries_per_second" in found:
            print(
                f"durable SQL journal, {found['results']:,} results: {found['entries_per_second']:,.0f} entries/s "
                f"of one transaction each (one fsync here: {found['fsync_us']:,.0f} us)"
            )
    for name, aim in aims.items():
        print(f"{name}: {aim['seen']:,.4g} (aim {aim['aim']}): {'met' if aim['met'] else 'MISSED'}")
    result_file.write("decisions", facts, {"figures": figures, "aims": aims}, given.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=OUR_RESULTS[-1], help="largest number of results (default 1e6)")
    parser.add_argument("--sql-results", type=int, default=10_000, help="largest number with the SQL journal")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best is shown")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time of one measurement")
    parser.add_argument(
        "--peer-python", action="append", default=[], metavar="NAME=PATH", help=f"NAME: {', '.join(PEERS)}"
    )
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/decisions.json)")
    return parser


if __name__ == "__main__":
    main()
