"""Convergence of models that hop, against sequential SGD on all of the data and against model averaging.

One network (64-64-64-10, SGD with momentum 0.9, batches of 16, a learning rate that falls by half of a cosine) on
scikit-learn's digits: 1,438 images to train on, 359 for validation. The same first weights and the same number of
passes over the same examples, three ways:

- ``hops``: a real study on two Dask workers. The data are split into 8 partitions by ``hpo_core.partitioning``; model
  and optimizer visit each of them once an epoch, in the orders that the scheduler ``randomized`` comes to;
- ``sequential``: SGD in one process, all examples shuffled anew in each epoch;
- ``averaging``: bulk synchronous: 8 copies, each trains on one partition; after each epoch their weights and
  velocities are averaged, and all go on from there.

Five seeds (first weights, orders). ``sequential`` and ``averaging`` try six learning rates and are judged at their
best; ``hops`` has sequential's. It is within noise where the mean difference to sequential over the seeds is at most
twice its standard error (paired: a seed has the same first weights each way).

    python benchmarks/hopping_convergence.py            # 5 min on two busy cores
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plot_style as style
import result_file

sys.path.insert(0, str(result_file.ROOT / "hopping"))
from driven import run_study

PARTS, SEEDS = 8, 5
RATES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
Data = dict[str, Any]
Curves = dict[tuple[float, int], list[float]]
"""By (learning rate, seed): validation loss after each epoch."""


def split(folder: Path) -> tuple[list[Data], Data, Data]:
    """The partitions, all of them together, and the examples for validation."""
    import torch
    from network import load
    from sklearn.datasets import load_digits

    from hpo_core.partitioning.splitting import partition_data

    found = load_digits()
    arrays = {"x": (found.data / 16).astype(np.float32), "y": found.target.astype(np.int64)}
    partition_data(arrays, folder, parts=PARTS, stratify="y", validation=0.2, validation_parts=1)
    parts = [load(path) for path in sorted(folder.glob("part-*.npz"))]
    whole = {key: torch.cat([part[key] for part in parts]) for key in ("x", "y")}
    return parts, whole, load(next(iter(folder.glob("validation-*.npz"))))


def sequential(whole: Data, valid: Data, rate: float, seed: int, epochs: int) -> list[float]:
    import torch
    from network import build, loss, one_pass, rate_of

    model, optimizer = build(seed)
    torch.manual_seed(1000 + seed)
    curve = []
    for epoch in range(epochs):
        one_pass(model, optimizer, whole, rate_of(rate, epoch, epochs))
        curve.append(loss(model, valid))
    return curve


def averaging(parts: list[Data], valid: Data, rate: float, seed: int, epochs: int) -> list[float]:
    import torch
    from network import build, loss, one_pass, rate_of

    model, optimizer = build(seed)
    torch.manual_seed(2000 + seed)
    curve = []
    for epoch in range(epochs):
        first = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        ends = []
        for part in parts:
            model.load_state_dict(first[0])
            optimizer.load_state_dict(copy.deepcopy(first[1]))
            one_pass(model, optimizer, part, rate_of(rate, epoch, epochs))
            ends.append((copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())))
        weights = {name: torch.stack([end[0][name] for end in ends]).mean(dim=0) for name in first[0]}
        settings = ends[0][1]
        for place, state in settings["state"].items():
            state["momentum_buffer"] = torch.stack([end[1]["state"][place]["momentum_buffer"] for end in ends]).mean(0)
        model.load_state_dict(weights)
        optimizer.load_state_dict(settings)
        curve.append(loss(model, valid))
    return curve


def hops(folder: Path, data: Path, rate: float, *, epochs: int, seconds: float) -> tuple[Curves, dict[str, Any]]:
    """A real study over all seeds."""
    plain = {
        "study": "convergence",
        "objective": "network:train",
        "metric": {"name": "val_loss", "mode": "min"},
        "space": {"seed": {"type": "ordinal", "choices": list(range(SEEDS))}},
        "constants": {"rate": rate, "epochs": epochs},
        "search": {"method": "grid", "max_resource": epochs},
        "data": {
            "partitions": [path.name for path in sorted(data.glob("part-*.npz"))],
            "validation": [path.name for path in sorted(data.glob("validation-*.npz"))],
            "folder": str(data),
            "load": "network:load",
            "scheduler": "randomized",
        },
        "cluster": {"kind": "local", "workers": 2},
        "training": {"threads": 1},
    }
    began = time.monotonic()
    curves: Curves = {}
    orders, units = set(), 0
    for ended in run_study(folder, plain, seconds=seconds):
        report = ended.report
        curves[rate, ended.params["seed"]] = [point.metrics["val_loss"] for point in report.curve]
        assert isinstance(report.visits, tuple)
        units += len(report.visits)
        for epoch in range(epochs):
            orders.add(tuple(v.partition for v in report.visits if v.epoch == epoch and v.partition < PARTS))
    took = round(time.monotonic() - began, 1)
    return curves, {"units": units, "different_orders": len(orders), "seconds": took}


def best_rate(curves: Curves) -> float:
    return min(RATES, key=lambda rate: statistics.mean(curves[rate, seed][-1] for seed in range(SEEDS)))


def judged(curves: Curves, rate: float, base: list[float]) -> dict[str, Any]:
    """Loss at the end, and its difference to ``base``, both by seed."""
    by_seed = [curves[rate, seed] for seed in range(SEEDS)]
    last = [curve[-1] for curve in by_seed]
    differences = [mine - theirs for mine, theirs in zip(last, base, strict=True)]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(SEEDS)
    return {
        "rate": rate,
        "last": round(statistics.mean(last), 4),
        "last_std": round(statistics.stdev(last), 4),
        "by_epoch": [round(statistics.mean(values), 4) for values in zip(*by_seed, strict=True)],
        "difference": round(mean, 4),
        "standard_error": round(error, 4),
        "within_noise": abs(mean) <= 2 * error,
    }


def draw(found: dict[str, tuple[Curves, float, str]], path: Path) -> None:
    figure, axes = style.panels(1, 1, 6.4, 3.8)
    panel = axes[0][0]
    for name, (curves, rate, colour) in found.items():
        values = np.array([curves[rate, seed] for seed in range(SEEDS)])
        epochs = np.arange(1, values.shape[1] + 1)
        panel.fill_between(epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        panel.plot(epochs, values.mean(axis=0), "o-", color=colour, label=f"{name}, rate {rate:g}")
    style.log_axis(panel.yaxis)
    panel.set_title(f"Digits, {PARTS} partitions: mean and range of {SEEDS} seeds")
    panel.set_xlabel("epochs")
    panel.set_ylabel("validation loss")
    panel.legend()
    style.keep(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1800.0, help="longest time of the study")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/hopping_convergence.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as top:
        folder = Path(top) / "shards"
        parts, whole, valid = split(folder)

        def each(train: Callable[[float, int], list[float]]) -> Curves:
            return {(rate, seed): train(rate, seed) for rate in RATES for seed in range(SEEDS)}

        one = each(lambda rate, seed: sequential(whole, valid, rate, seed, given.epochs))
        many = each(lambda rate, seed: averaging(parts, valid, rate, seed, given.epochs))
        rate, rate_many = best_rate(one), best_rate(many)
        hopped, study = hops(Path(top) / "run", folder, rate, epochs=given.epochs, seconds=given.seconds)
    base = [one[rate, seed][-1] for seed in range(SEEDS)]
    ways = {
        "sequential": judged(one, rate, base),
        "hops": judged(hopped, rate, base),
        "averaging": judged(many, rate_many, base),
        "averaging, the same rate": judged(many, rate, base),
    }
    at = sorted({0, 1, given.epochs // 2 - 1, given.epochs - 1})
    result_file.table(
        ["way", "rate", *(f"epoch {e + 1}" for e in at), "minus sequential", "its error", "within noise"],
        [
            [way, seen["rate"], *(seen["by_epoch"][e] for e in at), seen["difference"], seen["standard_error"],
             seen["within_noise"]] for way, seen in ways.items()
        ],
    )  # fmt: skip
    every = {"sequential": one, "hops": hopped, "averaging": many}
    curves = {
        way: {f"{rate:g}, {seed}": [round(value, 5) for value in curve] for (rate, seed), curve in found.items()}
        for way, found in every.items()
    }
    figures = {"examples": len(whole["x"]), "study": study, "ways": ways, "curves": curves}
    path = result_file.write("hopping_convergence", facts, figures, given.out)
    drawn = {
        "sequential SGD": (one, rate, style.GREY),
        "model hops": (hopped, rate, style.BLUE),
        "model averaging": (many, rate_many, style.RUST),
    }
    draw(drawn, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
