"""MLflow: trials per second that our follower's projection writes, to SQLite and to a real server on 127.0.0.1.

A trial is a run with its parameters, tags and one batch of metrics for each of its 1.5 results. All is there when the
projection returns. Processor time of this process, and of the server.
"""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import result_file
from soak.services import free_port

from saturation.processor_time import cpu_of, started

sys.path.insert(0, str(result_file.ROOT / "decide"))

CASES = [
    {"store": "sqlite", "results": 300},
    {"store": "sqlite", "results": 600},
    {"store": "server", "results": 300},
]


def measure(*, store: str, results: int) -> dict[str, Any]:
    import ours

    from hpo_core.journal.memory import MemoryJournal
    from hpo_core.tracking.mlflow_client import prepare_environment
    from hpo_core.tracking.mlflow_projection import MlflowProjection

    prepare_environment()
    warm, journal = MemoryJournal(), MemoryJournal()
    ours.with_study(10, warm)
    ours.with_study(results, journal)
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _store(store, folder) as (uri, server):
            first = MlflowProjection("decisions", uri, "warm", _made(folder / "warm"))
            first.project(warm.entries("decisions"))
            first.close()
            projection = MlflowProjection("decisions", uri, "scale", _made(folder / "study"))
            before = cpu_of(server) if server else 0.0
            began, cpu = time.perf_counter(), time.process_time()
            projection.project(journal.entries("decisions"))
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            served = cpu_of(server) - before if server else 0.0
            projection.close()
    entries = list(journal.entries("decisions"))
    trials = sum(type(event).__name__ == "TrialCreated" for entry in entries for event in entry.events)
    return {
        "trials": trials,
        "per_second": round(trials / wall, 1),
        "client_ms": round(cpu / trials * 1e3, 1),
        "server_ms": round(served / trials * 1e3, 1),
    }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _store(store: str, folder: Path) -> Iterator[tuple[str, int]]:
    """(URI, number of the server's process; 0: there is none)."""
    if store == "sqlite":
        yield f"sqlite:///{folder}/mlflow.db", 0
        return
    port = free_port()
    command = ("-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{folder}/server.db",
               "--artifacts-destination", str(folder))  # fmt: skip
    with started(*command) as pid:
        uri = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield uri, pid
