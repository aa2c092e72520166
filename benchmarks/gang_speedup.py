"""Speed-ups of data-parallel training on this machine's CPU, measured and predicted.

Networks of torch, DistributedDataParallel over gloo, one thread a rank, a fixed global batch, on 1 and on 2 ranks in
turn. Two clocks: ``wall`` is the time of a step, and ``cpu`` the processor time of a rank's step, which a machine that
others use disturbs less: on one that is free the two agree, for both ranks compute and copy all along. The median of
each, and of wall the quartiles. Predicted for 2 ranks from what is known without a run on 2, in processor time: half of
the step of 1 rank, and the all-reduce of all gradients at the bandwidth that one sum of 32 MB reaches between the two
(``ExchangeModel``). ``fitted`` is the model of two parameters from both times, and what it says of 4 and 8 ranks.

    python benchmarks/gang_speedup.py [--rounds 7]

``--hosts`` measures the network alone: ranks on two and four hosts of a lab (``tests/hosts``, as root) at several
bandwidths. All hosts share this machine's processors, so a step waits where it would compute, half as long on two
ranks, and then sums gradients of 4 MB. The median of the steps is by the clock: let the machine do nothing else.

    python benchmarks/gang_speedup.py --hosts
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import result_file
import torch
from performance_model import ExchangeModel, Link, fitted, speedups
from torch import distributed, multiprocessing, nn

from hpo_core.gangs.growth import kappa

SUM_BYTES = 32_000_000
SECONDS = 1.5
"""Of one measurement."""
LINKS: dict[str, tuple[dict[str, str], float]] = {
    "1 Gbit/s": ({"rate": "1gbit"}, 1.0),
    "1 Gbit/s, 10 ms": ({"rate": "1gbit", "delay": "10ms"}, 1.0),
    "100 Mbit/s": ({"rate": "100mbit"}, 0.1),
    "100 Mbit/s, 10 ms": ({"rate": "100mbit", "delay": "10ms"}, 0.1),
}
"""Of each host's cable, with ``--hosts``; and its gigabits a second."""
ALONE, WIDTH, STEPS = 1.0, 1000, 12
"""Of a step with ``--hosts``: seconds on one rank, and inputs and outputs of its layer; how many are measured."""
PORT = 29500


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


def rank_on_host(rank: int, ranks: int) -> None:
    """One rank on a host of a lab: print the seconds of each step."""
    distributed.init_process_group("gloo", init_method=f"tcp://h1:{PORT}", rank=rank, world_size=ranks)
    model: nn.Module = nn.Linear(WIDTH, WIDTH)
    trained = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    inputs, times = torch.ones(1, WIDTH), []
    for _ in range(STEPS + 2):
        began = time.perf_counter()
        time.sleep(ALONE / ranks)
        trained(inputs).sum().backward()
        times.append(time.perf_counter() - began)
    print(json.dumps(times[2:]))
    distributed.destroy_process_group()


def over_hosts() -> list[dict[str, Any]]:
    """Speed-ups over the hosts of a lab, one row for each link and number of hosts."""
    sys.path.insert(0, str(result_file.ROOT.parent))
    from tests.hosts.lab import Lab

    size, rows = 4 * sum(parameter.numel() for parameter in nn.Linear(WIDTH, WIDTH).parameters()), []
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder), hosts=4) as lab:

        def seconds_on(ranks: int) -> float:
            place = Path(folder) / f"{len(rows)}-{ranks}"
            started = [
                host.start(sys.executable, __file__, "--rank", str(rank), str(ranks), log=f"{place.name}.log")
                for rank, host in zip(range(ranks), lab, strict=False)
            ]
            for process in started:
                if process.wait(600):
                    raise RuntimeError(process.said)
            return statistics.median(json.loads(started[0].said.splitlines()[-1]))

        alone = seconds_on(1)
        for link, (quality, gbps) in LINKS.items():
            for host in lab:
                host.link(**({"delay": 0.0} | quality))
            predicted = speedups(ExchangeModel(seconds=alone, size=size, link=Link(gbps)), (2, 4))
            measured = {ranks: seconds_on(ranks) for ranks in (2, 4)}
            for ranks, seconds in measured.items():
                rows.append(
                    {
                        "link": link,
                        "hosts": ranks,
                        "gradient_mb": round(size / 1e6, 2),
                        "alone_ms": round(1000 * alone),
                        "step_ms": round(1000 * seconds),
                        "measured": round(alone / seconds, 2),
                        "predicted": round(predicted[ranks], 2),
                        "load": round(os.getloadavg()[0], 1),
                    }
                )
                print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each (default: 7)")
    parser.add_argument("--out", help="where the JSON goes (default: results/gang_speedup.json)")
    parser.add_argument(
        "--hosts", action="store_true", help="over hosts of a lab; writes results/gang_speedup-hosts.json"
    )
    parser.add_argument("--rank", type=int, nargs=2, metavar=("RANK", "RANKS"), help="be one of these ranks")
    given = parser.parse_args()
    if given.rank:
        rank_on_host(*given.rank)
        return
    facts = result_file.machine()
    if given.hosts:
        rows = over_hosts()
        result_file.table(list(rows[0]), [list(row.values()) for row in rows])
        result_file.write("gang_speedup-hosts", facts, {"rows": rows}, given.out)
        return
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
