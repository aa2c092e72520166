"""How well the memory of jobs is known before they run, from those before them.

862 trainings of translation models (three language pairs), each with the GPU memory that was recorded once. Memory is
noisy: trainings with the same parameters differ by a factor of 1.4 to 1.8 in the median. In random order, each training
is estimated from those before it by ``Estimates``, as in a study, and then learned. The learning rate does not decide.

``short``: share of estimates below what the training then took: it would have run out of memory, and been tried again
with twice as much. ``ratio``: estimate by what was taken, in quantiles. By source: ``measured`` (the same parameters
ran before), ``predicted`` (from others), ``profile`` (nothing is known yet: a fourth of the device). Beside them what
else could be done with the same past: its plain quantile, and the largest of the same parameters and 5 %.

    python benchmarks/need_prediction.py [--data FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import plot_style
import result_file

from hpo_core.model.devices.measurement import Usage
from hpo_core.placement.estimates import Estimates
from hpo_core.placement.room import SharedDevice

PAIRS = ("ja-en", "so-en", "zh-en")
BY = ("bpe_symbols", "num_layers", "num_embed", "ff_num_hidden", "attention_heads")
MIB = 2**20
DEVICE = SharedDevice(name="gpu", node="a", architecture="GPU", memory=16 * 2**30)
"""The largest training takes 11.5 GiB."""
QUANTILES = (0.5, 0.8, 0.9, 0.95, 0.99)
DEFAULT = 0.95
RULES = ("profile", "predicted", "measured", "all but profiles", "plain quantile", "largest and 5 %")
PARTS = 10
"""Of the way through a history, for the picture."""

Training = tuple[dict[str, Any], int]


def trainings(folder: Path, pair: str) -> list[Training]:
    """(parameters, bytes); those whose memory was not recorded are left out."""
    with (folder / f"nmthpo_{pair}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [({name: float(row[name]) for name in BY}, round(float(row["gpu_memory"]) * MIB)) for row in rows]
    return [(params, memory) for params, memory in found if memory > 0]


def estimated(order: list[Training], quantile: float) -> list[dict[str, Any]]:
    """What each training was estimated to take, by several rules, in this order."""
    estimates = Estimates(objective="nmt:train", code="", study="", by=BY, quantile=quantile)
    seen: list[int] = []
    same: dict[tuple[Any, ...], int] = {}
    found = []
    for place, (params, memory) in enumerate(order):
        estimate = estimates.of(params, units=1, device=DEVICE, node_cores=16_000)
        key = tuple(params.values())
        plain = float(np.quantile(seen, quantile, method="higher")) if len(seen) >= 8 else None
        found.append({
            "place": place / len(order), "source": estimate.source, "estimate": estimate.need.memory / memory,
            "plain quantile": None if plain is None else plain / memory,
            "largest and 5 %": 1.05 * same[key] / memory if key in same else None,
        })  # fmt: skip
        usage = Usage(device_memory=memory, unit_seconds=1.0, architecture=DEVICE.architecture)
        estimates.learn(params, usage, at=float(place))
        seen.append(memory)
        same[key] = max(same.get(key, 0), memory)
    return found


def figures(ratios: list[float]) -> dict[str, Any]:
    values = np.array(ratios)
    return {
        "estimates": len(ratios),
        "short": round(float((values < 1).mean()), 4),
        "ratio": {f"{q:g}": round(float(np.quantile(values, q)), 3) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
    }


def judged(looks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures by rule."""
    by_rule: dict[str, list[float]] = defaultdict(list)
    for look in looks:
        by_rule[look["source"]].append(look["estimate"])
        if look["source"] != "profile":
            by_rule["all but profiles"].append(look["estimate"])
        for rule in ("plain quantile", "largest and 5 %"):
            if look[rule] is not None:
                by_rule[rule].append(look[rule])
    return {rule: figures(by_rule[rule]) for rule in RULES if by_rule[rule]}


