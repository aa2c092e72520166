"""What PASHA saves against ASHA on real curves, and what that costs (Bohdal et al., ICLR 2023).

Both try the same configurations (256 of a table, or half of it where it is smaller) in the same order on nine virtual
workers, r = 1, until they drain, with eta 3 (the default) and eta 2 (more rungs). Then: resource used, virtual time,
the highest rung that opened, and the normalised regret (0 best of the table, 1 its median) of the configuration with
the lowest loss seen, were it trained to the end. ``better`` and ``worse`` want p < 0.05 in a Wilcoxon signed-rank test
over the seeds; ``equal`` says that no difference was shown, not that there is none.

``ASHA stopped``: the same ASHA, ended at the resource that PASHA used; what PASHA's saving is worth against no method
at all. ``two rungs``: ASHA whose maximum resource is PASHA's first ceiling, the most that PASHA could save.

Writes results/pasha.json, results/pasha.md and results/pasha.png.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import plot_style
import result_file
from scipy.stats import wilcoxon

from hpo_core.simulation import CurveTable, Simulation, TableSampler, VirtualClock
from hpo_core.study import Study

ETAS, WORKERS, MOST = (3, 2), 9, 256
LEAST_P = 0.05


class Run(NamedTuple):
    resource: int
    seconds: float
    regret: float
    level: int
    """Highest level that trials could reach in the end."""
    path: list[tuple[int, float]]
    """(resource used, regret) whenever the best loss changed."""


def play(table: CurveTable, method: str, seed: int, eta: int, configs: int, max_resource: int | None = None) -> Run:
    """One search until it drains."""
    rows = table.losses.shape[0]
    search: dict[str, Any] = {
        "method": method,
        "configs": configs,
        "min_resource": 1,
        "max_resource": max_resource or table.max_resource,
        "reduction_factor": eta,
    }
    clock = VirtualClock()
    spec = {
        "study": table.name,
        "metric": {"name": "loss"},
        "space": {"row": {"type": "int", "low": 0, "high": rows - 1}},
        "search": search,
        "seed": seed,
    }
    study = Study.create(spec, sampler=TableSampler(rows, seed), clock=clock)
    executor = Simulation(study, clock, workers=WORKERS, train=table.train, seconds=table.cost, curve=table.curve)
    path: list[tuple[int, float]] = []
    best = None
    while not study.finished:
        executor.run(max_reports=1)
        if study.best is not None and study.best != best:
            best = study.best
            path.append((study.state.resource_used, table.regret(study.state.trials[best.trial].params["row"])))
    level = max(rung.level for rung in study.method.rungs() if rung.is_open)
    return Run(study.state.resource_used, clock.now, path[-1][1] if path else 1.0, level, path)


def at(run: Run, resource: float) -> float:
    """Regret of a search ended once it had used so much."""
    return next((regret for used, regret in reversed(run.path) if used <= resource), 1.0)


def compared(ours: list[float], others: list[float]) -> dict[str, Any]:
    """Paired: how the first fares against the second; lower is better."""
    pairs = list(zip(ours, others, strict=True))
    wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    p = float(wilcoxon(ours, others).pvalue) if wins + losses else 1.0
    verdict = "equal" if p >= LEAST_P else ("better" if statistics.mean(ours) < statistics.mean(others) else "worse")
    return {"wins_ties_losses": [wins, len(pairs) - wins - losses, losses], "p": float(f"{p:.2g}"), "verdict": verdict}


def mean_of(values: list[float], digits: int = 4) -> dict[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.mean(values), digits), "sem": round(spread / math.sqrt(len(values)), digits)}


def on_table(table: CurveTable, eta: int, seeds: int, configs: int) -> dict[str, Any]:
    configs = min(configs, table.losses.shape[0] // 2)
    asha = [play(table, "asha", seed, eta, configs) for seed in range(seeds)]
    pasha = [play(table, "pasha", seed, eta, configs) for seed in range(seeds)]
    two = [play(table, "asha", seed, eta, configs, max_resource=eta) for seed in range(seeds)]
    stopped = [at(a, b.resource) for a, b in zip(asha, pasha, strict=True)]
    regret = [run.regret for run in pasha]
    found: dict[str, Any] = {"configs": configs}
    for name, runs in (("asha", asha), ("pasha", pasha), ("two_rungs", two)):
        found[name] = {
            "resource": mean_of([run.resource for run in runs], 1),
            "seconds": mean_of([run.seconds for run in runs], 1),
            "regret": mean_of([run.regret for run in runs]),
        }
    found["asha_stopped"] = {"regret": mean_of(stopped)}
    for what in ("resource", "seconds"):
        ratio = [getattr(a, what) / getattr(b, what) for a, b in zip(asha, pasha, strict=True)]
        found[f"speed_up_{what}"] = mean_of(ratio, 3)
    found["reached"] = {
        str(level): sum(run.level == level for run in pasha) for level in sorted({run.level for run in pasha})
    }
    found["against_asha"] = compared(regret, [run.regret for run in asha])
    found["against_asha_stopped"] = compared(regret, stopped)
    return found


def main() -> None:
    given = _parser().parse_args()
    folder = result_file.data_folder(given.data)
    facts = result_file.machine()
    began = time.monotonic()
    tables = [CurveTable.load(path) for path in sorted((folder / "curves").glob("*.npz"))]
    figures: dict[int, dict[str, dict[str, Any]]] = {}
    lines, summaries = [], {}
    for eta in ETAS:
        figures[eta] = {table.name: on_table(table, eta, given.seeds, given.configs) for table in tables}
        head, rows = tabulate(figures[eta])
        summaries[eta] = f"eta {eta}: {summarize(figures[eta])}"
        print(f"\neta {eta}")
        result_file.table(head, rows)
        lines += [f"## eta {eta}", ""]
        lines += [f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows]]
        lines += ["", summaries[eta], ""]
    print(*summaries.values(), sep="\n")
    print(f"{3 * given.seeds * len(tables) * len(ETAS)} searches in {time.monotonic() - began:.0f} s")
    out = result_file.write("pasha", facts, {"seeds": given.seeds, "summary": summaries, "eta": figures}, given.out)
    out.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")
    draw(figures[ETAS[0]], out.with_suffix(".png"))


def tabulate(figures: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    head = [
        "table", "configs", "ASHA units", "PASHA units", "saves", "in time", "two rungs", "ceiling reached (seeds)",
        "ASHA regret", "PASHA regret", "PASHA is", "p", "ASHA stopped", "PASHA is then",
    ]  # fmt: skip
    rows = []
    for name, one in figures.items():
        units = {key: one[key]["resource"]["mean"] for key in ("asha", "pasha", "two_rungs")}
        regrets = [f"{one[key]['regret']['mean']:.3f} ±{one[key]['regret']['sem']:.3f}" for key in ("asha", "pasha")]
        rows.append(
            [
                name, one["configs"], f"{units['asha']:,.0f}", f"{units['pasha']:,.0f}",
                f"{one['speed_up_resource']['mean']:.2f}x", f"{one['speed_up_seconds']['mean']:.2f}x",
                f"{units['asha'] / units['two_rungs']:.2f}x",
                ", ".join(f"{level} ({count})" for level, count in one["reached"].items()),
                *regrets, one["against_asha"]["verdict"], one["against_asha"]["p"],
                f"{one['asha_stopped']['regret']['mean']:.3f}", one["against_asha_stopped"]["verdict"],
            ]
        )  # fmt: skip
    return head, rows


def summarize(figures: dict[str, dict[str, Any]]) -> str:
    words = {key: [one[key]["verdict"] for one in figures.values()] for key in ("against_asha", "against_asha_stopped")}
    means = {
        what: math.exp(statistics.mean(math.log(one[f"speed_up_{what}"]["mean"]) for one in figures.values()))
        for what in ("resource", "seconds")
    }
    least, most = (f(one["speed_up_resource"]["mean"] for one in figures.values()) for f in (min, max))

    def told(key: str) -> str:
        return ", ".join(f"{word} on {words[key].count(word)}" for word in ("better", "equal", "worse"))

    return (
        f"PASHA uses {means['resource']:.2f} times less resource than ASHA ({least:.2f} to {most:.2f}) and ends "
        f"{means['seconds']:.2f} times sooner (geometric means over {len(figures)} tables). "
        f"Its regret is {told('against_asha')}; "
        f"against ASHA stopped at the same resource it is {told('against_asha_stopped')}."
    )


def draw(figures: dict[str, dict[str, Any]], path: Path) -> None:
    """A row per table: how much less resource, and the regret of both."""
    names = list(figures)
    figure, ((left, right),) = plot_style.panels(1, 2, 12.5, 0.36 * len(names) + 1.6, sharey=True)
    places = range(len(names))
    for shift, what, colour, label in (
        (-0.13, "resource", plot_style.BLUE, "PASHA, resource"),
        (0.13, "seconds", plot_style.GREEN, "PASHA, time on nine workers"),
    ):
        found = [figures[name][f"speed_up_{what}"] for name in names]
        left.errorbar(
            [one["mean"] for one in found], [place + shift for place in places],
            xerr=[2 * one["sem"] for one in found], fmt="o", color=colour, label=label, elinewidth=1.2,
        )  # fmt: skip
    limits = [figures[n]["asha"]["resource"]["mean"] / figures[n]["two_rungs"]["resource"]["mean"] for n in names]
    left.plot(
        limits, list(places), "|", color=plot_style.MUTED, markersize=11, label="two rungs only: the most it could save"
    )
    left.axvline(1, color=plot_style.INK, linewidth=1)
    left.set_yticks(list(places), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel("times less than ASHA")
    left.set_title("What PASHA saves")
    for shift, key, colour, label in (
        (-0.2, "asha", plot_style.RUST, "ASHA"),
        (0.0, "pasha", plot_style.BLUE, "PASHA"),
        (0.2, "asha_stopped", plot_style.GOLD, "ASHA stopped at PASHA's resource"),
    ):
        found = [figures[name][key]["regret"] for name in names]
        right.errorbar(
            [one["mean"] for one in found], [place + shift for place in places],
            xerr=[2 * one["sem"] for one in found], fmt="o", color=colour, label=label, elinewidth=1.2,
        )  # fmt: skip
    right.set_xlabel("normalised regret (0 best of the table, 1 its median)")
    right.set_title("What it finds")
    for panel in (left, right):
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9)
    plot_style.keep(figure, path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with curves/ (HPO_BENCH_DATA, or ../shared/data)")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--configs", type=int, default=MOST)
    parser.add_argument("--out", help="JSON file (default benchmarks/results/pasha.json)")
    return parser


if __name__ == "__main__":
    main()
