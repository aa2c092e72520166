"""The checkpoint store: files per second that one writer makes durable in a local folder, by size."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 5.0
CASES = [{"kilobytes": size, "durable": durable} for size in (4, 1_000, 25_000) for durable in (True, False)]


def measure(*, kilobytes: int, durable: bool) -> dict[str, Any]:
    import numpy as np

    from hpo_core.checkpoints.files import parts_of, write_chunks
    from hpo_core.checkpoints.tree_codec import memory_of

    tree = {"weights": np.random.default_rng(1).standard_normal(kilobytes * 1000 // 8), "epoch": 3}
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", dir=os.environ.get("HPO_BENCH_FOLDER")) as name:
        count, size = 0, 0
        began, cpu = time.perf_counter(), time.process_time()
        while (wall := time.perf_counter() - began) < SECONDS and count < 20_000:
            path = f"checkpoints/trial-{count:05d}/attempt-0/to-1.safetensors"
            chunks = list(map(memory_of, parts_of(tree)))
            size = write_chunks(name, path, chunks, resource=1, parent=None, durable=durable).size
            count += 1
            if count * size > 2e9:  # the disk is small
                break
            if kilobytes > 4:
                (Path(name) / path).unlink()
        wall = time.perf_counter() - began
        cpu = time.process_time() - cpu
    return {
        "per_second": round(count / wall, 1),
        "cpu_ms": round(cpu / count * 1e3, 3),
        "megabytes_per_second": round(count * size / wall / 1e6, 1),
        "bytes": size,
    }
