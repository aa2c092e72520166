"""Latency, mispromotions and scaling of ASHA: what sections 3.2 and 3.3 of the paper say, on a virtual clock.

1. **Latency.** With ``eta**(K - s)`` workers, K = log_eta(R / r), ASHA in bracket s trains its first configuration to R
   in ``sum(eta**(i - K) for i in s..K)`` times time(R) from scratch (13/9 for nine workers, R = 9, eta = 3; below
   2), and in 1 time(R) where promoted trials resume. Checked for several ladders, and drawn for fewer and more workers,
   beside synchronous SHA with n = ``eta**K``.
2. **Mispromotions.** Configurations that left a rung and are not among its best ``floor(n / eta)`` in hindsight, for
   n results so far; the paper says about sqrt(n). Nine workers, several seeds; exponent by least squares on a log-log
   scale from n = 100 on. A plain loop without study, workers or clock counts the same configurations as a check, and
   goes on to n = 100,000.
3. **Scaling**, 1 to 500 workers (eta 4, r = 1, R = 256, bracket 0, resume, durations times 1 + |z|, sd 0.5).
   Throughput: configurations evaluated (and trained to R) in five times time(R) by a search without end. Time to
   finish: a search of n configurations until it is drained; that cannot be before one trial is trained to R, nor
   before the work spread evenly over the workers is done. Speed-up is against one worker, efficiency speed-up over
   workers.

Writes results/latency.json, and latency.png, mispromotions.png and scaling.png beside it.
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
import time
from bisect import insort
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import plot_style
import result_file
from constant_curves import NO_END, Search
from numpy.typing import NDArray

from hpo_core.model.events import JobCompleted, JobGranted
from hpo_core.model.rng import Stream
from hpo_core.simulation import Faults

LADDERS = ((3, 9, 0), (3, 9, 1), (3, 27, 0), (3, 81, 0), (2, 16, 0), (2, 64, 0), (4, 64, 0), (4, 256, 0), (4, 256, 1))
"""(eta, R, s) with r = 1."""
DRAWN = ((3, 9), (3, 81), (4, 256))
PLACES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FAR = PLACES[-1]
FIT_FROM = 100
WORKERS = (1, 2, 5, 10, 25, 50, 100, 200, 500)


def asha(eta: int, top: int, configs: int, bracket: int = 0) -> dict[str, Any]:
    return {
        "method": "asha", "configs": configs, "min_resource": 1, "max_resource": top, "reduction_factor": eta,
        "brackets": [bracket],
    }  # fmt: skip


def sha(eta: int, top: int, configs: int) -> dict[str, Any]:
    return {
        "method": "sha", "configs": configs, "rounds": 1000, "min_resource": 1, "max_resource": top,
        "reduction_factor": eta,
    }  # fmt: skip


def first_at_top(search: dict[str, Any], workers: int, *, resume: bool, seed: int = 0) -> float:
    """When the first trial reaches R, in units of time(R)."""
    top = float(search["max_resource"])
    return Search(search, workers, seed=seed, resume=resume).first_completed(1000 * top) / top


def formula_check(seeds: int) -> list[dict[str, Any]]:
    found = []
    for eta, top, bracket in LADDERS:
        highest = round(math.log(top, eta))
        workers = eta ** (highest - bracket)
        expected = sum(eta ** (i - highest) for i in range(bracket, highest + 1))
        seen = {
            resume: [
                first_at_top(asha(eta, top, NO_END, bracket), workers, resume=resume, seed=seed)
                for seed in range(seeds)
            ]
            for resume in (False, True)
        }
        found.append(
            {
                "eta": eta, "R": top, "s": bracket, "workers": workers,
                "formula": round(expected, 6), "scratch": sorted({round(value, 6) for value in seen[False]}),
                "resume": sorted({round(value, 6) for value in seen[True]}),
                "holds": all(math.isclose(value, expected) for value in seen[False])
                and all(math.isclose(value, 1.0) for value in seen[True]),
            }
        )  # fmt: skip
    return found


def latency_curves() -> list[dict[str, Any]]:
    """The time until the first trial at R over the number of workers."""
    found = []
    for eta, top in DRAWN:
        workers = sorted({1, 2, 3, 5, 9, 16, 25, 50, 100, 256, top} - {n for n in (256, 100, 50) if n > 2 * top})
        for name, search in (("asha", asha(eta, top, NO_END)), ("sha", sha(eta, top, top))):
            for resume in (False, True):
                times = [round(first_at_top(search, n, resume=resume), 4) for n in workers]
                found.append(
                    {"eta": eta, "R": top, "method": name, "resume": resume, "workers": workers, "times": times}
                )
    return found


class Hindsight:
    """Results of one rung in the order they came, who left it, and how many of those should not have."""

    def __init__(self, eta: int, places: list[int]) -> None:
        self._eta = eta
        self._places = set(places)
        self._ranked: list[tuple[float, int]] = []
        self._left: dict[int, tuple[float, int]] = {}
        self._loss: dict[int, float] = {}
        self.mispromoted: dict[int, int] = {}

    def add(self, trial: int, loss: float) -> None:
        insort(self._ranked, (loss, trial))
        self._loss[trial] = loss

    def leave(self, trial: int) -> None:
        self._left[trial] = (self._loss[trial], trial)

    def look(self) -> None:
        """Count, where the rung has one of the sizes that are asked for."""
        n = len(self._ranked)
        if n in self._places and n // self._eta:
            last = self._ranked[n // self._eta - 1]
            self.mispromoted[n] = sum(key > last for key in self._left.values())


def mispromotions(eta: int, configs: int, seed: int) -> list[dict[int, int]]:
    """{results in the rung: mispromoted so far}, for the two lowest rungs, and for the base rung of :func:`bare`."""
    search = Search(asha(eta, eta**4, configs), 9, seed=seed, resume=True)
    search.executor.run()
    rungs = [Hindsight(eta, [*PLACES, configs]) for _ in range(2)]
    for entry in search.study.journal.entries(search.study.name):
        for event in entry.events:
            if isinstance(event, JobCompleted) and event.rung < 2:
                assert event.loss is not None
                rungs[event.rung].add(event.trial, event.loss)
            elif isinstance(event, JobGranted) and 1 <= event.rung <= 2:
                rungs[event.rung - 1].leave(event.trial)
        for rung in rungs:
            rung.look()
    own = [trial.params["quality"] for trial in search.study.state.trials]
    stream = Stream(seed, "further", 0)
    return [*(rung.mispromoted for rung in rungs), bare(eta, [*own, *(stream.uniform() for _ in range(configs, FAR))])]


def bare(eta: int, losses: Iterable[float]) -> dict[int, int]:
    """The same count for the base rung in a plain loop, where every candidate leaves at once: no workers, no study.

    All of the best ``floor(n / eta)`` have left then, so those that should not have are the others.
    """
    top: list[float] = []
    rest: list[float] = []
    left: set[float] = set()
    found = {}
    for n, loss in enumerate(losses, start=1):
        if top and loss < -top[0]:
            heapq.heappush(top, -loss)
            left.add(loss)
        else:
            heapq.heappush(rest, loss)
        if len(top) > n // eta:
            heapq.heappush(rest, -heapq.heappop(top))
        elif len(top) < n // eta:
            best = heapq.heappop(rest)
            heapq.heappush(top, -best)
            left.add(best)
        if n in PLACES:
            found[n] = len(left) - n // eta
    return found


def power_law(sizes: NDArray[np.float64], means: NDArray[np.float64]) -> tuple[float, float]:
    """(factor, exponent) of the line through the logarithms from FIT_FROM on."""
    fitted = (sizes >= FIT_FROM) & (means > 0)
    slope, intercept = np.polyfit(np.log(sizes[fitted]), np.log(means[fitted]), 1)
    return float(np.exp(intercept)), float(slope)


def mispromotion_figures(etas: list[int], configs: int, seeds: int) -> list[dict[str, Any]]:
    """Per eta and rung; ``interval`` holds 95 % of the exponents of 1000 resamplings of the seeds.

    ``bare`` is the plain loop with the same configurations, and further ones up to n = FAR.
    """
    found = []
    draws = np.random.default_rng(0).integers(0, seeds, size=(1000, seeds))
    for eta in etas:
        runs = [mispromotions(eta, configs, seed) for seed in range(seeds)]
        for k in range(2):
            common = sorted(set.intersection(*(set(run[k]) for run in runs)))
            sizes = np.array(common, dtype=float)
            counts = np.array([[run[k][n] for n in common] for run in runs], dtype=float)
            means = counts.mean(axis=0)
            factor, exponent = power_law(sizes, means)
            exponents = [power_law(sizes, counts[draw].mean(axis=0))[1] for draw in draws]
            found.append(
                {
                    "eta": eta, "rung": k, "n": common, "mean": means.round(2).tolist(),
                    "sd": counts.std(axis=0, ddof=1).round(2).tolist(), "factor": round(factor, 3),
                    "exponent": round(exponent, 3),
                    "interval": np.percentile(exponents, [2.5, 97.5]).round(3).tolist(),
                    "over_sqrt_n": (means / np.sqrt(sizes)).round(3).tolist(),
                }
            )  # fmt: skip
        plain = {str(n): statistics.mean(run[2][n] for run in runs) for n in PLACES}
        found[-2]["same_as_bare"] = all(run[0][n] == run[2][n] for run in runs for n in found[-2]["n"] if n in PLACES)
        found[-2]["bare"] = {n: round(mean, 2) for n, mean in plain.items()}
        found[-2]["bare_over_sqrt_n"] = {n: round(mean / math.sqrt(int(n)), 3) for n, mean in plain.items()}
    return found


def scaled(configs: int, workers: int, seed: int = 0) -> Search:
    return Search(asha(4, 256, configs), workers, seed=seed, resume=True, faults=Faults(stragglers=0.5, seed=seed))


def throughput(workers: int) -> dict[str, Any]:
    """What a search without end gets done in five times time(R); small ones are repeated, and means given."""
    runs = []
    for seed in range(max(1, min(20, 500 // workers))):
        search = scaled(NO_END, workers, seed)
        search.executor.run(until=5 * 256)
        evaluated = sum(1 for trial in search.study.state.trials if trial.results)
        runs.append((evaluated, len(search.completed), search.executor.utilization))
    configs, at_top, utilization = (statistics.mean(values) for values in zip(*runs, strict=True))
    return {
        "workers": workers, "repeats": len(runs), "configs": round(configs, 1), "at_top": round(at_top, 2),
        "utilization": round(utilization, 4),
    }  # fmt: skip


def finish(configs: int, workers: int) -> dict[str, Any]:
    """A search of ``configs`` configurations until it is drained."""
    search = scaled(configs, workers)
    search.executor.run()
    return {
        "workers": workers, "time": round(search.clock.now, 1), "work": round(search.executor.busy_seconds, 1),
        "utilization": round(search.executor.utilization, 4), "at_top": len(search.completed),
    }  # fmt: skip


def compared(runs: list[dict[str, Any]], speed: Callable[[dict[str, Any]], float]) -> list[dict[str, Any]]:
    """With the speed-up against the first run, one worker."""
    for run in runs:
        speedup = speed(run) / speed(runs[0])
        run |= {"speedup": round(speedup, 2), "efficiency": round(speedup / run["workers"], 4)}
    return runs


def draw_latency(curves: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plot_style.panels(1, len(DRAWN), 11.5, 3.8, sharey=True)
    for panel, (eta, top) in zip(axes[0], DRAWN, strict=True):
        for curve in curves:
            if (curve["eta"], curve["R"]) != (eta, top):
                continue
            ours = curve["method"] == "asha"
            panel.plot(
                curve["workers"], curve["times"], color=plot_style.BLUE if ours else plot_style.RUST,
                marker="o" if ours else "s", linestyle="-" if curve["resume"] else "--",
                label=f"{'ASHA' if ours else 'synchronous SHA'}, {'resume' if curve['resume'] else 'from scratch'}",
            )  # fmt: skip
        panel.axvline(top, color=plot_style.MUTED, linewidth=1, linestyle=":")
        panel.axhline(1, color=plot_style.MUTED, linewidth=1, linestyle=":")
        panel.set_title(f"eta {eta}, R = {top}")
        plot_style.log_axis(panel.xaxis)
        panel.set_xlabel("workers")
    axes[0][0].set_ylabel("first trial at R, in units of time(R)")
    axes[0][0].set_ylim(0.8)
    axes[0][0].legend(loc="upper right")
    plot_style.keep(figure, path)


def draw_mispromotions(found: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plot_style.panels(1, 2, 9.5, 4.4, sharey=True)
    colours = (plot_style.RUST, plot_style.BLUE, plot_style.GREEN, plot_style.PURPLE)
    etas = sorted({one["eta"] for one in found})
    for one in found:
        panel = axes[0][one["rung"]]
        place = etas.index(one["eta"])
        colour, shift = colours[place % len(colours)], 1.06 ** (place - (len(etas) - 1) / 2)
        n, mean, spread = (np.array(one[key]) for key in ("n", "mean", "sd"))
        panel.errorbar(
            n * shift, mean, yerr=[np.minimum(spread, 0.99 * mean), spread],
            color=colour, marker="o", linestyle="none", elinewidth=1.2,
            label=f"eta {one['eta']}: {one['factor']:.2f} n$^{{{one['exponent']:.2f}}}$",
        )  # fmt: skip
        further = {int(size): more for size, more in one.get("bare", {}).items() if int(size) > max(n)}
        panel.plot(
            [size * shift for size in further], list(further.values()),
            color=colour, marker="o", markerfacecolor="white", linestyle="none",
        )  # fmt: skip
        line = n[n >= FIT_FROM]
        panel.plot(line, one["factor"] * line ** one["exponent"], color=colour)
    for k, panel in enumerate(axes[0]):
        widest = max(max([*one["n"], *map(int, one.get("bare", ()))]) for one in found if one["rung"] == k)
        line = np.array([10, widest])
        panel.plot(line, np.sqrt(line), color=plot_style.INK, linestyle="--", linewidth=1.2, label="$\\sqrt{n}$")
        plot_style.log_axis(panel.xaxis, subs=(1,))
        plot_style.log_axis(panel.yaxis)
        panel.set_title("rung 1" if k else "base rung (hollow: plain loop)")
        panel.set_xlabel("results in the rung, n")
        panel.legend(loc="upper left")
    axes[0][0].set_ylim(bottom=0.3)
    axes[0][0].set_ylabel("mispromoted (mean and sd over seeds)")
    plot_style.keep(figure, path)


def draw_scaling(rates: list[dict[str, Any]], ends: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figure, axes = plot_style.panels(1, 2, 9.5, 4.2, sharex=True, sharey=True)
    left, right = axes[0]
    left.plot(
        WORKERS, [run["speedup"] for run in rates], color=plot_style.BLUE, marker="o", label="configurations evaluated"
    )
    left.set_title("throughput: done in 5 time(R)")
    left.set_ylabel("speed-up against one worker")
    for colour, (configs, runs) in zip(
        (plot_style.RUST, plot_style.BLUE, plot_style.GREEN), ends.items(), strict=False
    ):
        workers = np.array([run["workers"] for run in runs])
        right.plot(workers, [run["speedup"] for run in runs], color=colour, marker="o", label=f"n = {int(configs):,}")
        right.plot(workers, np.minimum(workers, runs[0]["work"] / 256), color=colour, linestyle=":", linewidth=1.2)
    right.set_title("time to finish n configurations")
    note = "dotted: bound, no search\nends before time(R)"
    right.annotate(note, (0.97, 0.06), xycoords="axes fraction", ha="right", color=plot_style.MUTED)
    for panel in axes[0]:
        panel.plot(WORKERS, WORKERS, color=plot_style.INK, linestyle="--", linewidth=1.2, label="linear", zorder=1)
        plot_style.log_axis(panel.xaxis)
        plot_style.log_axis(panel.yaxis)
        panel.set_xlabel("workers")
        panel.legend(loc="upper left")
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60, help="for mispromotions")
    parser.add_argument("--configs", type=int, default=10_000, help="for mispromotions")
    parser.add_argument("--etas", type=int, nargs="+", default=[2, 3, 4], help="for mispromotions")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4000, 10_000, 100_000], help="n, for scaling")
    parser.add_argument("--out", help="JSON file (default benchmarks/results/latency.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    began = time.monotonic()

    formula = formula_check(5)
    print("First trial at R, in units of time(R)")
    result_file.table(
        ["", "workers", "formula", "from scratch", "resume", "holds"],
        [
            [f"eta {one['eta']}, R = {one['R']}, s = {one['s']}", one["workers"], f"{one['formula']:.4f}"]
            + [" ".join(f"{value:.4f}" for value in one[key]) for key in ("scratch", "resume")]
            + ["yes" if one["holds"] else "NO"]
            for one in formula
        ],
    )
    curves = latency_curves()

    wrong = mispromotion_figures(given.etas, given.configs, given.seeds)
    print("\nMispromoted")
    result_file.table(
        ["", "n", "mean", "sd", "over sqrt(n)", "exponent from 100 on", "95 %"],
        [
            [f"eta {one['eta']}, rung {one['rung']}", f"{one['n'][-1]:,}"]
            + [one[key][-1] for key in ("mean", "sd", "over_sqrt_n")]
            + [one["exponent"], "{} to {}".format(*one["interval"])]
            for one in wrong
        ],
    )

    print("\nMispromoted in the base rung, over sqrt(n), plain loop")
    far = [str(n) for n in PLACES if n >= FIT_FROM]
    result_file.table(
        ["", *(f"{int(n):,}" for n in far), "same as the study"],
        [
            [f"eta {one['eta']}", *(one["bare_over_sqrt_n"][n] for n in far), "yes" if one["same_as_bare"] else "NO"]
            for one in wrong
            if not one["rung"]
        ],
    )

    rates = compared([throughput(workers) for workers in WORKERS], lambda run: float(run["configs"]))
    print("\nThroughput in 5 time(R)")
    result_file.table(
        ["workers", "evaluated", "speed-up", "efficiency", "at R", "utilization"],
        [
            [run[key] for key in ("workers", "configs", "speedup", "efficiency", "at_top", "utilization")]
            for run in rates
        ],
    )
    ends: dict[str, list[dict[str, Any]]] = {}
    for configs in given.sizes:
        runs = [finish(configs, workers) for workers in WORKERS]
        ends[str(configs)] = compared(runs, lambda run: 1 / float(run["time"]))
        print(f"\nTime to finish, n = {configs:,}")
        result_file.table(
            ["workers", "time", "speed-up", "efficiency", "at R", "utilization"],
            [
                [run[key] for key in ("workers", "time", "speedup", "efficiency", "at_top", "utilization")]
                for run in runs
            ],
        )
    seconds = round(time.monotonic() - began, 1)
    figures = {
        "seconds": seconds, "seeds": given.seeds, "formula": formula, "latency": curves,
        "mispromotions": wrong, "throughput": rates, "finish": ends,
    }  # fmt: skip
    out = result_file.write("latency", facts, figures, given.out)
    draw_latency(curves, out.with_suffix(".png"))
    draw_mispromotions(wrong, out.with_name("mispromotions.png"))
    draw_scaling(rates, ends, out.with_name("scaling.png"))


if __name__ == "__main__":
    main()
