"""What a decision costs in plain Optuna: our pruners and Optuna's SuccessiveHalvingPruner, by number of trials.

Each pruner judges new trials of a study in memory that holds n trials with a result at the first rung. Measured is
``trial.should_prune()`` as an objective calls it, Optuna's own share (which copies the trial) included; ``none`` is
Optuna's NopPruner, so the cost of asking at all. Processor time of the thread, for a busy machine adds to any other.
Medians and quartiles over the decisions of several repeats, pruners in turn within a repeat.

Writes results/optuna_pruners.json and results/optuna_pruners.png.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import optuna
import result_file
from optuna.trial import TrialState, create_trial
from plot_style import BLUE, GREEN, GREY, RUST, keep, pyplot

from hpo_core.integrations.optuna import AshaPruner

SIZES = (100, 1_000, 10_000)
PRUNERS = {
    "SuccessiveHalvingPruner": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    "AshaPruner, shared": lambda: AshaPruner(max_resource=27, shared=True),
    "AshaPruner": lambda: AshaPruner(max_resource=27),
    "none": optuna.pruners.NopPruner,
}
COLORS = {
    "SuccessiveHalvingPruner": RUST,
    "AshaPruner, shared": GREEN,
    "AshaPruner": BLUE,
    "none": GREY,
}


def filled(size: int, pruner: optuna.pruners.BasePruner, seed: int) -> optuna.Study:
    """A study with so many ended trials, each with a result at step 1."""
    draws = random.Random(seed)
    study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=seed))
    storage = study._storage
    for _ in range(size):
        value = draws.random()
        trial = create_trial(
            state=TrialState.PRUNED, intermediate_values={1: value}, system_attrs={"completed_rung_0": value}
        )
        storage.create_new_trial(study._study_id, template_trial=trial)
    return study


def decisions(study: optuna.Study, count: int, seed: int) -> list[float]:
    """Processor seconds of so many decisions; the first one, which may read the study, is left out."""
    draws = random.Random(seed)
    found = []
    for _ in range(count + 1):
        trial = study.ask()
        trial.report(draws.random(), 1)
        began = time.thread_time()
        trial.should_prune()
        found.append(time.thread_time() - began)
        study.tell(trial, state=TrialState.PRUNED)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--decisions", type=int, default=60, help="of each pruner and size in a repeat")
    parser.add_argument("--out", help="default: results/optuna_pruners.json")
    given = parser.parse_args()
    facts = result_file.machine()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in PRUNERS for size in SIZES}
    for size in SIZES:
        for repeat in range(given.repeats):
            for name, make in PRUNERS.items():
                seconds[name, size] += decisions(filled(size, make(), repeat), given.decisions, repeat)
    rows: list[dict[str, Any]] = []
    for (name, size), found in seconds.items():
        low, middle, high = (1e6 * value for value in statistics.quantiles(found, n=4))
        row: dict[str, Any] = {"pruner": name, "trials": size, "median_us": round(middle, 1)}
        rows.append(row | {"quartiles_us": [round(low, 1), round(high, 1)]})
    result_file.table(
        ["pruner", *[f"n = {size:,}" for size in SIZES]],
        [[name, *[f"{_median(rows, name, size):,.0f}" for size in SIZES]] for name in PRUNERS],
    )
    result_file.write("optuna_pruners", facts, {"unit": "microseconds a decision", "rows": rows}, given.out)
    if given.out is None:
        draw(rows)


def _median(rows: list[dict[str, Any]], name: str, size: int) -> float:
    return float(next(row["median_us"] for row in rows if (row["pruner"], row["trials"]) == (name, size)))


def draw(rows: list[dict[str, Any]]) -> None:
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, color in COLORS.items():
        mine = [row for row in rows if row["pruner"] == name]
        sizes = [row["trials"] for row in mine]
        axes.plot(sizes, [row["median_us"] for row in mine], color=color, marker="o", markersize=4, label=name)
        low, high = zip(*(row["quartiles_us"] for row in mine), strict=True)
        axes.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="trials in the study", ylabel="microseconds a decision")
    axes.set_title("should_prune() in plain Optuna: median, quartiles")
    axes.legend(frameon=False)
    keep(figure, result_file.RESULTS / "optuna_pruners.png")


if __name__ == "__main__":
    main()
