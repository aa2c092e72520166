"""Speed-ups of data-parallel training on this machine's CPU, measured and predicted.

Networks of torch, DistributedDataParallel over gloo, one thread a rank, a fixed global batch, on 1 and on 2 ranks in
turn. Two clocks: ``wall`` is the time of a step, and ``cpu`` the processor time of a rank's step, which a machine that
others use disturbs less: on one that is free the two agree, for both ranks compute and copy all along. The median of
each, and of wall the quartiles. Predicted for 2 ranks from what is known without a run on 2, in processor time: half of
the step of 1 rank, and the all-reduce of all gradients at the bandwidth that one sum of 32 MB reaches between the two
(``ExchangeModel``). ``fitted`` is the model of two parameters from both times, and what it says of 4 and 8 ranks.

    python benchmarks/gang_speedup.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import result_file
import torch
from performance_model import ExchangeModel, Link
from torch import distributed, multiprocessing, nn

from hpo_core.placement.speedups import fitted, kappa, speedups

SUM_BYTES = 32_000_000
SECONDS = 1.5
"""Of one measurement."""


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip


def dense(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


NETWORKS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "convolutions, batch 64": (convolutions, (3, 32, 32), 64),
    "dense 512, batch 512": (lambda: dense(512), (256,), 512),
    "dense 2048, batch 256": (lambda: dense(2048), (256,), 256),
    "dense 2048, batch 32": (lambda: dense(2048), (256,), 32),
}


def rank_of(rank: int, ranks: int, store: str, name: str, results: Any) -> None:
    """One rank: train for a while, and say the seconds of a step; or sum 32 MB, and say the bytes a second."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    if name == "sum":
        step, least = _summing(), 5
    else:
        step, least = _training(name, ranks), 5
    for _ in range(2):
        step()
    distributed.barrier()
    count, began, used = 0, time.perf_counter(), time.process_time()
    while True:
        for _ in range(least):
            step()
        count += least
        done = torch.tensor([time.perf_counter() - began])
        distributed.broadcast(done, 0)  # both end after the same step
        if done.item() > SECONDS:
            break
    results.put(((time.perf_counter() - began) / count, (time.process_time() - used) / count))
    distributed.barrier()
    distributed.destroy_process_group()


def _summing() -> Any:
    numbers = torch.zeros(SUM_BYTES // 4)
    return lambda: distributed.all_reduce(numbers)


def _training(name: str, ranks: int) -> Any:
    make, shape, batch = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    trained = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(batch // ranks, *shape), torch.randint(0, 10, (batch // ranks,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(inputs), labels).backward()
        optimizer.step()

    return step


def measure(name: str, ranks: int) -> tuple[float, float]:
    """Seconds of a step, and processor seconds of a rank's step."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        multiprocessing.spawn(rank_of, args=(ranks, store, name, results), nprocs=ranks)
    found = [results.get() for _ in range(ranks)]
    return max(wall for wall, _ in found), statistics.fmean(cpu for _, cpu in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each (default: 7)")
    parser.add_argument("--out", help="where the JSON goes (default: results/gang_speedup.json)")
    given = parser.parse_args()
    facts = result_file.machine()
    rows = []
    for name, (make, _, _) in NETWORKS.items():
        size = 4 * sum(parameter.numel() for parameter in make().parameters())
        walls: dict[str, list[float]] = {"one": [], "two": [], "sum": []}
        cpus: dict[str, list[float]] = {"one": [], "two": [], "sum": []}
        loads = []
        for _ in range(given.rounds):
            for key, what, ranks in (("one", name, 1), ("two", name, 2), ("sum", "sum", 2)):
                wall, cpu = measure(what, ranks)
                walls[key].append(wall)
                cpus[key].append(cpu)
            loads.append(os.getloadavg()[0])
        one, two, sums = (statistics.median(values) for values in cpus.values())
        gains = [alone / both for alone, both in zip(walls["one"], walls["two"], strict=True)]
        low, middle, high = statistics.quantiles(gains, n=4)
        link = Link(SUM_BYTES * 8e-9 / sums)
        predicted = ExchangeModel(seconds=one, size=size, link=link, all_reduce="ring")
        beyond = speedups(fitted({1: one, 2: two}, "ring"), (2, 4, 8))
        rows.append(
            {
                "network": name,
                "gradient_mb": round(size / 1e6, 2),
                "one_ms": round(1000 * one, 2),
                "two_ms": round(1000 * two, 2),
                "sum_gbps": round(link.gbps, 1),
                "measured": round(one / two, 2),
                "predicted": round(speedups(predicted, (2,))[2], 2),
                "wall": round(middle, 2),
                "wall_quartiles": f"{low:.2f} to {high:.2f}",
                "fitted_4": round(beyond[4], 2),
                "fitted_8": round(beyond[8], 2),
                "kappa": kappa(beyond),
                "load": round(statistics.median(loads), 1),
            }
        )
        print(rows[-1])
    result_file.table(list(rows[0]), [list(row.values()) for row in rows])
    result_file.write("gang_speedup", facts, {"rows": rows}, given.out)


if __name__ == "__main__":
    main()
