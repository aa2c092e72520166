"""Trials that grow (``training: {gang: auto}``): time to the end on 16 simulated GPUs, with and without growth.

Real studies, loops and decisions on virtual workers; a unit of training takes a minute, configurations differ in cost
by a factor of about 1.3. Speed-ups of gangs: ``steep``: those of Inception V3 on K80s by the performance model (kappa
is 16, `gpus_per_model.py`); ``flat``: 2, 4, 8 GPUs train 1.7, 3.1, 4.6 times as fast (kappa is 4).

- ``one each``: each trial has one GPU. ``given``: `gang: auto` with these speed-ups. ``measured``: `gang: auto`
  without; the study measures them from a pilot of two GPUs on.
- ``slot-hours``: time in which GPUs trained.

    python benchmarks/growth.py
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import plot_style
import result_file

from hpo_core.model.events import JobGranted
from hpo_core.simulation import AnalyticCurves, Simulation, VirtualClock
from hpo_core.study import Study

SLOTS, UNIT = 16, 60.0
SPEEDS = {
    "steep": {1: 1.0, 2: 1.982, 4: 3.861, 8: 7.221, 16: 12.431},
    "flat": {1: 1.0, 2: 1.7, 4: 3.1, 8: 4.6, 16: 5.0},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "3 trials left": {"method": "random", "configs": 3, "max_resource": 64},
    "ASHA, 64": {"method": "asha", "configs": 64, "max_resource": 64, "reduction_factor": 4},
    "ASHA, 256": {"method": "asha", "configs": 256, "max_resource": 64, "reduction_factor": 4},
    "SHA, 64": {"method": "sha", "configs": 64, "max_resource": 64, "reduction_factor": 4},
    "Hyperband": {"method": "hyperband", "max_resource": 64, "reduction_factor": 4},
}
WAYS = ("one each", "given", "measured")


def play(search: dict[str, Any], way: str, speeds: dict[int, float], seed: int) -> tuple[float, float, list[Any]]:
    """Hours to the end, slot-hours, and (begin, end, slots) of each job."""
    clock = VirtualClock()
    given = {size: speeds[size] for size in (2, 4, 8, 16)} if way == "given" else {}
    study = Study.create(
        {
            "study": "growth",
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "search": search,
            "cluster": {"kind": "local", "workers": SLOTS},
            "training": {"gang": 1 if way == "one each" else "auto"},
            "scaling": {"speedups": given},
            "seed": seed,
        },
        clock=clock,
    )
    curves = AnalyticCurves(study.spec, seed, seconds_per_unit=UNIT, cost_spread=0.25)
    played = Simulation(
        study, clock, workers=SLOTS, train=curves.train, seconds=curves.seconds,
        speedup=lambda job: speeds[job.demand.slots],
    )  # fmt: skip
    played.run()
    assert study.finished
    study.check()
    slots = {
        (event.trial, event.attempt): event.demand.slots
        for entry in study.journal.entries("growth")
        for event in entry.events
        if isinstance(event, JobGranted)
    }
    jobs = [
        (result.started / 3600, result.ended / 3600, slots[trial.number, result.attempt])
        for trial in study.state.trials
        for result in trial.results
    ]
    return clock.now / 3600, played.executor.busy_seconds / 3600, jobs


def draw(search: str, speeds: str, seed: int) -> None:
    """Slots in use over time, by the size of the gang that uses them."""
    figure, rows = plot_style.panels(len(WAYS), 1, 9, 5.6, sharex=True)
    colours = {1: plot_style.GREY, 2: plot_style.BLUE, 4: plot_style.GREEN, 8: plot_style.GOLD, 16: plot_style.RUST}
    for way, (axes,) in zip(WAYS, rows, strict=True):
        hours, _, jobs = play(SEARCHES[search], way, SPEEDS[speeds], seed)
        times = [hours * step / 600 for step in range(600)]
        axes.stackplot(
            times,
            [[sum(n for b, e, n in jobs if n == size and b <= t < e) for t in times] for size in colours],
            colors=list(colours.values()),
            labels=[f"{size} GPU{'s' if size > 1 else ''}" for size in colours],
            linewidth=0,
        )
        axes.set_ylim(0, SLOTS)
        axes.set_ylabel("GPUs in use")
        axes.axvline(hours, color=plot_style.INK, linewidth=1)
        axes.set_title(f"{way}: {hours:.2f} hours")
    rows[0][0].legend(title="per trial", loc="upper center", fontsize=9, ncols=5)
    rows[-1][0].set_xlabel("hours")
    plot_style.keep(figure, result_file.RESULTS / "growth.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="repeats (default: 20)")
    parser.add_argument("--out", help="where the JSON goes (default: results/growth.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    rows = []
    for name, search in SEARCHES.items():
        for kind, speeds in SPEEDS.items():
            found = {way: [play(search, way, speeds, seed) for seed in range(given.seeds)] for way in WAYS}
            hours = {way: statistics.fmean(run[0] for run in runs) for way, runs in found.items()}
            ratios = {
                way: [run[0] / alone[0] for run, alone in zip(runs, found["one each"], strict=True)]
                for way, runs in found.items()
            }
            rows.append(
                {
                    "search": name,
                    "speeds": kind,
                    **{f"hours, {way}": round(hours[way], 3) for way in WAYS},
                    "given / one": round(statistics.fmean(ratios["given"]), 3),
                    "worst": round(max(ratios["given"]), 3),
                    "measured / one": round(statistics.fmean(ratios["measured"]), 3),
                    "slot-hours, one": round(statistics.fmean(run[1] for run in found["one each"]), 2),
                    "slot-hours, given": round(statistics.fmean(run[1] for run in found["given"]), 2),
                }
            )
    result_file.table(list(rows[0]), [list(row.values()) for row in rows])
    draw("ASHA, 64", "steep", 0)
    result_file.write("growth", facts, {"rows": rows}, given.out)


if __name__ == "__main__":
    main()
