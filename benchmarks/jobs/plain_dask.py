"""Plain dask.distributed: one function per job, two in flight, the next submitted when one is done."""

from __future__ import annotations

import argparse
import time

from distributed import Client, LocalCluster, as_completed
from slots import SECONDS, SLOTS, answer


def job(_: int) -> tuple[float, float]:
    start = time.time()
    time.sleep(SECONDS)
    return start, time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    given = parser.parse_args()
    spans = []
    with (
        LocalCluster(n_workers=SLOTS, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        flow = as_completed([client.submit(job, k, pure=False) for k in range(SLOTS)])
        submitted = SLOTS
        for future in flow:
            spans.append(future.result())
            if submitted < given.jobs:
                flow.add(client.submit(job, submitted, pure=False))
                submitted += 1
    answer(spans)


if __name__ == "__main__":
    main()
