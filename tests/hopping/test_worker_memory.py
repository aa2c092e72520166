"""What workers hold in memory while models hop: their own partitions once, not the data."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil
import pytest

from tests.hopping.hopping_objectives import write_partitions
from tests.hopping.test_hopping_workers import Cluster, Hopping, cluster

__all__ = ["cluster"]
pytestmark = pytest.mark.slow
ROWS = 2_000_000
PARTITION = ROWS * 5 * 8
"""Bytes of one in memory: 80 MB."""


def held(process: psutil.Process) -> int:
    """Memory of a process and of all below it; pages that they share count once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return total


def test_a_worker_holds_its_own_partitions_alone(cluster: Cluster, tmp_path: Path) -> None:
    numbers = {"a": [0, 2, 4], "b": [1, 3, 5]}
    for name, mine in numbers.items():
        write_partitions(cluster.worker(name, []), mine, rows=ROWS)
    workers = dict(cluster.workers)
    peak = dict.fromkeys(numbers, 0)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for name, process in workers.items():
                peak[name] = max(peak[name], held(process))

    hopping = Hopping(
        tmp_path,
        address=cluster.address,
        objective="tests.hopping.hopping_objectives:looks_at_all",
        search={"method": "random", "max_resource": 2, "configs": 3},
        data={
            "partitions": [f"part-{number}.npz" for number in range(6)],
            "folder": str(tmp_path / "data"),
            "load": "tests.hopping.hopping_objectives:load",
        },
    )
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        hopping.run()
    finally:
        ended.set()
        watching.join()
    assert hopping.study().status == "finished"
    for name in numbers:
        assert 3 * PARTITION < peak[name] < 5 * PARTITION, peak  # two of them are room for python, libraries, a model
