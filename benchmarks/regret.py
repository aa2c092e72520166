"""Regret of ASHA and random search on recorded learning curves, beside the reference figures.

Promotion ASHA (eta 3, r = 1) and random search play every table of ``DATA/curves`` on a virtual clock with the
budget and the workers that ``DATA/reference/ref_eta3_w9.json`` names: T = budget_full_runs / workers x the mean
seconds of a full training. Regret: of the best configuration observed, fully trained, 0 the best of the table,
1 its median or worse. The reference has a mean over 25 seeds and no spread; ours is taken for its own, so
``within`` means |difference| <= 2 standard errors of the difference, which with 25 seeds of our own is 2 sqrt(2)
standard errors of our mean; else the table says ``better`` or ``worse``. Of 28 comparisons at that width one or
two fall outside by chance. More ``--seeds`` narrow our side only.

Of the same ASHA searches also the regret of the best of the highest rung (``best_of: highest_rung``).

Writes results/regret.json and results/regret.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import result_file
from scipy.stats import wilcoxon

from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from hpo_core.study import Study

METHODS = ("asha", "random")
REFERENCE_SEEDS = 25
KEYS = {"asha": "asha_regret_mean", "random": "rs_regret_mean"}


def play(table: CurveTable, method: str, seed: int, *, until: float, workers: int) -> Study:
    """One search on one table until the virtual clock says so."""
    rows = table.losses.shape[0]
    search: dict[str, Any] = {"method": method, "configs": rows, "max_resource": table.max_resource}
    if method == "asha":
        search |= {"min_resource": 1, "reduction_factor": 3}
    clock = VirtualClock()
    spec = {
        "study": table.name,
        "metric": {"name": "loss"},
        "space": {"row": {"type": "int", "low": 0, "high": rows - 1}},
        "search": search,
        "seed": seed,
    }
    study = Study.create(spec, sampler=TableSampler(rows, seed), clock=clock)
    Simulation(study, clock, workers=workers, train=table.train, seconds=table.cost).run(until=until)
    return study


def regret(table: CurveTable, study: Study, *, highest_rung: bool = False) -> float:
    best = study.best_of_highest_rung if highest_rung else study.best
    return 1.0 if best is None else table.regret(study.state.trials[best.trial].params["row"])


def on_table(table: CurveTable, reference: dict[str, Any], seeds: int) -> dict[str, Any]:
    until = reference["budget_full_runs"] / reference["workers"] * float(np.nanmean(table.seconds[:, -1]))
    found: dict[str, Any] = {"workers": reference["workers"], "budget_full_runs": reference["budget_full_runs"]}
    regrets: dict[str, list[float]] = {}
    for method in METHODS:
        studies = [play(table, method, seed, until=until, workers=reference["workers"]) for seed in range(seeds)]
        regrets[method] = values = [regret(table, study) for study in studies]
        spread = statistics.stdev(values)
        noise = 2 * spread * math.sqrt(1 / seeds + 1 / REFERENCE_SEEDS)
        mean, theirs = statistics.mean(values), reference[KEYS[method]]
        found[method] = {
            "mean": round(mean, 4),
            "median": round(statistics.median(values), 4),
            "sem": round(spread / math.sqrt(seeds), 4),
            "reference": theirs,
            "noise": round(noise, 4),
            "within": abs(mean - theirs) <= noise,
            "trials": round(statistics.mean(len(study.state.trials) for study in studies), 1),
        }
        if method == "asha":
            top = [regret(table, study, highest_rung=True) for study in studies]
            differences = [a - b for a, b in zip(top, values, strict=True)]
            found["asha_highest_rung"] = {
                "mean": round(statistics.mean(top), 4),
                "minus_all_rungs": round(statistics.mean(differences), 4),
                "sem": round(statistics.stdev(differences) / math.sqrt(seeds), 4),
            }
    pairs = list(zip(regrets["asha"], regrets["random"], strict=True))
    ties = sum(a == b for a, b in pairs)
    wins = sum(a < b for a, b in pairs)
    p = 1.0 if ties == len(pairs) else float(wilcoxon(*zip(*pairs, strict=True)).pvalue)
    found["asha_over_random"] = {
        "wins": wins,
        "ties": ties,
        "losses": len(pairs) - wins - ties,
        "p": float(f"{p:.2g}"),
    }
    theirs_wtl = [reference[key] for key in ("asha_wins", "ties", "asha_losses")]
    found["reference_wins_ties_losses"] = theirs_wtl
    return found


def word(one: dict[str, Any]) -> str:
    if one["within"]:
        return "yes"
    return "better" if one["mean"] < one["reference"] else "worse"


def draw(figures: dict[str, Any], path: Path) -> None:
    """A row per table: ours with two standard errors, the reference as a cross. Plain SVG, a few kB."""
    left, width, step, top = 290, 560, 30, 46
    height = top + step * len(figures) + 42

    def x(value: float) -> float:
        return left + width * min(max(value, 0.0), 0.8) / 0.8

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18" font-size="14">mean normalised regret (0 = best of the table)</text>',
        f'<text x="{left}" y="35" fill="#555"><tspan fill="#0b6e99">&#9679; ASHA</tspan>   '
        '<tspan fill="#b5541c">&#9679; random search</tspan>   bars: 2 standard errors   &#215; reference</text>',
    ]
    for tick in range(0, 9, 2):
        at = x(tick / 10)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{top}" y2="{height - 36}" stroke="#ddd"/>')
        parts.append(f'<text x="{at}" y="{height - 20}" text-anchor="middle">{tick / 10}</text>')
    for k, (name, found) in enumerate(figures.items()):
        middle = top + step * k + step / 2
        parts.append(f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{name}</text>')
        for method, colour, shift in (("asha", "#0b6e99", -5), ("random", "#b5541c", 5)):
            one, y = found[method], middle + shift
            low, high = x(one["mean"] - 2 * one["sem"]), x(one["mean"] + 2 * one["sem"])
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x(one["mean"]):.1f}" cy="{y}" r="3.5" fill="{colour}"/>')
            parts.append(f'<path d="M{x(one["reference"]) - 4:.1f} {y - 4}l8 8m0 -8l-8 8" stroke="black" fill="none"/>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/regret.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts = result_file.machine()
    references = {one["task"]: one for one in json.loads((folder / "reference" / "ref_eta3_w9.json").read_text())}
    began = time.monotonic()
    figures = {}
    for path in sorted((folder / "curves").glob("*.npz")):
        if path.stem in references:
            figures[path.stem] = on_table(CurveTable.load(path), references[path.stem], given.seeds)
        else:
            print(f"{path.stem}: no reference figures; left out")

    rows = []
    for name, found in figures.items():
        cells: list[Any] = [name]
        for method in METHODS:
            one = found[method]
            cells += [f"{one['mean']:.3f} ±{one['sem']:.3f}", f"{one['reference']:.3f}", word(one)]
        over = found["asha_over_random"]
        reference = "/".join(map(str, found["reference_wins_ties_losses"]))
        rows.append([*cells, f"{over['wins']}/{over['ties']}/{over['losses']}", f"{over['p']:.2g}", reference])
    head = ["table", "ASHA", "reference", "within", "random", "reference", "within", "w/t/l", "p", "reference"]
    result_file.table(head, rows)
    inside = {method: sum(found[method]["within"] for found in figures.values()) for method in METHODS}
    means = {
        method: {
            "ours": round(statistics.mean(found[method]["mean"] for found in figures.values()), 4),
            "reference": round(statistics.mean(found[method]["reference"] for found in figures.values()), 4),
        }
        for method in METHODS
    }
    result_file.table(
        ["table", "best of all rungs", "best of the highest rung", "difference"],
        [
            [
                name,
                f"{one['asha']['mean']:.3f}",
                f"{top['mean']:.3f}",
                f"{top['minus_all_rungs']:+.3f} ±{top['sem']:.3f}",
            ]
            for name, one in figures.items()
            for top in [one["asha_highest_rung"]]
        ],
    )
    means["asha_highest_rung"] = {
        "ours": round(statistics.mean(found["asha_highest_rung"]["mean"] for found in figures.values()), 4)
    }
    print(f"best of the highest rung, mean over tables: {means['asha_highest_rung']['ours']:.4f}")
    seconds = round(time.monotonic() - began, 1)
    for method in METHODS:
        print(
            f"\n{method}: inside the noise of the reference on {inside[method]} of {len(figures)} tables; mean "
            f"over tables {means[method]['ours']:.4f}, reference {means[method]['reference']:.4f}",
            end="",
        )
    print(f"\n{2 * given.seeds * len(figures)} searches in {seconds} s")
    out = result_file.write(
        "regret",
        facts,
        {"seeds": given.seeds, "seconds": seconds, "inside": inside, "means": means, "tables": figures},
        given.out,
    )
    draw(figures, out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
