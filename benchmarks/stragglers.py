"""Stragglers and dropped jobs: synchronous successive halving against ASHA (Li et al., MLSys 2020, A.1, Figure 7).

As there: eta 4, r = 1, R = 256, n = 256, s = 0, 25 workers; a job of k units takes k (1 + |z|) time units, z normal
with standard deviation sd; in each time unit it is dropped with probability p; 25 repetitions. Counted: configurations
trained to R within the limit, and the time until the first one. Synchronous SHA adds a bracket of 256 whenever
workers are free; ASHA samples without end.

The text of the paper names neither the grid, nor the limit, nor what becomes of a dropped job, so these are
choices made here: sd 0.10, 0.24, 0.56, 1.33; p 0 to 0.01; 2000 time units; and three worlds:

- ``retry`` (the one drawn first): a dropped job is noticed, goes back to the queue and begins anew; a job trains from
  scratch, so that its time is its resource, as the paper assumes;
- ``resume``: the same, but a promoted trial goes on from its checkpoint;
- ``abandon``: from scratch, and a dropped job's configuration is lost and ranks last in the rung it was heading for.

Where no trial reaches R within the limit, the clock runs on to ten times the limit; what has none then counts as
that, and the JSON says how often. ``more``, ``sooner``: the means differ by more than two standard errors of the
difference; of 48 comparisons with nothing behind them about one would come out in favour of each side.

Writes results/stragglers.json and stragglers.md, stragglers.png (the first world) and stragglers-worlds.png.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

import plot_style
import result_file
from constant_curves import NO_END, Search

from hpo_core.simulation import Faults

WORKERS = 25
LADDER: dict[str, Any] = {"min_resource": 1, "max_resource": 256, "reduction_factor": 4}
SEARCHES: dict[str, dict[str, Any]] = {
    "sha": {"method": "sha", "configs": 256, "rounds": 10_000, **LADDER},
    "asha": {"method": "asha", "configs": NO_END, "brackets": [0], **LADDER},
}
WORLDS: dict[str, dict[str, Any]] = {
    "retry": {"resume": False, "drop": "retry"},
    "resume": {"resume": True, "drop": "retry"},
    "abandon": {"resume": False, "drop": "abandon"},
}
NAMES = {
    "retry": "A dropped job begins anew; every job trains from scratch",
    "resume": "A dropped job begins anew; promoted trials resume from their checkpoints",
    "abandon": "A dropped job's configuration is lost; every job trains from scratch",
}
SDS = (0.10, 0.24, 0.56, 1.33)
DROPS = (0.0, 0.002, 0.004, 0.006, 0.008, 0.010)
LOOKS = {"sha": (plot_style.RUST, "synchronous SHA", "s"), "asha": (plot_style.BLUE, "ASHA", "o")}


def play(method: str, world: str, sd: float, drop: float, seed: int, limit: float) -> tuple[int, float, int]:
    """(configurations trained to R within the limit, time until the first one, configurations started within it)."""
    faults = Faults(stragglers=sd, drops=drop, drop=WORLDS[world]["drop"], seed=seed)
    search = Search(SEARCHES[method], WORKERS, seed=seed, resume=WORLDS[world]["resume"], faults=faults)
    search.executor.run(until=limit)
    completed, started = len(search.completed), len(search.study.state.trials)
    return completed, search.first_completed(10 * limit), started


def summary(runs: list[tuple[int, float, int]], limit: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in (("completed", [run[0] for run in runs]), ("first", [run[1] for run in runs])):
        found[name] = round(statistics.mean(values), 2)
        found[f"{name}_sem"] = round(statistics.stdev(values) / math.sqrt(len(values)), 3)
    found["started"] = round(statistics.mean(run[2] for run in runs), 1)
    found["none_within_limit"] = sum(run[0] == 0 for run in runs)
    found["none_at_all"] = sum(run[1] >= 10 * limit for run in runs)
    return found


def verdict(ours: dict[str, Any], theirs: dict[str, Any], key: str) -> int:
    """1: ASHA's mean is larger by more than two standard errors of the difference, -1: smaller, 0: neither."""
    gap = ours[key] - theirs[key]
    noise = 2 * math.hypot(ours[f"{key}_sem"], theirs[f"{key}_sem"])
    return 0 if abs(gap) <= noise else (1 if gap > 0 else -1)


def cell_of(world: str, sd: float, drop: float, repeats: int, limit: float) -> dict[str, Any]:
    cell: dict[str, Any] = {"sd": sd, "p": drop}
    for method in SEARCHES:
        cell[method] = summary([play(method, world, sd, drop, seed, limit) for seed in range(repeats)], limit)
    sha, asha = cell["sha"], cell["asha"]
    cell["completed_ratio"] = round(asha["completed"] / sha["completed"], 3) if sha["completed"] else None
    cell["first_ratio"] = round(asha["first"] / sha["first"], 3)
    cell["more"] = verdict(asha, sha, "completed")
    cell["sooner"] = -verdict(asha, sha, "first")
    return cell


