"""The units of hopping_overhead.py by plain dask.distributed: pinned tasks whose states Dask itself moves.

Each model is a chain of tasks over the partitions, each on the worker that ``place % workers`` names, with two models
for each worker under way. A task is 10 ms, with no process of its own, no checkpoint and no record.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from distributed import Client, LocalCluster

SECONDS = 0.010


def unit(state: tuple[bytes, list[tuple[float, float]]]) -> tuple[bytes, list[tuple[float, float]]]:
    start = time.time()
    time.sleep(SECONDS)
    return state[0], [*state[1], (start, time.time())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--bytes", type=int, default=4_000)
    given = parser.parse_args()
    with (
        LocalCluster(n_workers=given.workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
        models = 2 * given.workers
        ends: list[Any] = [(bytes(given.bytes), [])] * models
        for place in range(given.units // models):
            for model in range(models):
                at = addresses[(place + model) % given.workers]
                ends[model] = client.submit(unit, ends[model], workers=[at], pure=False)
        spans = [span for _, found in client.gather(ends) for span in found]
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    print(json.dumps({"units": len(spans), "slot_ms": round((wall * given.workers / len(spans) - SECONDS) * 1e3, 2)}))


if __name__ == "__main__":
    main()
