"""Resident memory of workers that hold different partitions, while models hop between them.

Two Dask workers in folders of their own, each with half of the partitions. Every 0.1 s the proportional set size (PSS)
of each worker with all processes below it (zygote, children) is read; pages that they share count once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from driven import run_study

HERE = str(Path(__file__).resolve().parent)


def memory(process: psutil.Process) -> tuple[int, int]:
    """PSS of a process and of all below it; the largest PSS of a single one below it."""
    total, most = 0, 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            found = each.memory_full_info().pss
            total += found
            most = max(most, found if each != process else 0)
    return total, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=100, help="of each partition")
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    names = [f"part-{number}.npy" for number in range(given.partitions)]
    with (
        tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        top = Path(name)
        file = top / "scheduler.json"

        def start(*words: str, **more: str) -> psutil.Process:
            log = stack.enter_context((top / f"{len(list(top.iterdir()))}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *words], stdout=log, stderr=log, env=os.environ | more, cwd=top
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return psutil.Process(process.pid)

        start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        workers = {}
        for number, worker in enumerate("ab"):
            place = top / worker
            place.mkdir()
            for index in range(number, given.partitions, 2):
                rows = np.random.default_rng(index).random((given.megabytes * 1_000_000 // 800, 100))
                np.save(place / names[index], rows)
            workers[worker] = start(
                "worker", address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--no-dashboard",
                "--local-directory", str(top / f"of-{worker}"), HPO_PARTITION_FOLDER=str(place),
            )  # fmt: skip
        time.sleep(5)
        idle = {worker: memory(process)[0] for worker, process in workers.items()}
        peak = dict.fromkeys(workers, 0)
        single = dict.fromkeys(workers, 0)
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.1):
                for worker, process in workers.items():
                    with contextlib.suppress(psutil.Error):
                        total, most = memory(process)
                        peak[worker], single[worker] = max(peak[worker], total), max(single[worker], most)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            ended = run_study(top / "run", study(names, address), seconds=given.seconds)
        finally:
            done.set()
            watching.join()
    mb = 1_000_000
    print(json.dumps({
        "partitions": given.partitions, "partition_mb": given.megabytes, "data_mb": given.partitions * given.megabytes,
        "own_mb": given.partitions * given.megabytes // 2,
        "units": sum(len(each.report.visits) for each in ended if isinstance(each.report.visits, tuple)),
        "workers": {
            worker: {
                "idle_mb": idle[worker] // mb, "peak_mb": peak[worker] // mb, "largest_child_mb": single[worker] // mb,
            }
            for worker in workers
        },
    }))  # fmt: skip


def study(names: list[str], address: str) -> dict[str, Any]:
    return {
        "study": "memory",
        "objective": "units:read_all",
        "metric": {"name": "loss", "mode": "min"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "search": {"method": "random", "configs": 4, "max_resource": 2},
        "data": {"partitions": names, "folder": "/nowhere", "load": "units:load"},
        "cluster": {"kind": "address", "address": address},
    }


if __name__ == "__main__":
    main()