def rows_of(cells: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    words = {1: "yes", 0: "no difference", -1: "opposite"}
    rows: list[list[Any]] = []
    for cell in cells:
        sha, asha = cell["sha"], cell["asha"]
        row: list[Any] = [f"{cell['sd']:.2f}", f"{cell['p']:.3f}"]
        row += [f"{one['completed']:.1f} ±{one['completed_sem']:.1f}" for one in (sha, asha)]
        row += [cell["completed_ratio"], words[cell["more"]]]
        row += [f"{one['first']:.0f} ±{one['first_sem']:.0f}" for one in (sha, asha)]
        row += [cell["first_ratio"], words[cell["sooner"]], f"{sha['none_within_limit']}/{asha['none_within_limit']}"]
        rows.append([*row, f"{sha['started']:,.0f}/{asha['started']:,.0f}"])
    first = ["sd", "p", "SHA to R", "ASHA to R", "ratio", "more"]
    return [*first, "SHA first", "ASHA first", "ratio", "sooner", "none in limit", "started"], rows


def draw(worlds: dict[str, list[dict[str, Any]]], limit: float, path: Path) -> None:
    """Per world a row of counts and a row of times, a column per sd."""
    sds = sorted({cell["sd"] for cells in worlds.values() for cell in cells})
    step = max(cell["p"] for cells in worlds.values() for cell in cells) / 120
    figure = plot_style.blank(11.5, 5.6 * len(worlds))
    parts = figure.subfigures(len(worlds), 1, squeeze=False, hspace=0.04)
    for part, (world, cells) in zip(parts[:, 0], worlds.items(), strict=True):
        part.suptitle(NAMES[world], x=0.01, ha="left", fontsize=12, fontweight="bold")
        axes = part.subplots(2, len(sds), sharex=True, sharey="row", squeeze=False)
        for j, sd in enumerate(sds):
            own = [cell for cell in cells if cell["sd"] == sd]
            for panel, key in zip(axes[:, j], ("completed", "first"), strict=True):
                for shift, (method, (colour, label, marker)) in zip((-step, step), LOOKS.items(), strict=True):
                    means = [cell[method][key] for cell in own]
                    twice = [2 * cell[method][f"{key}_sem"] for cell in own]
                    low = [min(wide, 0.99 * mean) for wide, mean in zip(twice, means, strict=True)]
                    panel.errorbar(
                        [cell["p"] + shift for cell in own], means, yerr=[low, twice],
                        color=colour, label=label, marker=marker, elinewidth=1.2,
                    )  # fmt: skip
            axes[0][j].set_title(f"sd {sd:.2f}")
            axes[1][j].set_xlabel("drop probability p")
            plot_style.few_ticks(axes[1][j].xaxis)
            axes[1][j].axhline(limit, color=plot_style.MUTED, linewidth=1, linestyle=":")
        axes[0][0].set_ylabel(f"trained to R in {limit:.0f} units")
        axes[0][0].set_ylim(bottom=0)
        axes[1][0].set_ylabel("time until the first (units)")
        plot_style.log_axis(axes[1][0].yaxis)
        axes[0][-1].legend(loc="upper right")
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--limit", type=float, default=2000.0, help="time units")
    parser.add_argument("--sd", type=float, nargs="+", default=SDS)
    parser.add_argument("--p", type=float, nargs="+", default=DROPS)
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--out", help="JSON file (default benchmarks/results/stragglers.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    began = time.monotonic()
    worlds: dict[str, list[dict[str, Any]]] = {}
    for world in given.worlds:
        worlds[world] = [cell_of(world, sd, drop, given.repeats, given.limit) for sd in given.sd for drop in given.p]
        print(f"\n{NAMES[world]}: trained to R within the limit, and time until the first one")
        result_file.table(*rows_of(worlds[world]))
    seconds = round(time.monotonic() - began, 1)
    counts = {
        world: {
            key: {
                word: sum(cell[key] == sign for cell in cells)
                for word, sign in (("yes", 1), ("no", 0), ("opposite", -1))
            }
            for key in ("more", "sooner")
        }
        for world, cells in worlds.items()
    }
    for world, found in counts.items():
        print(f"{world}: of {len(worlds[world])} cells, more: {found['more']}, sooner: {found['sooner']}")
    figures = {
        "repeats": given.repeats, "limit": given.limit, "workers": WORKERS, "ladder": LADDER,
        "seconds": seconds, "verdicts": counts, "worlds": worlds,
    }  # fmt: skip
    out = result_file.write("stragglers", facts, figures, given.out)
    parts = [f"## {NAMES[world]}\n\n{result_file.markdown(*rows_of(cells))}" for world, cells in worlds.items()]
    out.with_suffix(".md").write_text("\n".join(parts))
    first, *others = worlds
    draw({first: worlds[first]}, given.limit, out.with_suffix(".png"))
    if others:
        draw({world: worlds[world] for world in others}, given.limit, out.with_name(f"{out.stem}-worlds.png"))


if __name__ == "__main__":
    main()
