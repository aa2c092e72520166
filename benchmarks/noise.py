"""Does it help ASHA to promote only what leads by more than the noise? (``search.noise``, off by default)

Plain ASHA against the same with ``noise: auto`` (estimated from the learning curves) and, where a table has repeats
with other seeds, with their standard deviation as the number given; eta 3, r = 1, nine virtual workers, the same
configurations in the same order. Regret (0 best of the table, 1 its median) at equal resource: at a quarter, half and
all of 20 full trainings, or of half of what plain ASHA needs for the whole table, if that is less. ``better`` and
``worse`` want p < 0.05 in a Wilcoxon signed-rank test over the seeds, so of 54 comparisons with nothing behind them
one or two would come out on each side; ``equal`` says that no difference was shown.

Writes results/noise.json and results/noise.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import result_file
from scipy.stats import wilcoxon

from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from hpo_core.study import Study

ETA, WORKERS, FULL_RUNS = 3, 9, 20
PARTS = (0.25, 0.5, 1.0)
LEAST_P = 0.05


class Run(NamedTuple):
    path: list[tuple[int, float]]
    """(resource used, regret) whenever the best loss changed."""
    results: list[int]
    """Results per rung."""
    resource: int
    noise: dict[int, float]
    """Standard deviation of the noise in a difference of two losses, by level, as known in the end."""


def play(table: CurveTable, seed: int, noise: float | str | None, budget: int | None) -> Run:
    """One search until it used the budget (None: until the whole table drained)."""
    rows = table.losses.shape[0]
    clock = VirtualClock()
    spec = {
        "study": table.name,
        "metric": {"name": "loss"},
        "space": {"row": {"type": "int", "low": 0, "high": rows - 1}},
        "search": {
            "method": "asha", "configs": rows, "min_resource": 1, "max_resource": table.max_resource,
            "reduction_factor": ETA, "noise": noise,
        },
        "seed": seed,
    }  # fmt: skip
    study = Study.create(spec, sampler=TableSampler(rows, seed), clock=clock)
    executor = Simulation(study, clock, workers=WORKERS, train=table.train, seconds=table.cost, curve=table.curve)
    path: list[tuple[int, float]] = []
    best = None
    while not study.finished and (budget is None or study.state.resource_used < budget):
        executor.run(max_reports=1)
        if study.best is not None and study.best != best:
            best = study.best
            path.append((study.state.resource_used, table.regret(study.state.trials[best.trial].params["row"])))
    rungs = study.method.rungs()
    estimate = study.method.noise  # type: ignore[attr-defined]
    known = {rung.level: estimate.of_difference(rung.level) if estimate else 0.0 for rung in rungs[:-1]}
    return Run(path, [rung.results for rung in rungs], study.state.resource_used, known)


def at(run: Run, resource: float) -> float:
    """Regret once so much was used."""
    return next((regret for used, regret in reversed(run.path) if used <= resource), 1.0)


def seed_noise(path: Path, table: CurveTable) -> float | None:
    """Median standard deviation over repeats with other seeds, over all points of the curves; None without repeats."""
    with np.load(path) as data:
        metric = json.loads(str(data["meta_json"]))["primary_metric"]
        if f"rep1_{metric}" in data:
            tables = [data[metric][data["rep1_index"]], data[f"rep1_{metric}"], data[f"rep2_{metric}"]]
            curves = np.stack(tables).astype(np.float64)
            spreads = np.std(curves[:, np.isfinite(curves).all(axis=(0, 2))], axis=0, ddof=1)
        elif f"rep_{metric}" in data:
            settings = data["rep_X"][:, :2]
            groups = [np.flatnonzero((settings == one).all(axis=1)) for one in np.unique(settings, axis=0)]
            curves = data[f"rep_{metric}"].astype(np.float64)[:, -table.max_resource :]
            spreads = np.stack([np.std(curves[group], axis=0, ddof=1) for group in groups])
        else:
            return None
    return float(np.nanmedian(spreads))


def compared(ours: list[float], others: list[float]) -> dict[str, Any]:
    """Paired: how the first fares against the second; lower is better."""
    pairs = list(zip(ours, others, strict=True))
    wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    p = float(wilcoxon(ours, others).pvalue) if wins + losses else 1.0
    verdict = "equal" if p >= LEAST_P else ("better" if statistics.mean(ours) < statistics.mean(others) else "worse")
    return {
        "regret": round(statistics.mean(ours), 4),
        "sem": round(statistics.stdev(ours) / math.sqrt(len(ours)), 4),
        "plain": round(statistics.mean(others), 4),
        "wins_ties_losses": [wins, len(pairs) - wins - losses, losses],
        "p": float(f"{p:.2g}"),
        "verdict": verdict,
    }


def on_table(path: Path, seeds: int) -> dict[str, Any]:
    table = CurveTable.load(path)
    drained = play(table, 0, None, None).resource
    budget = min(FULL_RUNS * table.max_resource, drained // 2)
    settings: dict[str, float | str | None] = {"plain": None, "auto": "auto"}
    given = seed_noise(path, table)
    if given is not None:
        settings["seeds"] = given
    runs = {name: [play(table, seed, noise, budget) for seed in range(seeds)] for name, noise in settings.items()}
    found: dict[str, Any] = {"budget": budget, "seed_noise": given}
    for name, own in runs.items():
        found[name] = {
            "results": [
                round(statistics.mean(counts), 1) for counts in zip(*(run.results for run in own), strict=True)
            ],
            "noise_of_difference": {
                str(level): float(f"{statistics.median(run.noise[level] for run in own):.3g}") for level in own[0].noise
            },
        }
        if name != "plain":
            for part in PARTS:
                pairs = [[at(run, part * budget) for run in one] for one in (own, runs["plain"])]
                found[name][f"at {part:g}"] = compared(*pairs)
    return found


def tabulate(figures: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    head = ["table, noise", "units"]
    head += [f"{word} at {part:g}" for part in PARTS for word in ("plain", "with", "is")]
    head += ["results per rung: plain", "with"]
    rows: list[list[Any]] = []
    for name, one in figures.items():
        for kind in ("auto", "seeds"):
            if kind not in one:
                continue
            cells: list[Any] = [f"{name}, {kind}", one["budget"]]
            for part in PARTS:
                two = one[kind][f"at {part:g}"]
                cells += [f"{two['plain']:.3f}", f"{two['regret']:.3f}", two["verdict"]]
            rows.append([*cells, *("/".join(f"{n:.0f}" for n in one[key]["results"]) for key in ("plain", kind))])
    return head, rows


def summarize(figures: dict[str, dict[str, Any]]) -> str:
    sentences = []
    for kind in ("auto", "seeds"):
        own = [one for one in figures.values() if kind in one]
        for part in PARTS:
            cells = [one[kind][f"at {part:g}"] for one in own]
            words = [cell["verdict"] for cell in cells]
            told = ", ".join(f"{word} on {words.count(word)}" for word in ("better", "equal", "worse"))
            means = [statistics.mean(cell[key] for cell in cells) for key in ("regret", "plain")]
            sentences.append(
                f"- noise: {kind}, at {part:g} of the budget: {told} of {len(own)} tables; mean regret {means[0]:.4f}, "
                f"plain {means[1]:.4f}."
            )
    return "\n".join(sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/noise.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts = result_file.machine()
    began = time.monotonic()
    figures = {path.stem: on_table(path, given.seeds) for path in sorted((folder / "curves").glob("*.npz"))}
    head, rows = tabulate(figures)
    result_file.table(head, rows)
    summary = summarize(figures)
    print(f"\n{summary}\n{time.monotonic() - began:.0f} s")
    out = result_file.write("noise", facts, {"seeds": given.seeds, "tables": figures, "summary": summary}, given.out)
    lines = [f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows]]
    out.with_suffix(".md").write_text("\n".join([*lines, "", summary]) + "\n")


if __name__ == "__main__":
    main()
