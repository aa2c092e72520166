"""Hop policies: makespan over the lower bound, processor time per unit, what barriers cost and replicas gain.

24 cells: homogeneous, heterogeneous configurations, heterogeneous workers x 16, 32, 64, 256 configurations x 8, 16
workers (Section 5.4 of Cerebro, with partitions as workers), and 8 more where both are heterogeneous, as in the
paper's Figure 6 B. One epoch. A unit's time is the cost of the configuration, drawn from 35 CNNs
(``mop/cnn_costs.csv``), over the speed of the worker, drawn from four GPUs. A cell is the mean over the seeds.

``known``: unit times are known. ``off``: each unit takes up to 20 % more or less than expected. ``unknown``: no unit
time is known; they are estimated from the units that end. ``bound``: the busiest worker or the longest configuration.
``at_once``: all configurations of a one-shot search at once, or two for each worker, and a next one as one ends.

    python benchmarks/hopper.py [--data FOLDER] [--seeds 20]
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plot_style
import result_file
from exact_hops import solve
from played_hops import Played, lower_bound, play

from hpo_core.hopper.board import PlannedUnit, UnitEnd, UnitTimes
from hpo_core.hopper.hop_policies import POLICIES
from hpo_core.hopper.hop_schedule import HopSchedule
from hpo_core.model.rng import Stream

GPUS = (12.1, 5.6, 11.3, 18.7)
"""TFLOPS/s of a Titan Xp, K80, GTX 1080 and P100."""
KINDS = ("homogeneous", "configurations", "workers", "both")
SIZES = [(configurations, workers) for configurations in (16, 32, 64, 256) for workers in (8, 16)]
OFF = 0.2
"""Share by which a unit may take more or less than expected."""
SHOWN = ("remaining", "randomized")
VARIANTS: list[tuple[str, float, bool | str]] = [
    ("known", 0.0, True), ("off", OFF, True), ("unknown", 0.0, False)
]  # fmt: skip


class KnownTimes(UnitTimes):
    """Times that are known before the first unit."""

    def __init__(self, costs: list[float], slowness: list[float]) -> None:
        super().__init__()
        self._known_costs, self._known_slowness = costs, slowness

    def is_known(self, configuration: int) -> bool:
        return True

    def cost(self, configuration: int) -> float:
        return self._known_costs[configuration]

    def slowness(self, worker: str) -> float:
        return self._known_slowness[int(worker)]


class Problem:
    """Costs, slowness of the workers, and the true seconds of each unit."""

    def __init__(self, kind: str, size: tuple[int, int], seed: int, costs: list[float], *, off: float = 0.0) -> None:
        rng = random.Random(f"{kind} {size} {seed}")
        mean = statistics.mean(costs)
        self.costs = [rng.choice(costs) if kind in ("configurations", "both") else mean for _ in range(size[0])]
        self.slowness = [10 / rng.choice(GPUS) if kind in ("workers", "both") else 1.0 for _ in range(size[1])]
        self.seconds = [[cost * slow * (1 + rng.uniform(-off, off)) for slow in self.slowness] for cost in self.costs]
        self.seed = seed

    def schedule(
        self,
        policy: str,
        *,
        known: bool = True,
        replicas: int = 1,
        epochs: list[int] | None = None,
        kind: type[HopSchedule] = HopSchedule,
    ) -> HopSchedule:
        times = KnownTimes(self.costs, self.slowness) if known else UnitTimes()
        count = len(self.slowness)
        schedule = kind(count, POLICIES[policy](Stream(self.seed, "hops", 0)), times=times)
        for worker in range(count):
            schedule.worker_joined(str(worker), [(worker + place) % count for place in range(replicas)])
        for configuration in range(len(self.costs)):
            schedule.add(configuration, to=epochs[configuration] if epochs else 1)
        return schedule

    def unit(self, unit: PlannedUnit) -> float:
        """The true seconds; they depend on the worker where replicas let the partition be visited elsewhere."""
        return self.seconds[unit.configuration][int(unit.worker)]


class Timed(HopSchedule):
    """Adds up the processor time of its own calls."""

    spent = 0.0
    units = 0

    def next_units(self) -> list[PlannedUnit]:
        start = time.process_time()
        units = super().next_units()
        self.spent += time.process_time() - start
        self.units += len(units)
        return units

    def unit_ended(self, unit: PlannedUnit, *, seconds: float | None = None) -> UnitEnd:
        start = time.process_time()
        end = super().unit_ended(unit, seconds=seconds)
        self.spent += time.process_time() - start
        return end


def cells(costs: list[float], seeds: int) -> list[dict[str, Any]]:
    rows = []
    for kind in KINDS:
        for size in SIZES:
            row: dict[str, Any] = {"kind": kind, "configurations": size[0], "workers": size[1]}
            for variant, off, known in VARIANTS:
                problems = [Problem(kind, size, seed, costs, off=off) for seed in range(seeds)]
                for policy in SHOWN:
                    ratios = [
                        play(one.schedule(policy, known=known), one.unit).makespan / lower_bound(one.seconds)
                        for one in problems
                    ]
                    row[f"{policy}, {variant}"] = round(statistics.mean(ratios), 4)
                    row[f"{policy}, {variant}, worst"] = round(max(ratios), 4)
            rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over the 24 cells of the three kinds, and over all 32."""
    found = []
    for name, chosen in (("24 cells", [row for row in rows if row["kind"] != "both"]), ("32 cells", rows)):
        for variant, _, _ in VARIANTS:
            for policy in SHOWN:
                values = [row[f"{policy}, {variant}"] for row in chosen]
                behind = sum(row[f"remaining, {variant}"] > row[f"randomized, {variant}"] for row in chosen)
                found.append({
                    "cells": name, "times": variant, "policy": policy,
                    "mean": round(statistics.mean(values), 4), "worst cell": round(max(values), 4),
                    "worst run": max(row[f"{policy}, {variant}, worst"] for row in chosen),
                    "remaining behind in": behind,
                })  # fmt: skip
    return found


