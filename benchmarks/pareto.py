"""Cost of a result and the decision after it in a rung with several objectives.

Four kinds of losses: objectives drawn independently; correlated (few trials on each of many fronts); a trade-off
with noise; and all trials on one front, the worst case for the order within a front. One result goes in, and the
candidate, if there is one, is promoted: eta 4. ``last tenth`` is the mean over the last 10 % of the results.

    python benchmarks/pareto.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import result_file

from hpo_core.search.pareto_rungs import ParetoRung

SIZES = (1_000, 10_000)
OBJECTIVES = (2, 3, 5)
KINDS = ("independent", "correlated", "trade-off", "one front")


def losses(kind: str, results: int, objectives: int) -> npt.NDArray[np.float64]:
    """[results, objectives], the same at every run."""
    generator = np.random.default_rng(0)
    if kind == "independent":
        return generator.random((results, objectives))
    if kind == "correlated":
        return generator.random((results, 1)) + 0.1 * generator.random((results, objectives))
    shares = generator.exponential(size=(results, objectives))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares if kind == "one front" else shares + 0.5 * generator.random((results, 1))


def measure(kind: str, results: int, objectives: int) -> dict[str, Any]:
    rung = ParetoRung(1, 4)
    seconds = []
    for trial, row in enumerate(losses(kind, results, objectives).tolist()):
        start = time.perf_counter()
        rung.add(trial, tuple(row))
        candidate = rung.candidate()
        if candidate is not None:
            rung.promote(candidate)
        seconds.append(time.perf_counter() - start)
    us = np.array(seconds) * 1e6
    return {
        "kind": kind, "objectives": objectives, "results": results, "promoted": rung.promoted,
        "mean_us": round(float(us.mean()), 1), "p99_us": round(float(np.quantile(us, 0.99)), 1),
        "last_tenth_us": round(float(us[-results // 10 :].mean()), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file for the figures; default results/pareto.json")
    given = parser.parse_args()
    facts = result_file.machine()
    found = [measure(kind, size, m) for kind in KINDS for m in OBJECTIVES for size in SIZES]
    columns = ("kind", "objectives", "results", "promoted", "mean_us", "p99_us", "last_tenth_us")
    head = ["losses", "objectives", "results", "promoted", "mean us", "p99", "last tenth"]
    result_file.table(head, [[figures[key] for key in columns] for figures in found])
    result_file.write("pareto", facts, {"rungs": found}, given.out)


if __name__ == "__main__":
    main()