def picture(looks: dict[str, list[dict[str, Any]]], curve: list[dict[str, Any]], path: Path) -> None:
    figure, ((left, middle, right),) = plot_style.panels(1, 3, 11, 3.4)
    colours = dict(zip(PAIRS, (plot_style.BLUE, plot_style.RUST, plot_style.GREEN), strict=True))
    for pair, told in looks.items():
        values = np.sort([look["estimate"] for look in told if look["source"] != "profile"])
        left.plot(values, np.linspace(0, 1, len(values)), color=colours[pair], label=pair)
        later = [look for look in told if look["source"] != "profile"]
        parts = [
            [look["estimate"] < 1 for look in later if int(look["place"] * PARTS) == part] for part in range(PARTS)
        ]
        at = [(part + 0.5) / PARTS for part in range(PARTS)]
        middle.plot(at, [100 * np.mean(one) if one else np.nan for one in parts], "o-", color=colours[pair], label=pair)
    left.axvline(1.0, color=plot_style.MUTED, linewidth=1)
    plot_style.log_axis(left.xaxis)
    left.set(title="Estimate by what was taken", xlabel="ratio", ylabel="share of trainings")
    middle.axhline(100 * (1 - DEFAULT), color=plot_style.MUTED, linewidth=1)
    middle.set(title="Too little, as the history grows", xlabel="part of the history seen", ylabel="% of estimates")
    middle.set_ylim(bottom=0)
    for rule, colour in (("all but profiles", plot_style.BLUE), ("plain quantile", plot_style.GREY)):
        points = [(row["rules"][rule]["ratio"]["0.5"], 100 * row["rules"][rule]["short"]) for row in curve]
        right.plot(
            *zip(*points, strict=True), "o-", color=colour, label="Estimates" if rule != "plain quantile" else rule
        )
    right.set(title="By the quantile that is asked for", xlabel="median ratio", ylabel="% too little")
    for panel in (left, middle, right):
        panel.legend()
    plot_style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with gpu_sharing/; default ../shared/data, seen from the repository")
    parser.add_argument("--orders", type=int, default=10, help="random orders of each history")
    parser.add_argument("--out", help="file for the figures; default results/need_prediction.json")
    given = parser.parse_args()
    folder = result_file.data_folder(given.data) / "gpu_sharing"
    if not folder.is_dir():
        print(f"No data: {folder} is not there. It holds the recorded memory of trainings. Nothing was measured.")
        raise SystemExit(2)
    facts = result_file.machine()
    rows: list[dict[str, Any]] = []
    curve: list[dict[str, Any]] = []
    looks: dict[str, list[dict[str, Any]]] = {}
    for quantile in QUANTILES:
        told: dict[str, list[dict[str, Any]]] = {}
        for pair in PAIRS:
            one = trainings(folder, pair)
            orders = [random.Random(seed).sample(one, len(one)) for seed in range(given.orders)]
            told[pair] = [look for order in orders for look in estimated(order, quantile)]
        together = [look for pair in PAIRS for look in told[pair]]
        curve.append({"quantile": quantile, "rules": judged(together)})
        if quantile == DEFAULT:
            looks = told
            rows = [{"pair": pair, "rules": judged(told[pair])} for pair in PAIRS]
            rows.append({"pair": "all", "rules": judged(together)})
    table = [
        [row["pair"], rule, found["estimates"], f"{100 * found['short']:.1f}", *found["ratio"].values()]
        for row in rows
        for rule, found in row["rules"].items()
    ]
    print(f"Safety quantile {DEFAULT}, {given.orders} orders")
    result_file.table(["pair", "rule", "estimates", "short %", "5 %", "25 %", "median", "75 %", "95 %"], table)
    print("\nAll pairs, by safety quantile")
    result_file.table(
        ["quantile", "short %", "median ratio", "short % of a plain quantile", "its median ratio"],
        [
            [
                row["quantile"],
                *(
                    figure
                    for rule in ("all but profiles", "plain quantile")
                    for figure in (f"{100 * row['rules'][rule]['short']:.1f}", row["rules"][rule]["ratio"]["0.5"])
                ),
            ]
            for row in curve
        ],
    )
    body = {"orders": given.orders, "quantile": DEFAULT, "pairs": rows, "by_quantile": curve}
    path = result_file.write("need_prediction", facts, body, given.out)
    picture(looks, curve, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
