"""How many GPUs a model should have: the tradeoff of the paper on ASHA (section 5.2, figure 6), and Paleo's figures.

Configurations that 128 K80s evaluate within some time budgets, against the GPUs of each model: Inception V3 on
ImageNet, 24 days on one K80, 20 Gbit/s Ethernet, butterfly all-reduce, batch 1024. With g GPUs per model 128 / g
models train at once, and each takes 24 days / speed-up(g). Perfect scaling (dashed) gives 128 * budget / 24 days for
any g that trains a model within the budget. The source does not say which part of peak and bandwidth it assumed.
``0.62, 0.72`` are what Paleo's own script for Inception assumes; the table shows others, too.

``Paleo's figures``: the worked case of the data (NiN on K20X, Infiniband), each column against this model.

    python benchmarks/gpus_per_model.py [--data FOLDER]
"""

from __future__ import annotations

import argparse
from typing import Any

import paleo_nets
import plot_style
import result_file
from performance_model import LayerModel, seconds, speedups

from hpo_core.gangs.growth import doublings, kappa

GPUS, BATCH, ALONE = 128, 1024, 24.0
BUDGETS = (1.5, 3.0, 6.0, 12.0, 24.0)
"""Days."""
REACHED = ((0.62, 0.72), (0.5, 0.72), (0.62, 0.56), (1.0, 1.0))
"""(of the GPU's peak, of the network's bandwidth); the first is drawn."""
EFFICIENCIES = (0.5, 0.75, 0.9)


def inception(figures: dict[str, Any], reached: tuple[float, float]) -> LayerModel:
    return LayerModel(
        layers=paleo_nets.layers(figures, "inception_v3"),
        processor=paleo_nets.processor(figures, "K80", reached[0]),
        link=paleo_nets.link(figures, "ethernet20", reached[1]),
        batch=BATCH,
    )


def evaluated(gains: dict[int, float], budget: float) -> dict[int, float]:
    """Configurations by GPUs per model, where a model ends within the budget."""
    return {gpus: GPUS / gpus * budget * gain / ALONE for gpus, gain in gains.items() if ALONE / gain <= budget}


def compare(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Each row of Paleo's worked case, and the largest relative difference of this model's."""
    rows = []
    for case in figures["simulations"]:
        model = LayerModel(
            layers=paleo_nets.layers(figures, case["net"]),
            processor=paleo_nets.processor(figures, case["device"], case["ppp_comp"]),
            link=paleo_nets.link(figures, case["network"], case["ppp_comm"]),
            batch=case["batch_size"],
        )
        for row in case["rows"]:
            theirs = dict(zip(case["columns"], row, strict=True))
            gpus = theirs["workers"]
            samples = -(-model.batch // gpus)
            ours = {
                "time_fwd": model.forward(samples),
                "time_bwd": model.backward(samples),
                "time_apply": model.update(),
                "time_comp": model.step(gpus).compute,
                "TreeAllReduce": seconds(gpus, model.size, model.link, "tree"),
                "ButterflyAllReduce": seconds(gpus, model.size, model.link, "butterfly"),
            }
            worst = max(abs(1000 * value - theirs[name]) / (theirs[name] or 1) for name, value in ours.items())
            rows.append(
                {
                    "batch": model.batch,
                    "gpus": gpus,
                    "step_ms": round(1000 * model.step(gpus).total, 4),
                    "paleo_ms": round(theirs["time_comp"] + theirs["ButterflyAllReduce"], 4),
                    "largest_relative_difference": worst,
                }
            )
    return rows


def draw(gains: dict[int, float], wanted: int) -> None:
    figure, ((left, right),) = plot_style.panels(1, 2, 11, 4.4, width_ratios=[1.7, 1])
    colours = (plot_style.BLUE, plot_style.RUST, plot_style.GREEN, plot_style.PURPLE, plot_style.GOLD)
    for budget, colour in zip(BUDGETS, colours, strict=True):
        counts = evaluated(gains, budget)
        perfect = evaluated({gpus: float(gpus) for gpus in gains}, budget)
        if counts:
            left.plot(list(counts), list(counts.values()), "o-", color=colour, label=f"{budget:g} days")
        left.plot(list(perfect), list(perfect.values()), "--", color=colour, linewidth=1.1)
    left.axvline(wanted, color=plot_style.MUTED, linewidth=1, linestyle=":")
    left.annotate(f" at least 75 %:\n at most {wanted}", (wanted, 2.4), color=plot_style.MUTED, fontsize=9, va="top")
    plot_style.log_axis(left.xaxis, (1, 2, 4, 8))
    left.set_xticks([*gains], [str(gpus) for gpus in gains])
    plot_style.log_axis(left.yaxis)
    left.set_xlabel("GPUs per model")
    left.set_ylabel("configurations evaluated")
    left.set_title("128 K80, Inception V3, 24 days on one; dashed: perfect scaling")
    left.legend(title="budget", loc="lower left", fontsize=9, ncols=2)
    right.plot(list(gains), [gain / gpus for gpus, gain in gains.items()], "o-", color=plot_style.BLUE)
    right.axhline(0.75, color=plot_style.MUTED, linewidth=1, linestyle=":")
    right.axvline(wanted, color=plot_style.MUTED, linewidth=1, linestyle=":")
    plot_style.log_axis(right.xaxis, (1, 2, 4, 8))
    right.set_xticks([*gains], [str(gpus) for gpus in gains])
    right.set_ylim(0, 1.05)
    right.set_xlabel("GPUs per model")
    right.set_title("efficiency against linear")
    plot_style.keep(figure, result_file.RESULTS / "gpus_per_model.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the data (default: HPO_BENCH_DATA or ../shared/data)")
    parser.add_argument("--out", help="where the JSON goes (default: results/gpus_per_model.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    figures = paleo_nets.load(given.data)
    sizes = doublings(GPUS)
    variants = []
    for reached in REACHED:
        gains = speedups(inception(figures, reached), sizes)
        every = speedups(inception(figures, reached), range(1, GPUS + 1))
        variants.append(
            {
                "reached": reached,
                "speedups": {gpus: round(gain, 3) for gpus, gain in gains.items()},
                "kappa": {wanted: kappa(gains, wanted) for wanted in EFFICIENCIES},
                "kappa_of_every_number": kappa(every),
            }
        )
    gains = speedups(inception(figures, REACHED[0]), sizes)
    counts = {budget: {gpus: round(count, 2) for gpus, count in evaluated(gains, budget).items()} for budget in BUDGETS}
    result_file.table(
        ["reached", *[str(gpus) for gpus in sizes], "kappa", "of any g"],
        [
            [
                "{}, {}".format(*row["reached"]),
                *[f"{gain / gpus:.3f}" for gpus, gain in row["speedups"].items()],
                row["kappa"][0.75],
                row["kappa_of_every_number"],
            ]
            for row in variants
        ],
    )
    print("\nconfigurations evaluated")
    result_file.table(
        ["days", *[str(gpus) for gpus in sizes], "perfect"],
        [
            [budget, *[counts[budget].get(gpus) for gpus in sizes], round(GPUS * budget / ALONE, 2)]
            for budget in BUDGETS
        ],
    )
    print("\nPaleo's figures")
    compared = compare(figures)
    result_file.table(list(compared[0]), [[f"{value:.4g}" for value in row.values()] for row in compared])
    draw(gains, kappa(gains))
    result_file.write(
        "gpus_per_model", facts, {"variants": variants, "evaluated": counts, "paleo_nin": compared}, given.out
    )


if __name__ == "__main__":
    main()
