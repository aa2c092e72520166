"""Beyond this machine: the share of workers' time spent waiting for the controller, by workers and length of jobs.

A closed queue played event by event: each worker trains a job (its length times 1 + |z|, z normal with standard
deviation 0.5), then waits until the controller, which serves one report after the other, has decided, recorded and
sent the next job. All workers begin at once, as a study does. The service time is what the other layers measured:
``controller_ms`` (decision, entry, Dask's client) and, in a second server behind it, ``scheduler_ms`` of Dask.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

CASES = [
    {"workers": workers, "job_seconds": seconds, "controller_ms": 3.0, "scheduler_ms": 2.7}
    for workers in (100, 1_000, 10_000)
    for seconds in (5, 20, 60, 300)
]
JOBS_EACH = 20


def measure(*, workers: int, job_seconds: float, controller_ms: float, scheduler_ms: float) -> dict[str, Any]:
    draw = random.Random(1)
    service = (controller_ms / 1e3, scheduler_ms / 1e3)
    free = [0.0, 0.0]
    busy = longest = 0.0
    ends = [(0.0, worker) for worker in range(workers)]  # all ask for a job at the start
    left, now = workers * JOBS_EACH, 0.0
    while left:
        now, worker = heapq.heappop(ends)
        ready = now
        for server, seconds in enumerate(service):
            free[server] = ready = max(free[server], ready) + seconds
        longest = max(longest, ready - now)
        length = job_seconds * (1 + abs(draw.gauss(0, 0.5)))
        busy += length
        heapq.heappush(ends, (ready + length, worker))
        left -= 1
    wall = max(end for end, _ in ends)
    return {
        "waiting_share": round(1 - busy / sum(end for end, _ in ends), 4),
        "longest_wait_s": round(longest, 2),
        "per_second": round(workers * JOBS_EACH / wall, 1),
    }
