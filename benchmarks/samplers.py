"""Samplers under ASHA on recorded learning curves: regret at shares of the budget, and seconds per suggestion.

Protocol of ``regret.py``: promotion ASHA (eta 3, r = 1) plays every table of ``DATA/curves`` in virtual time with the
workers and the budget that ``DATA/reference/ref_eta3_w9.json`` names. Each sampler works in the table's own search
space; its proposals are moved to the nearest row not tried yet (``sampler_tables.py``), random ones too. Regret: of the
incumbent (lowest loss on any rung), fully trained; 0 the best of the table, 1 its median or worse.

- ``minus random``: mean difference to random, paired by table and seed, with a 95 % interval from 10,000 bootstrap
  samples of tables, and of seeds within each. ``ratio``: of the means.
- ``worse on``: tables whose own 95 % interval (over seeds) lies above 0 at the end of the budget.
- Time: CPU milliseconds of ``propose`` in a study with n trials of an ASHA search over eight parameters, with all
  that it costs to show the history to the sampler; median of 7.

A run takes hours with TPESampler. Each search is added to results/samplers.runs.jsonl at once, and what is there is not
played again; delete it after a change to a sampler. Writes results/samplers.json, .md and .png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import plot_style
import result_file
from numpy.typing import NDArray
from sampler_tables import RowsOf, SpaceOfTable

from hpo_core.model.events import JobCompleted
from hpo_core.samplers.sampler import Sampler
from hpo_core.simulation import CurveTable, Simulation, VirtualClock
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import create_sampler
from hpo_core.study import Study

LOOKS = {
    "random": ("random", plot_style.RUST, ":"),
    "TPESampler": ("TPESampler", plot_style.GOLD, "--"),
    "ranked_gp": ("ranked_gp", plot_style.BLUE, "-"),
}
SHOWN = (10, 25, 50, 100)
"""Percent of the budget."""
POINTS = 100
SIZES = (50, 100, 200, 500, 1000)
Regrets = NDArray[np.float64]


def play(
    table: SpaceOfTable,
    reference: dict[str, Any],
    sampler: str,
    seed: int,
    *,
    create: Callable[[StudySpec], Sampler] = create_sampler,
) -> dict[str, Any]:
    """One search: the regret after each percent of the budget."""
    curves, clock = table.curves, VirtualClock()
    until = reference["budget_full_runs"] / reference["workers"] * float(np.nanmean(curves.seconds[:, -1]))
    spec = StudySpec.from_plain(
        {
            "study": curves.name,
            "metric": {"name": "loss"},
            "space": table.space,
            "sampler": {"name": sampler},
            "search": {
                "method": "asha",
                "configs": len(table.rows),
                "min_resource": 1,
                "max_resource": curves.max_resource,
                "reduction_factor": 3,
                "brackets": [0],
            },
            "seed": seed,
        }
    )
    rows = RowsOf(create(spec), table)
    study = Study.create(spec, sampler=rows, clock=clock)
    began = time.process_time()
    Simulation(study, clock, workers=reference["workers"], train=rows.train, seconds=rows.cost).run(until=until)
    regrets = regrets_of(study, rows, curves, until)
    return {
        "table": curves.name,
        "sampler": sampler,
        "seed": seed,
        "trials": len(rows.rows),
        "cpu_seconds": round(time.process_time() - began, 2),
        "regrets": regrets.round(5).tolist(),
    }


def regrets_of(study: Study, rows: RowsOf, curves: CurveTable, until: float) -> Regrets:
    """The regret of the incumbent after each percent of the budget; 1 before the first result."""
    regrets, best = np.ones(POINTS + 1), math.inf
    for entry in study.journal.entries(study.name):
        for event in entry.events:
            if isinstance(event, JobCompleted) and event.loss is not None and event.loss < best:
                best = event.loss
                now = math.ceil(POINTS * entry.time / until - 1e-9)
                regrets[now:] = curves.regret(rows.rows[event.trial])
    return regrets


def bootstrapped(differences: dict[str, NDArray[np.float64]], samples: int = 10_000) -> tuple[float, float, float]:
    """Mean over tables of the mean over seeds, and the ends of its 95 % interval."""
    rng = np.random.default_rng(0)
    drawn = np.stack([d[rng.integers(0, len(d), (samples, len(d)))].mean(axis=1) for d in differences.values()])
    if len(differences) > 1:
        drawn = np.take_along_axis(drawn, rng.integers(0, len(drawn), (len(drawn), samples)), axis=0)
    low, high = np.quantile(drawn.mean(axis=0), [0.025, 0.975])
    return statistics.mean(float(d.mean()) for d in differences.values()), float(low), float(high)


def compared(runs: dict[tuple[str, str, int], Regrets]) -> dict[str, Any]:
    """Every sampler against random, on the searches that both have played."""
    found: dict[str, Any] = {}
    for sampler in LOOKS:
        pairs = sorted((t, s) for t, name, s in runs if name == sampler and (t, "random", s) in runs)
        tables = sorted({t for t, _ in pairs})
        if not pairs:
            continue
        ours = {t: np.array([runs[t, sampler, s] for u, s in pairs if u == t]) for t in tables}
        theirs = {t: np.array([runs[t, "random", s] for u, s in pairs if u == t]) for t in tables}
        one: dict[str, Any] = {"searches": len(pairs), "at": {}, "worse_on": [], "better_on": []}
        one["tables"] = {
            t: {"mean": round(float(ours[t][:, -1].mean()), 4), "random": round(float(theirs[t][:, -1].mean()), 4)}
            for t in tables
        }
        one["curve"] = np.mean([ours[t].mean(axis=0) for t in tables], axis=0)[:: POINTS // 50].round(4).tolist()
        for percent in SHOWN:
            mean, low, high = bootstrapped({t: ours[t][:, percent] - theirs[t][:, percent] for t in tables})
            level, base = (statistics.mean(float(x[t][:, percent].mean()) for t in tables) for x in (ours, theirs))
            one["at"][f"{percent} %"] = {
                "mean": round(level, 4),
                "minus_random": [round(mean, 4), round(low, 4), round(high, 4)],
                "ratio": round(level / base, 3),
            }
        for t in tables:
            _, low, high = bootstrapped({t: ours[t][:, -1] - theirs[t][:, -1]})
            if sampler != "random" and (low > 0 or high < 0):
                one["worse_on" if low > 0 else "better_on"].append(t)
        found[sampler] = one
    return found


def suggestion_times(sampler: str) -> dict[str, float]:
    """Milliseconds by the number of trials."""
    found = {}
    for size in SIZES:
        space = {f"p{k}": {"type": "float", "low": 0.0, "high": 1.0} for k in range(8)}
        search = {"method": "asha", "configs": 10_000, "max_resource": 81, "reduction_factor": 3}
        common = {"study": "time", "metric": {"name": "loss"}, "space": space, "search": search, "seed": 1}
        asked = create_sampler(StudySpec.from_plain(common | {"sampler": {"name": sampler}}))
        clock = VirtualClock()
        study = Study.create(StudySpec.from_plain(common | {"sampler": {"name": "random"}}), clock=clock)

        def train(job: Any) -> dict[str, float]:
            return {"loss": sum((x - 0.4) ** 2 for x in job.params.values()) + 1 / job.target}

        executor = Simulation(study, clock, workers=9, train=train, seconds=lambda job: float(job.target))
        while len(study.state.trials) < size:
            executor.run(max_reports=1)
        for entry in study.journal.entries("time"):
            for event in entry.events:
                asked.apply(event)
        took = []
        for again in range(7):
            began = time.process_time()
            asked.propose(len(study.state.trials) + again)
            took.append(1e3 * (time.process_time() - began))
        found[str(size)] = round(statistics.median(took), 2)
    return found


def draw(figures: dict[str, Any], times: dict[str, dict[str, float]], path: Path) -> None:
    figure, [[left, right]] = plot_style.panels(1, 2, 11, 4.4)
    for sampler, one in figures.items():
        name, colour, style = LOOKS[sampler]
        left.plot(np.linspace(0, 100, len(one["curve"])), one["curve"], color=colour, linestyle=style, label=name)
    left.set_xlabel("budget used (% of worker time)")
    left.set_ylabel("normalised regret of the incumbent")
    left.set_title("ASHA, mean over tables")
    left.set_ylim(0, 1)
    left.legend()
    for sampler, found in times.items():
        name, colour, style = LOOKS[sampler]
        right.plot([int(n) for n in found], list(found.values()), color=colour, linestyle=style, marker="o", label=name)
    plot_style.log_axis(right.xaxis)
    plot_style.log_axis(right.yaxis)
    right.set_xlabel("trials")
    right.set_ylabel("CPU milliseconds per suggestion")
    right.legend()
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ and reference/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--samplers", nargs="+", default=list(LOOKS), choices=list(LOOKS))
    parser.add_argument("--tables", nargs="+", help="names of curve tables (default: all with reference figures)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further search after these")
    parser.add_argument("--no-times", action="store_true", help="measure no suggestion times")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/samplers.json)")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data)
    facts, began = result_file.machine(), time.monotonic()
    references = {one["task"]: one for one in json.loads((folder / "reference" / "ref_eta3_w9.json").read_text())}
    out = Path(given.out) if given.out else result_file.RESULTS / "samplers.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = out.with_suffix(".runs.jsonl")
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    runs = {(one["table"], one["sampler"], one["seed"]): np.array(one["regrets"]) for one in lines}
    names = given.tables or [path.stem for path in sorted((folder / "curves").glob("*.npz")) if path.stem in references]
    tables = {name: SpaceOfTable(folder / "curves" / f"{name}.npz") for name in names}
    for seed in range(given.seeds):
        for name, table in tables.items():
            for sampler in given.samplers:
                if (name, sampler, seed) in runs or time.monotonic() - began > 60 * given.minutes:
                    continue
                one = play(table, references[name], sampler, seed)
                runs[name, sampler, seed] = np.array(one["regrets"])
                with kept.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    times = {} if given.no_times else {sampler: suggestion_times(sampler) for sampler in given.samplers}
    figures = compared(runs)
    head = ["sampler", "searches", *(f"at {k} %" for k in SHOWN), "ratio at 25 %", "at 100 %", "minus random at 100 %"]
    rows = [
        [
            sampler,
            one["searches"],
            *(f"{one['at'][f'{k} %']['mean']:.3f}" for k in SHOWN),
            f"{one['at']['25 %']['ratio']:.2f}",
            f"{one['at']['100 %']['ratio']:.2f}",
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*one["at"]["100 %"]["minus_random"]),
        ]
        for sampler, one in figures.items()
    ]
    result_file.table(head, rows)
    result_file.write("samplers", facts, {"samplers": figures, "milliseconds": times}, str(out))
    out.with_suffix(".md").write_text(result_file.markdown(head, rows))
    draw(figures, times, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