def processor_time(costs: list[float], repeats: int) -> list[dict[str, Any]]:
    """Microseconds of the schedule's own calls per unit: the least of several repeats, one epoch."""
    found = []
    for kind in KINDS:
        for size in SIZES:
            row: dict[str, Any] = {"kind": kind, "configurations": size[0], "workers": size[1]}
            for policy in SHOWN:
                runs = []
                for seed in range(repeats):
                    problem = Problem(kind, size, seed, costs, off=OFF)
                    schedule = problem.schedule(policy, kind=Timed)
                    play(schedule, problem.unit)
                    assert isinstance(schedule, Timed)
                    runs.append(1e6 * schedule.spent / schedule.units)
                row[policy], row[f"{policy}, median"] = round(min(runs), 2), round(statistics.median(runs), 2)
            found.append(row)
    return found


def with_barrier(problem: Problem, epochs: list[int], policy: str) -> Played:
    """As Cerebro: the next epoch begins when all configurations have ended this one."""
    behind = {"left": len(epochs), "epoch": 1}

    def on_end(schedule: HopSchedule, unit: PlannedUnit, end: UnitEnd) -> None:
        behind["left"] -= end.job_ended
        if behind["left"]:
            return
        behind["epoch"] += 1
        for configuration, count in enumerate(epochs):
            if count >= behind["epoch"]:
                schedule.add(configuration, after=behind["epoch"] - 1, to=behind["epoch"])
                behind["left"] += 1

    return play(problem.schedule(policy, epochs=[1] * len(epochs)), problem.unit, on_end=on_end)


