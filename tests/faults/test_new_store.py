"""The process that makes a new MLflow store is killed on the way: the next one makes it anew."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpo_core.tracking.mlflow_client import open_client

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("grown", [1, 100_000, 300_000])
def test_an_interrupted_creation_of_the_store_is_repaired(tmp_path: Path, grown: int) -> None:
    """MLflow's migrations are no transaction; cut short, they left a store that no MLflow could open again."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = f"from hpo_core.tracking.mlflow_client import open_client; open_client({uri!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)

    def size() -> int:
        files = [path for path in tmp_path.glob("*mlflow.db*") if not path.name.endswith((".lock", "-journal"))]
        return max((path.stat().st_size for path in files if path.exists()), default=0)

    deadline = time.monotonic() + 600
    while size() < grown and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert open_client(uri).search_experiments()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mlflow.db.first-use.lock", "mlflow.db"]
