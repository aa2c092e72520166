"""Dask: processor time of a task in scheduler, client and worker; of a scheduler with many workers that are idle.

``plain``: ``client.submit`` of an empty function, 200 under way, two worker processes of ten threads each.
``executor``: our ``DaskExecutor``, jobs that sleep a bit longer than a Dask task stays open (so each has a task of its
own), 20 under way. ``executor, short``: jobs of 10 ms, that share tasks.
``idle``: workers without a task, many in one process; the scheduler answers their heartbeats and, once a second, what
our watch asks of it.

The scheduler is a process of its own. Processor time per task, without what it uses when nothing is to be done, tells
at what rate its one thread is full, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import os
import queue
import tempfile
import time
from pathlib import Path
from typing import Any

import result_file
from soak.services import free_port

from saturation.processor_time import cpu_of, started

CASES: list[dict[str, Any]] = [
    {"what": "plain", "tasks": 10_000},
    {"what": "executor", "tasks": 200},
    {"what": "executor, short", "tasks": 600},
    *({"what": "idle", "workers": workers} for workers in (10, 50, 150)),
]
WORKERS, THREADS = 2, 10
IDLE_SECONDS, QUIET_SECONDS = 30.0, 5.0


def measure(*, what: str, tasks: int = 0, workers: int = WORKERS) -> dict[str, Any]:
    import dask
    from distributed import Client

    address = f"tcp://127.0.0.1:{(port := free_port())}"
    dask.config.set({"distributed.comm.timeouts.connect": "60s"})
    scheduler_command = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port),
                         "--no-dashboard", "--no-show")  # fmt: skip
    worker_command = ("-m", "distributed.cli.dask_worker", address, "--nthreads", str(THREADS), "--no-nanny",
                      "--no-dashboard")  # fmt: skip
    environment = os.environ | {
        "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False", "PYTHONPATH": str(result_file.ROOT),
    }  # fmt: skip
    with started(*scheduler_command, environment=environment) as scheduler:
        if what == "idle":
            with started("-m", "saturation.many_workers", address, str(workers), environment=environment):
                return _idle(address, scheduler, workers)
        with (
            started(*worker_command, environment=environment) as first,
            started(*worker_command, environment=environment) as second,
        ):
            with Client(address, timeout=60) as client:
                client.wait_for_workers(WORKERS, timeout=60)
                if what == "plain":
                    return _plain(client, scheduler, [first, second], tasks)
            return _executor(address, scheduler, [first, second], tasks, 0.01 if what.endswith("short") else 1.05)


def _nothing(number: int) -> int:
    return number


class _Meter:
    """Processor time of scheduler, this process and workers for tasks, less what they use without any."""

    def __init__(self, scheduler: int, workers: list[int]) -> None:
        self._processes = scheduler, *workers
        before, began = self._used(), time.perf_counter()
        time.sleep(QUIET_SECONDS)
        wall = time.perf_counter() - began
        self._idle = [(b - a) / wall for a, b in zip(before, self._used(), strict=True)]
        self._before, self._began = self._used(), time.perf_counter()

    def _used(self) -> list[float]:
        return [time.process_time(), *map(cpu_of, self._processes)]

    def figures(self, tasks: int) -> dict[str, Any]:
        wall = time.perf_counter() - self._began
        spent = [b - a - idle * wall for a, b, idle in zip(self._before, self._used(), self._idle, strict=True)]
        client, scheduler, *workers = spent
        return {
            "per_second": round(tasks / wall, 1),
            "scheduler_ms": round(scheduler / tasks * 1e3, 3),
            "client_ms": round(client / tasks * 1e3, 3),
            "worker_ms": round(sum(workers) / tasks * 1e3, 3),
        }


def _plain(client: Any, scheduler: int, workers: list[int], tasks: int) -> dict[str, Any]:
    from distributed import as_completed

    client.gather([client.submit(_nothing, k, pure=False) for k in range(200)])
    meter = _Meter(scheduler, workers)
    flow = as_completed([client.submit(_nothing, k, pure=False) for k in range(200)])
    submitted = 200
    for future in flow:
        future.release()
        if submitted < tasks:
            flow.add(client.submit(_nothing, submitted, pure=False))
            submitted += 1
    return meter.figures(tasks)


def _executor(address: str, scheduler: int, workers: list[int], tasks: int, seconds: float) -> dict[str, Any]:
    from hpo_core.model.devices.inventory import Slot
    from hpo_core.model.trial import RESULTS, Job, Report, Rung
    from hpo_core.spec import StudySpec
    from hpo_flows.dask.executor import DaskExecutor

    spec = StudySpec.from_plain(
        {
            "study": "scale",
            "objective": "objective:train",
            "pythonpath": [str(result_file.ROOT / "saturation")],
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 2.0}},
            "search": {"method": "random", "configs": tasks, "max_resource": 1},
            "cluster": {"kind": "address", "address": address},
        }
    )
    ended: queue.SimpleQueue[Report] = queue.SimpleQueue()
    under_way = WORKERS * THREADS
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        for part in ("checkpoints", "logs"):
            (Path(name) / part).mkdir()
        executor = DaskExecutor(spec, name)
        executor.start()

        def submit(number: int) -> None:
            job = Job(number, 0, Rung(0, 0), 1, {"x": seconds})
            executor.submit(job, Slot(0, 0, "dask"), lambda _, report: ended.put(report))

        try:
            for number in range(under_way):  # the first ones start the zygotes
                submit(number)
            first = [ended.get(timeout=300) for _ in range(under_way)]
            meter = _Meter(scheduler, workers)
            for number in range(under_way, 2 * under_way):
                submit(number)
            submitted, reports = 2 * under_way, list[Report]()
            while len(reports) < tasks:
                reports.append(ended.get(timeout=300))
                if submitted < tasks + under_way:
                    submit(submitted)
                    submitted += 1
            found = meter.figures(tasks)
        finally:
            executor.close()
    failed = [report.message for report in (*first, *reports) if report.outcome not in RESULTS]
    if failed:
        raise SystemExit(f"{len(failed)} jobs failed, the first with: {failed[0]}")
    return found


def _idle(address: str, scheduler: int, workers: int) -> dict[str, Any]:
    from distributed import Client

    from hpo_flows.dask.worker_facts import facts_of_workers

    with Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=150)
        time.sleep(5)
        before, began = cpu_of(scheduler), time.perf_counter()
        asked, mine = 0, time.process_time()
        while (wall := time.perf_counter() - began) < IDLE_SECONDS:
            client.run_on_scheduler(facts_of_workers, "/")
            asked += 1
            time.sleep(1.0)
        used = cpu_of(scheduler) - before
        mine = time.process_time() - mine
    return {
        "scheduler_share": round(used / wall, 4),
        "scheduler_us_per_worker_second": round(used / wall / workers * 1e6, 1),
        "watch_ms": round(mine / asked * 1e3, 2),
    }
