"""The halving family on recorded learning curves: anytime regret of seven methods on all curve tables.

Protocol of ``regret.py``: every method plays every table of ``DATA/curves`` on a virtual clock with the workers and the
budget that ``DATA/reference/ref_eta3_w9.json`` names, T = budget_full_runs / workers x the mean seconds of a full
training; eta 3, r = 1, trials resume. Regret at a moment: of the incumbent (best loss seen so far on any rung), fully
trained, 0 the best of the table, 1 its median or worse, and 1 before the first result. All methods meet the same
configurations in the same order per seed; where a method wants more than the table has, it meets them again.

- ``asha``: promotion, bracket 0; ``stopping``: the stopping variant; ``brackets``: promotion, brackets 0 to 2, width by
  budget (the paper's production setting); ``sha``: synchronous, n = eta ** (rungs - 1), brackets added while waiting;
  ``hyperband``: synchronous, all brackets in a loop; ``pasha``: progressive ASHA; ``random``: random search.
- w/t/l: seeds won, tied and lost against random search at the end of the budget, paired by seed; p: Wilcoxon.
  ``better`` and ``worse`` count tables at 5 % after Holm's correction over all tables and methods. ``against ASHA``:
  tables won, tied and lost against its promotion variant by mean regret, and Wilcoxon's p over tables.
- ``used``: share of the budget's worker time in which jobs ran; below 1 where a method is done before the budget ends.

Writes results/halving_family.json, .md, .png (mean over tables) and halving_family-tables.png (each table).
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
import plot_style
import result_file
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from hpo_core.model.events import JobCompleted
from hpo_core.model.rng import derive_seed
from hpo_core.model.trial import Params
from hpo_core.search.rungs import rung_levels
from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from hpo_core.study import Study

LOOKS = {
    "asha": ("ASHA, promotion", plot_style.BLUE, "-"),
    "stopping": ("ASHA, stopping", plot_style.GREEN, "-"),
    "brackets": ("ASHA, brackets 0-2", plot_style.PURPLE, "-"),
    "pasha": ("PASHA", plot_style.PINK, "-"),
    "sha": ("synchronous SHA", plot_style.GOLD, "--"),
    "hyperband": ("Hyperband", plot_style.GREY, "--"),
    "random": ("random search", plot_style.RUST, ":"),
}
POINTS = 100
SHOWN = (10, 25, 50, 100)
"""Percent of the budget."""


class Shuffled(TableSampler):
    """The rows of a table in a random order, and then in other ones."""

    def __init__(self, rows: int, seed: int) -> None:
        super().__init__(rows, seed)
        self._rows, self._seed = rows, seed
        self._later: dict[int, TableSampler] = {}

    def propose(self, number: int) -> Params:
        lap, place = divmod(number, self._rows)
        if not lap:
            return super().propose(place)
        if lap not in self._later:
            self._later[lap] = TableSampler(self._rows, derive_seed(self._seed, "lap", lap))
        return self._later[lap].propose(place)


def search_of(method: str, table: CurveTable) -> dict[str, Any]:
    rows, top = table.losses.shape[0], table.max_resource
    ladder = {"min_resource": 1, "max_resource": top, "reduction_factor": 3}
    levels = rung_levels(1, top, 3)
    searches: dict[str, dict[str, Any]] = {
        "asha": {"method": "asha", "configs": rows, "brackets": [0], **ladder},
        "stopping": {"method": "asha", "variant": "stopping", "configs": rows, "brackets": [0], **ladder},
        "brackets": {"method": "asha", "configs": rows, "brackets": [0, 1, 2], **ladder},
        "pasha": {"method": "pasha", "configs": rows, **ladder},
        "sha": {"method": "sha", "configs": 3 ** (len(levels) - 1), "rounds": 1000, **ladder},
        "hyperband": {"method": "hyperband", "rounds": 1000, **ladder},
        "random": {"method": "random", "configs": rows, "max_resource": top},
    }
    return searches[method]


def play(table: CurveTable, method: str, seed: int, *, until: float, workers: int) -> dict[str, Any]:
    """One search until the virtual clock says so: regret after each percent of the budget, and what it took."""
    rows = table.losses.shape[0]
    clock = VirtualClock()
    spec = {
        "study": table.name,
        "metric": {"name": "loss"},
        "space": {"row": {"type": "int", "low": 0, "high": rows - 1}},
        "search": search_of(method, table),
        "seed": seed,
    }
    study = Study.create(spec, sampler=Shuffled(rows, seed), clock=clock)
    executor = Simulation(
        study, clock, workers=workers, train=table.train, seconds=table.cost,
        curve=table.curve if study.method.reads_curves else None,
    )  # fmt: skip
    executor.run(until=until)
    clock.now = until  # jobs that run on count as used up to here
    regrets = np.ones(POINTS + 1)
    best = math.inf
    for entry in study.journal.entries(study.name):
        for event in entry.events:
            if isinstance(event, JobCompleted) and event.loss is not None and event.loss < best:
                best = event.loss
                now = math.ceil(POINTS * entry.time / until - 1e-9)
                regrets[now:] = table.regret(study.state.trials[event.trial].params["row"])
    return {
        "regrets": regrets,
        "trials": len(study.state.trials),
        "highest": max((trial.resource for trial in study.state.trials), default=0) / table.max_resource,
        "used": executor.executor.utilization,
    }


def against(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> dict[str, Any]:
    wins, ties = int((ours < theirs).sum()), int((ours == theirs).sum())
    p = 1.0 if ties == len(ours) else float(wilcoxon(ours, theirs).pvalue)
    return {"wins": wins, "ties": ties, "losses": len(ours) - wins - ties, "p": float(f"{p:.2g}")}


def on_table(table: CurveTable, reference: dict[str, Any], seeds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures by method, mean regret curves by method)."""
    workers = reference["workers"]
    until = reference["budget_full_runs"] / workers * float(np.nanmean(table.seconds[:, -1]))
    found: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    ends: dict[str, NDArray[np.float64]] = {}
    for method in LOOKS:
        runs = [play(table, method, seed, until=until, workers=workers) for seed in range(seeds)]
        regrets = np.array([run["regrets"] for run in runs])
        curves[method] = regrets.mean(axis=0)
        ends[method] = regrets[:, -1]
        found[method] = {
            "mean": round(float(regrets[:, -1].mean()), 4),
            "sem": round(float(regrets[:, -1].std(ddof=1) / math.sqrt(seeds)), 4) if seeds > 1 else 0.0,
            "at": {f"{k} %": round(float(curves[method][k * POINTS // 100]), 4) for k in SHOWN},
            "trials": round(statistics.mean(run["trials"] for run in runs), 1),
            "highest": round(statistics.mean(run["highest"] for run in runs), 3),
            "used": round(statistics.mean(run["used"] for run in runs), 3),
        }
    for method in LOOKS:
        if method != "random":
            found[method]["against_random"] = against(ends[method], ends["random"])
    return found, curves


def holm(tables: dict[str, dict[str, Any]], level: float = 0.05) -> set[tuple[str, str]]:
    """(table, method) pairs whose difference from random search holds after Holm's correction."""
    tests = sorted(
        (found[method]["against_random"]["p"], name, method)
        for name, found in tables.items() for method in found if method != "random"
    )  # fmt: skip
    kept: set[tuple[str, str]] = set()
    for k, (p, name, method) in enumerate(tests):
        if p > level / (len(tests) - k):
            break
        kept.add((name, method))
    return kept


def summary(tables: dict[str, dict[str, Any]], curves: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Per method, over tables."""
    ranks = np.array([rankdata([found[method]["mean"] for method in LOOKS]) for found in tables.values()]).mean(axis=0)
    kept = holm(tables)
    found: dict[str, Any] = {}
    for method, rank in zip(LOOKS, ranks, strict=True):
        found[method] = {
            "mean": round(statistics.mean(one[method]["mean"] for one in tables.values()), 4),
            "at": {f"{k} %": round(float(curves[method][k * POINTS // 100]), 4) for k in SHOWN},
            "rank": round(float(rank), 2),
            "used": round(statistics.mean(one[method]["used"] for one in tables.values()), 3),
            "trials": round(statistics.mean(one[method]["trials"] for one in tables.values()), 1),
            "curve": curves[method][:: POINTS // 50].round(4).tolist(),
        }
        if method != "asha":
            ours, theirs = ([one[name]["mean"] for one in tables.values()] for name in (method, "asha"))
            found[method]["against_asha"] = against(np.array(ours), np.array(theirs))
        if method == "random":
            continue
        sums = {
            key: sum(one[method]["against_random"][key] for one in tables.values())
            for key in ("wins", "ties", "losses")
        }
        sure = [one[method]["mean"] < one["random"]["mean"] for name, one in tables.items() if (name, method) in kept]
        found[method] |= sums | {"better": sum(sure), "worse": len(sure) - sum(sure)}
    return found


def label(method: str) -> str:
    return LOOKS[method][0]


def score(one: dict[str, Any]) -> str:
    return f"{one['wins']}/{one['ties']}/{one['losses']} {one['p']:.1e}"


Rows = list[list[Any]]


def regret_rows(tables: dict[str, dict[str, Any]]) -> tuple[list[str], Rows]:
    head = ["table", *map(label, LOOKS)]
    return head, [
        [name, *(f"{found[method]['mean']:.3f} ±{found[method]['sem']:.3f}" for method in LOOKS)]
        for name, found in tables.items()
    ]


def random_rows(tables: dict[str, dict[str, Any]]) -> tuple[list[str], Rows]:
    others = [method for method in LOOKS if method != "random"]
    return ["table", *map(label, others)], [
        [name, *(score(found[method]["against_random"]) for method in others)] for name, found in tables.items()
    ]


def method_rows(over: dict[str, Any]) -> tuple[list[str], Rows]:
    rows: Rows = []
    for method, one in over.items():
        row: list[Any] = [label(method), *(f"{one['at'][f'{k} %']:.3f}" for k in SHOWN)]
        row += [one["rank"], one["used"], one["trials"]]
        if method != "random":
            row += [f"{one['wins']}/{one['ties']}/{one['losses']}", f"{one['better']}/{one['worse']}"]
        else:
            row += [None, None]
        rows.append([*row, score(one["against_asha"]) if method != "asha" else None])
    share = [f"at {k} %" for k in SHOWN]
    return ["", *share, "mean rank", "used", "trials", "w/t/l", "better/worse", "against ASHA, p"], rows


def show(tables: dict[str, dict[str, Any]], over: dict[str, Any], path: Path | None = None) -> None:
    """Print the tables, or write them to a Markdown file."""
    parts = {
        "Mean regret at the end of the budget": regret_rows(tables),
        "Against random search: seeds won/tied/lost and p": random_rows(tables),
        "Over tables": method_rows(over),
    }
    if path is not None:
        path.write_text("\n".join(f"## {title}\n\n{result_file.markdown(*part)}" for title, part in parts.items()))
        return
    for title, part in parts.items():
        print(f"\n{title}")
        result_file.table(*part)


def line(panel: Axes, curve: NDArray[np.float64], method: str) -> None:
    name, colour, style = LOOKS[method]
    x = np.linspace(0, 100, len(curve))
    panel.plot(x, curve, color=colour, linestyle=style, label=name, drawstyle="steps-post")


def draw_mean(curves: dict[str, NDArray[np.float64]], tables: int, seeds: int, path: Path) -> None:
    figure, [[panel]] = plot_style.panels(1, 1, 8.5, 4.8)
    for method in LOOKS:
        line(panel, curves[method], method)
    plot_style.log_axis(panel.yaxis)
    panel.set_xlim(0, 100)
    panel.set_xlabel("budget used (% of worker time)")
    panel.set_ylabel("normalised regret of the incumbent")
    panel.set_title(f"mean over {tables} tables, {seeds} seeds each")
    panel.legend(loc="lower left", ncols=2)
    plot_style.keep(figure, path)


def draw_tables(curves: dict[str, dict[str, NDArray[np.float64]]], path: Path) -> None:
    columns = 4
    rows = math.ceil((len(curves) + 1) / columns)
    figure, axes = plot_style.panels(rows, columns, 12, 2.5 * rows)
    panels = [panel for row in axes for panel in row]
    for k, (panel, (name, found)) in enumerate(zip(panels, curves.items(), strict=False)):
        for method in LOOKS:
            line(panel, found[method], method)
        panel.set_title(name.replace("taskset_imdb_", "imdb_"), fontsize=9)
        panel.set_xlim(0, 100)
        panel.set_ylim(0, 1.02)
        panel.set_xticks([0, 50, 100])
        panel.set_yticks([0, 0.5, 1])
        if k + columns >= len(curves):
            panel.set_xlabel("budget used (%)")
        if not k % columns:
            panel.set_ylabel("regret")
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    panels[len(curves)].legend(*panels[0].get_legend_handles_labels(), loc="center left")
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--tables", nargs="+", help="names of curve tables (default: all with reference figures)")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/halving_family.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts = result_file.machine()
    references = {one["task"]: one for one in json.loads((folder / "reference" / "ref_eta3_w9.json").read_text())}
    unknown = set(given.tables or ()) - set(references)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}; known: {', '.join(references)}")
    began = time.monotonic()
    tables: dict[str, dict[str, Any]] = {}
    curves: dict[str, dict[str, NDArray[np.float64]]] = {}
    for path in sorted((folder / "curves").glob("*.npz")):
        if path.stem in references and path.stem in (given.tables or references):
            table = CurveTable.load(path)
            tables[path.stem], curves[path.stem] = on_table(table, references[path.stem], given.seeds)
    means = {method: np.mean([found[method] for found in curves.values()], axis=0) for method in LOOKS}
    over = summary(tables, means)
    show(tables, over)
    seconds = round(time.monotonic() - began, 1)
    print(f"\n{len(LOOKS) * given.seeds * len(tables)} searches in {seconds} s")
    figures = {"seeds": given.seeds, "seconds": seconds, "methods": over, "tables": tables}
    out = result_file.write("halving_family", facts, figures, given.out)
    show(tables, over, out.with_suffix(".md"))
    draw_mean(means, len(tables), given.seeds, out.with_suffix(".png"))
    draw_tables(curves, out.with_name(f"{out.stem}-tables.png"))


if __name__ == "__main__":
    main()
