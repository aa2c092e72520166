"""One workload for every scheduler: the same losses, the same durations, nine slots on a virtual clock.

Standard library only, for it runs in the environments of the peers too.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
from array import array
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

LEVELS = (1, 3, 9, 27, 81)
SLOTS = 9
ETA = 3


class Job(NamedTuple):
    trial: int
    start: int
    target: int
    payload: Any = None


def level_above(target: int) -> int | None:
    """The next rung, None above the last."""
    return next((level for level in LEVELS if level > target), None)


def _uniform(trial: int, salt: int) -> float:
    word = (trial * 0x9E3779B97F4A7C15 + salt * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    word = ((word ^ (word >> 31)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (word >> 11) * 2.0**-53


def loss(trial: int, target: int) -> float:
    """A quality of its own for every trial, and noise that shrinks with training."""
    return _uniform(trial, 0) + 0.3 * _uniform(trial, target) / target**0.5


def seconds(job: Job) -> float:
    return (job.target - job.start) * (0.5 + _uniform(job.trial, 1000))


def play(first: Callable[[], list[Job]], tell: Callable[[Job, float], list[Job]], results: int) -> array[int]:
    """Report ``results`` results in the order of their virtual end; nanoseconds of every ``tell``."""
    heap: list[tuple[float, int, Job]] = []
    spent = array("q")
    count = 0
    now = 0.0
    for job in first():
        count += 1
        heapq.heappush(heap, (seconds(job), count, job))
    while len(spent) < results:
        now, _, job = heapq.heappop(heap)
        value = loss(job.trial, job.target)
        began = perf_counter_ns()
        jobs = tell(job, value)
        spent.append(perf_counter_ns() - began)
        for following in jobs:
            count += 1
            heapq.heappush(heap, (now + seconds(following), count, following))
    return spent


def resident() -> int:
    """Bytes of this process in memory now."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def summary(spent: array[int], trials: int, before: int) -> dict[str, Any]:
    """Microseconds per decision, and memory per trial where enough of it was used to tell."""
    order = sorted(spent)
    last = spent[-max(1, len(spent) // 10) :]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {
        "results": len(spent),
        "trials": trials,
        "mean_us": round(sum(spent) / len(spent) / 1e3, 3),
        "median_us": round(order[len(order) // 2] / 1e3, 3),
        "p99_us": round(order[int(len(order) * 0.99)] / 1e3, 3),
        "last_tenth_us": round(sum(last) / len(last) / 1e3, 3),
        "bytes_per_trial": round(used / trials) if len(spent) >= 10_000 else None,
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, default=1000, help="results to report (default 1000)")
    return parser


def answer(found: dict[str, Any]) -> None:
    """The last line of standard output: what the caller reads."""
    print(json.dumps(found))
