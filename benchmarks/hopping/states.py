"""A model's state from worker to worker: through the study's folder, and straight through Dask.

Seconds for states of several sizes, best and median of some repeats, all in turn:

- ``save``, ``load``: as a hop does, ``hpo_core.checkpoints.files`` without fsync, with a BLAKE3 digest on both sides;
- ``durable``: ``save`` with fsync, as at the end of an epoch;
- ``hash``: BLAKE3 of as many bytes, which either side computes once;
- ``write``, ``read``: the same bytes into a new file and out of it, without digests or format;
- ``dask``: a task on another worker asks for the bytes that a worker process holds;
- ``socket``: from a forked process to the one that forked it. The way from the child that trained to its worker, and
  from the other worker to its child, would come on top of ``dask``: twice this.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from distributed import Client, LocalCluster, wait

from hpo_core.checkpoints.files import load, parts_of, write_chunks
from hpo_core.checkpoints.tree_codec import memory_of
from hpo_core.model.trial import Checkpoint


def save(folder: Path, path: str, tree: Any, *, durable: bool) -> Checkpoint:
    """Write a state as a training process does."""
    chunks = list(map(memory_of, parts_of(tree)))
    return write_chunks(folder, path, chunks, resource=1, parent=None, durable=durable)


def length(data: Any) -> int:
    return int(data.nbytes)


def make(size: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def handed_over(data: Any) -> None:
    """From a child process, which has it already."""
    here, there = socket.socketpair()
    if not (child := os.fork()):
        there.sendall(memoryview(data).cast("B"))
        os._exit(0)
    there.close()
    into, got = memoryview(np.empty_like(data)).cast("B"), 0
    while got < len(into):
        got += here.recv_into(into[got:])
    here.close()
    os.waitpid(child, 0)


def measure(folder: Path, client: Client, size: int, repeats: int) -> dict[str, dict[str, float]]:
    data = make(size).view(np.float32)
    tree = {"tracked": {"model": {"weights": data}}}
    here, there = sorted(client.scheduler_info(n_workers=-1)["workers"])
    found: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], Any]) -> None:
        found.setdefault(name, []).append(timed(call))

    plain = folder / "plain"
    for number in range(repeats):
        kept: list[Any] = []

        def write(number: int = number, kept: list[Any] = kept) -> None:
            kept.append(save(folder, f"hops/{number}.safetensors", tree, durable=False))

        note("save", write)
        note("load", lambda kept=kept: load(folder, kept[0], "hops"))
        (folder / kept[0].uri).unlink()
        note("durable", lambda: save(folder, "hops/durable.safetensors", tree, durable=True))
        note("hash", lambda: blake3(data.view(np.uint8)))
        note("write", lambda: data.tofile(plain))
        note("read", lambda: np.fromfile(plain, dtype=np.float32))
        plain.unlink()
        note("socket", lambda: handed_over(data))
        state = client.submit(make, size, workers=[here], pure=False)
        wait(state)
        note("dask", lambda state=state: client.submit(length, state, workers=[there], pure=False).result())
        state.release()
    return {
        name: {"best": round(min(each), 5), "median": round(statistics.median(each), 5)} for name, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.01, 1, 10, 100])
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        found = {}
        for size in given.megabytes:
            found[f"{size:g} MB"] = measure(Path(name), client, int(size * 1e6) // 4 * 4, given.repeats)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