def barriers(costs: list[float], seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Makespan over the bound of the whole study, all configurations with as many epochs, or with 1 up to as many."""
    found = []
    for kind in KINDS:
        for size in SIZES[:6]:
            row: dict[str, Any] = {"kind": kind, "configurations": size[0], "workers": size[1]}
            problems = [Problem(kind, size, seed, costs, off=OFF) for seed in range(seeds)]
            for name in ("equal", "unequal"):
                for policy in SHOWN:
                    ratios: dict[str, list[float]] = {"barrier": [], "none": []}
                    for one in problems:
                        rng = random.Random(one.seed)
                        counts = [epochs if name == "equal" else rng.randint(1, epochs) for _ in one.costs]
                        total = [
                            [count * each for each in line] for count, line in zip(counts, one.seconds, strict=True)
                        ]
                        bound = lower_bound(total)
                        ratios["barrier"].append(with_barrier(one, counts, policy).makespan / bound)
                        ratios["none"].append(play(one.schedule(policy, epochs=counts), one.unit).makespan / bound)
                    for barrier, values in ratios.items():
                        row[f"{policy}, {name}, {barrier}"] = round(statistics.mean(values), 4)
            found.append(row)
    return found


def replicas(costs: list[float], seeds: int) -> list[dict[str, Any]]:
    """Makespan with 2, 3 and all replicas over that with one, 16 workers; hops over units."""
    found = []
    for kind in KINDS:
        for configurations in (16, 64):
            problems = [Problem(kind, (configurations, 16), seed, costs) for seed in range(seeds)]
            alone = [play(one.schedule("remaining"), one.unit).makespan for one in problems]
            row: dict[str, Any] = {"kind": kind, "configurations": configurations, "workers": 16}
            for count in (2, 3, 16):
                played = [play(one.schedule("remaining", replicas=count), one.unit) for one in problems]
                row[f"{count} replicas"] = round(
                    statistics.mean(each.makespan / one for each, one in zip(played, alone, strict=True)), 3
                )
                row[f"{count} replicas, hops"] = round(
                    statistics.mean(each.hops / len(each.units) for each in played), 3
                )
            found.append(row)
    return found


def at_once(costs: list[float], seeds: int) -> list[dict[str, Any]]:
    """Makespan over the bound where all configurations train at once, and where two for each worker do."""
    found = []
    for kind in KINDS:
        for configurations, workers in ((17, 8), (24, 8), (48, 16), (80, 16)):
            ratios: dict[str, list[float]] = {"two for each worker": [], "all at once": []}
            for seed in range(seeds):
                one = Problem(kind, (configurations, workers), seed, costs)
                bound = lower_bound(one.seconds)
                for name, values in ratios.items():
                    schedule, waiting = one.schedule("remaining", known=False), list[int]()
                    if name != "all at once":
                        waiting = list(range(2 * workers, configurations))
                        for configuration in waiting:
                            schedule.remove(configuration)

                    def begin_next(
                        schedule: HopSchedule, unit: PlannedUnit, end: UnitEnd, *, left: list[int] = waiting
                    ) -> None:
                        if end.job_ended and left:
                            schedule.add(left.pop(0), to=1)

                    values.append(play(schedule, one.unit, on_end=begin_next).makespan / bound)
            row: dict[str, Any] = {"kind": kind, "configurations": configurations, "workers": workers}
            found.append(row | {name: round(statistics.mean(values), 4) for name, values in ratios.items()})
    return found


def exact(costs: list[float], seeds: int) -> list[dict[str, Any]]:
    """Small cases against the shortest schedule there is."""
    found = []
    for size in ((4, 3), (5, 4), (6, 4), (6, 5)):
        ratios: dict[str, list[float]] = {policy: [] for policy in SHOWN}
        over_bound, proven, spent = [], 0, 0.0
        for kind in KINDS:
            for seed in range(seeds):
                one = Problem(kind, size, seed, costs, off=OFF)
                start = time.process_time()
                units = {
                    (row, column): seconds
                    for row, line in enumerate(one.seconds)
                    for column, seconds in enumerate(line)
                }
                plan = solve(units, nodes=2000)
                spent += time.process_time() - start
                proven += plan.is_optimal
                over_bound.append(plan.makespan / lower_bound(one.seconds))
                for policy in SHOWN:
                    ratios[policy].append(play(one.schedule(policy), one.unit).makespan / plan.makespan)
        row: dict[str, Any] = {"configurations": size[0], "workers": size[1], "problems": len(over_bound)}
        row |= {"proven": proven, "exact over bound": round(statistics.mean(over_bound), 4)}
        row["ms"] = round(1e3 * spent / len(over_bound), 1)
        for policy, values in ratios.items():
            row[policy], row[f"{policy}, worst"] = round(statistics.mean(values), 4), round(max(values), 4)
        found.append(row)
    return found


def draw(figures: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figure, ((left, right),) = plot_style.panels(1, 2, 11, 4.6)
    rows = figures["cells"]
    names = [f"{row['kind']} {row['configurations']} x {row['workers']}" for row in rows]
    places = list(range(len(rows)))[::-1]
    for policy, colour, marker in (("randomized", plot_style.RUST, "s"), ("remaining", plot_style.BLUE, "o")):
        known = [100 * (row[f"{policy}, known"] - 1) for row in rows]
        worst = [100 * (row[f"{policy}, known, worst"] - 1) for row in rows]
        left.hlines(places, known, worst, color=colour, linewidth=1, alpha=0.6)
        left.plot(known, places, marker, color=colour, label=f"{policy}: mean, and line to the worst run")
    left.set_yticks(places, names, fontsize=6.5)
    left.set_xlabel("makespan over the lower bound, % too long")
    left.set_title("One epoch, unit times known")
    left.legend(loc="lower right", fontsize=8)
    rows = figures["barriers"]
    places = list(range(len(rows)))[::-1]
    for name, label, colour, marker in (
        ("randomized, unequal, barrier", "randomized, barrier (Cerebro)", plot_style.RUST, "s"),
        ("randomized, unequal, none", "randomized, no barrier", plot_style.GOLD, "D"),
        ("remaining, unequal, barrier", "remaining, barrier", plot_style.GREY, "v"),
        ("remaining, unequal, none", "remaining, no barrier", plot_style.BLUE, "o"),
    ):
        right.plot([100 * (row[name] - 1) for row in rows], places, marker, color=colour, label=label)
    right.set_yticks(places, [f"{row['kind']} {row['configurations']} x {row['workers']}" for row in rows], fontsize=7)
    right.set_xlabel("makespan over the lower bound, % too long")
    right.set_title("1 to 5 epochs each, units up to 20 % off")
    right.legend(loc="lower right", fontsize=8)
    plot_style.keep(figure, path)


def costs_of(given: str | None) -> list[float]:
    path = result_file.data_folder(given) / "mop" / "cnn_costs.csv"
    if not path.is_file():
        print(f"No data: {path} does not exist. It lists the compute costs of 35 CNNs. Nothing was measured.")
        raise SystemExit(2)
    with path.open() as file:
        return [float(row["gflops_per_image"]) for row in csv.DictReader(file)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with mop/cnn_costs.csv; default ../shared/data or HPO_BENCH_DATA")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5, help="of the comparison with and without a barrier")
    parser.add_argument("--out", help="file for the figures; default results/hopper.json")
    given = parser.parse_args()
    costs = costs_of(given.data)
    facts = result_file.machine()
    few = max(given.seeds // 4, 1)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "cells": lambda: cells(costs, given.seeds),
        "processor_time": lambda: processor_time(costs, 5),
        "barriers": lambda: barriers(costs, few, given.epochs),
        "replicas": lambda: replicas(costs, few),
        "at_once": lambda: at_once(costs, given.seeds),
        "exact": lambda: exact(costs, max(few // 2, 1)),
    }
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, part in parts.items():
        figures[name] = part()
        shown = summary(figures[name]) if name == "cells" else figures[name]
        print(f"\n{name}")
        result_file.table(list(shown[0]), [list(row.values()) for row in shown])
    figures["summary"] = summary(figures["cells"])
    path = result_file.write("hopper", facts, {"seeds": given.seeds, "epochs": given.epochs, **figures}, given.out)
    draw(figures, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
